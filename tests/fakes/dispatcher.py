"""A dispatcher without workers: it answers each request from a script, so that the API can be tested by itself."""

import asyncio
import dataclasses
import struct
from collections.abc import AsyncIterator
from pathlib import Path

from services.common.errors import ModelNotFoundError, SluiceError
from services.common.gateway_messages import WorkerCard
from services.common.prompt_logprobs import PromptLogprobs
from services.common.request import Delta, Finish, FinishReason, Request, TokenLogprob
from services.common.text import TextStream, Vocabulary
from services.pd_master.backend import Listener, TokenLoad


@dataclasses.dataclass(frozen=True)
class FakeModel:
    """A served model."""

    name: str
    tokenizer_dir: Path
    max_context_tokens: int = 512
    vocab_size: int = 49152
    group: str = "0123456789abcdef"
    num_slots: int = 65536


class FakeModels:
    """A registry that knows what the test put in."""

    def __init__(self, *models: FakeModel) -> None:
        self.served = list(models)
        self.master_id = "m-0"

    def models(self) -> list[FakeModel]:
        return list(self.served)

    def model(self, name: str) -> FakeModel:
        for model in self.served:
            if model.name == name:
                return model
        raise ModelNotFoundError(f"model {name!r} is not served here", param="model")

    def workers(self) -> list[WorkerCard]:
        return [WorkerCard("p-0", "prefill", "tiny", True, False, 1, 2, 0.5)]

    def num_slots(self, name: str) -> int:
        """Of the model's largest pool."""
        return self.model(name).num_slots

    def num_pairs(self) -> int:
        """One."""
        return 1

    def token_load(self) -> TokenLoad:
        return TokenLoad(0.25, 0.5, 0.75)


@dataclasses.dataclass
class Script:
    """What the next requests get. `output` per choice, repeated over the choices; `step` tokens in each batch."""

    output: list[list[int]] = dataclasses.field(default_factory=lambda: [[28120, 905]])
    finish: FinishReason = FinishReason.STOP
    step: int = 1
    cached_tokens: int = 0
    refuse: SluiceError | None = None
    """Raised by submit."""
    fail_after: int | None = None
    """Batches before `failure` is raised."""
    failure: SluiceError | None = None
    hang_after: int | None = None
    """Batches before nothing more comes until aclose."""
    endless: bool = False
    """Begin again at the output's end, as long as anybody reads."""


class FakeDispatcher:
    """Remembers every request and generation."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.script = Script()
        self.requests: list[Request] = []
        self.generations: list[FakeGeneration] = []
        self.submitted: asyncio.Queue[FakeGeneration] = asyncio.Queue()
        """Each new generation, for tests that wait for one."""
        self._vocabulary = vocabulary

    async def submit(self, request: Request) -> "FakeGeneration":
        self.requests.append(request)
        if self.script.refuse is not None:
            raise self.script.refuse
        generation = FakeGeneration(request, self.script, self._vocabulary)
        self.generations.append(generation)
        self.submitted.put_nowait(generation)
        return generation


def fake_scores(prompt_ids: list[int], num_top: int) -> PromptLogprobs:
    """Token at position i: log-probability -i, rank 2, behind tokens 0, 1, ... of -i / 2."""
    n = len(prompt_ids) - 1
    positions = range(1, n + 1)
    return PromptLogprobs(
        1, num_top,
        struct.pack(f"<{n}f", *[-float(at) for at in positions]), struct.pack(f"<{n}i", *[2] * n),
        struct.pack(f"<{n * num_top}i", *[rank for _ in positions for rank in range(num_top)]),
        struct.pack(f"<{n * num_top}f", *[-at / 2 for at in positions for _ in range(num_top)]),
    )  # fmt: skip


class FakeGeneration:
    """Yields the script's tokens with the text a worker would make of them."""

    def __init__(self, request: Request, script: Script, vocabulary: Vocabulary) -> None:
        self.cached_tokens: int | None = script.cached_tokens
        num_top = request.sampling.num_prompt_logprobs
        self.prompt_logprobs = None if num_top is None else fake_scores(request.prompt_ids, num_top)
        self.closed = asyncio.Event()
        self.go_on = asyncio.Event()
        """Set by the test: a generation that hangs goes on."""
        self._request = request
        self._script = script
        self._outputs = [self._output(choice) for choice in range(request.num_choices)]
        self._texts = [TextStream(vocabulary, request.stop, request.text) for _ in self._outputs]
        self._sent = [0] * request.num_choices
        self._finished = [False] * request.num_choices
        self._listener: Listener | None = None

    def listen(self, listener: Listener) -> None:
        self._listener = listener

    async def aclose(self) -> None:
        self.closed.set()

    async def __aiter__(self) -> AsyncIterator[list[Delta]]:
        num_batches = 0
        while not all(self._finished) and not self.closed.is_set():
            if num_batches == self._script.fail_after and self._script.failure is not None:
                raise self._script.failure
            if num_batches == self._script.hang_after:
                waits = [asyncio.create_task(event.wait()) for event in (self.closed, self.go_on)]
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                if self.closed.is_set():
                    return
            await asyncio.sleep(0)
            deltas = [self._next(choice) for choice, done in enumerate(self._finished) if not done]
            num_batches += 1
            if not self._is_heard(deltas):
                yield deltas

    def _is_heard(self, deltas: list[Delta]) -> bool:
        return self._listener is not None and deltas[0].finish is None and self._listener(deltas[0])

    def _output(self, choice: int) -> list[int]:
        scripted = self._script.output
        return scripted[choice % len(scripted)][: self._request.stop.max_new_tokens]

    def _next(self, choice: int) -> Delta:
        first, output = self._sent[choice], self._outputs[choice]
        if self._script.endless:
            first %= len(output) - self._script.step
        ids = output[first : first + self._script.step]
        text, lengths = "", []
        for token in ids:
            piece = self._texts[choice].push([token])
            text += piece
            lengths.append(len(piece))
        self._sent[choice] += len(ids)
        finish = self._finish(choice, first, ids)
        if finish is not None:
            self._finished[choice] = True
            ids, lengths = ids[: finish.num_output_tokens - first], lengths[: finish.num_output_tokens - first]
            text += self._texts[choice].close()
        return Delta(choice, first, ids, text, self._logprobs(ids), finish, tuple(lengths))

    def _finish(self, choice: int, first: int, ids: list[int]) -> Finish | None:
        match = self._texts[choice].match
        if match is not None:
            return Finish(FinishReason.STOP, match.num_output_tokens, match.stop_string)
        if first + len(ids) < len(self._outputs[choice]):
            return None
        full = first + len(ids) == self._request.stop.max_new_tokens
        return Finish(FinishReason.LENGTH if full else self._script.finish, first + len(ids))

    def _logprobs(self, ids: list[int]) -> list[TokenLogprob] | None:
        num_top = self._request.sampling.num_logprobs
        if num_top is None:
            return None
        return [
            TokenLogprob(token, -0.25, [(token, -0.25), *((rank, -2.0 - rank) for rank in range(1, num_top))][:num_top])
            for token in ids
        ]
