"""What the master's protocol core asks of the dispatcher around it, in order."""

from dataclasses import dataclass
from typing import TypeAlias

from services.common.errors import SluiceError
from services.common.messages import MasterMessage, WorkerRef
from services.common.prompt_logprobs import PromptLogprobs
from services.common.request import Delta


@dataclass(frozen=True, slots=True)
class Send:
    """Say something to a worker; dropped without a session to exactly this start of it."""

    worker: WorkerRef
    message: MasterMessage


@dataclass(frozen=True, slots=True)
class Deliver:
    """New output for the client: the next tokens of one choice."""

    request_id: str
    delta: Delta


@dataclass(frozen=True, slots=True)
class Cached:
    """The prefill worker's figure for usage; said once."""

    request_id: str
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Scored:
    """The prompt's log-probabilities; said once, before any output."""

    request_id: str
    logprobs: PromptLogprobs


@dataclass(frozen=True, slots=True)
class End:
    """The request is over: all choices have been delivered, or `error` says why not. The last word on it."""

    request_id: str
    error: SluiceError | None = None


Effect: TypeAlias = Send | Deliver | Cached | Scored | End
