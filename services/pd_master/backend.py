"""What the gateway's front asks of the part behind it. The registry and the dispatcher fit these by structure."""

from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias

from services.common.gateway_messages import WorkerCard
from services.common.prompt_logprobs import PromptLogprobs
from services.common.request import Delta, Request


class ServedModel(Protocol):
    """A model that workers serve."""

    @property
    def name(self) -> str:
        """What clients call it."""
        ...

    @property
    def group(self) -> str:
        """Of the workers: equal for those whose weights and layout are equal."""
        ...

    @property
    def tokenizer_dir(self) -> Path:
        """Folder with tokenizer, chat template and generation defaults, as a worker of the group sent them."""
        ...

    @property
    def max_context_tokens(self) -> int:
        """Prompt and output together."""
        ...

    @property
    def vocab_size(self) -> int:
        """Token ids are below it."""
        ...


class TokenLoad(NamedTuple):
    """Load of the fullest stage, as shares of its KV slots; 0 without workers."""

    current: float
    """Slots held now."""
    admitted_peak: float
    """Predicted peak of what is in."""
    demand: float
    """The same with what waits; unbounded."""


class Models(Protocol):
    """The models of all workers known now."""

    @property
    def master_id(self) -> str:
        """This master's name towards workers."""
        ...

    def workers(self) -> Sequence[WorkerCard]:
        """Every worker there is a session to."""
        ...

    def models(self) -> Sequence[ServedModel]:
        """All of them; empty before the first worker has been seen."""
        ...

    def model(self, name: str) -> ServedModel:
        """Raises ModelNotFoundError."""
        ...

    def token_load(self) -> TokenLoad:
        """How full the workers are, as their last heartbeats said."""
        ...

    def num_slots(self, name: str) -> int:
        """Slots of the largest pool that decodes for a model now; 0 when there is none."""
        ...

    def num_pairs(self) -> int:
        """Proven pairs and mixed workers that take requests now; at 0 a request gets 503."""
        ...


class StageListener(Protocol):
    """Hears of requests' stages by their ids; ids that it does not know are of no interest."""

    def prefilling(self, request_id: str) -> None:
        """The prompt is being computed."""
        ...

    def joined(self, request_id: str) -> None:
        """The KV is on the decode worker."""
        ...


Listener: TypeAlias = Callable[[Delta], bool]
"""Takes one choice's next output; False: not now, and it has had no effect."""


class Generation(Protocol):
    """One running request. Iterating gives all deltas that are pending, at most one per choice, in order (R6, R15)."""

    @property
    def cached_tokens(self) -> int | None:
        """Prompt tokens whose KV the prefill worker held already; None until it has said so."""
        ...

    @property
    def prompt_logprobs(self) -> PromptLogprobs | None:
        """Of the prompt's own tokens, where they are asked for; here before the first delta."""
        ...

    def __aiter__(self) -> AsyncIterator[list[Delta]]:
        """Ends when all choices have finished; raises SluiceError when the request fails for good."""
        ...

    def listen(self, listener: Listener) -> None:
        """Hand new output to `listener` at once, with no task between; what it does not take, and what finishes a
        choice, comes by iterating. Called by who iterates, once it has written all that it got."""
        ...

    async def aclose(self) -> None:
        """Aborts what is left on every worker. Idempotent."""
        ...


class Dispatcher(Protocol):
    """Finds workers for requests and keeps them running through failures."""

    async def submit(self, request: Request) -> Generation:
        """Raises NoWorkerError, OverloadedError, ContextLengthError."""
        ...
