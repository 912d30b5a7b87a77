"""One accepted request between its dispatch and its end.

States: dispatching -> running -> ended. `dispatch` moves to running; an error of it or `aclose` moves to ended, once,
and everything is counted then.
"""

import logging
import time
from collections.abc import AsyncIterator, Callable

import msgspec

from services.common.errors import RequestAbortedError, SluiceError, WorkerFailedError
from services.common.prompt_logprobs import PromptLogprobs
from services.common.request import Delta, Finish, FinishReason, Request
from services.common.tracing import Attribute
from services.pd_master.backend import Dispatcher, Generation, Listener
from services.pd_master.keys import current_key
from services.pd_master.metrics import GatewayMetrics
from services.pd_master.prompt_only import FAILURES, bare_ends, of_one_token
from services.pd_master.tracing import Times, Tracer, current_parent

log = logging.getLogger(__name__)

_CHAT_APIS = frozenset({"chat", "messages", "responses"})


STAGES = ("queued", "prefilling", "transferring", "decoding")


class LiveRequest:
    """Iterate it once for its deltas; then, or whenever the client is gone, `aclose` it.

    Of a request for no tokens at all only the prompt is of interest (`services.pd_master.prompt_only`).
    """

    def __init__(
        self,
        request: Request,
        metrics: GatewayMetrics,
        *,
        api: str,
        arrived: float,
        on_end: Callable[["LiveRequest"], None],
        tracer: Tracer | None = None,
    ) -> None:
        self._root = tracer.begin(current_parent.get()) if tracer is not None else None
        traceparent = self._root.span.header if self._root is not None else ""
        self.key = current_key.get()
        """Name of the caller's API key."""
        if traceparent or self.key:
            request = msgspec.structs.replace(request, traceparent=traceparent, caller=self.key)
        self.request = request
        self.num_output_tokens = 0
        self._has_output = request.stop.max_new_tokens > 0
        self._metrics = metrics
        self._api = api
        self._arrived = arrived
        self._on_end: Callable[[LiveRequest], None] | None = on_end
        self._interrupted: SluiceError | None = None
        self._generation: Generation | None = None
        self._listener: Listener | None = None
        self._clock = time.monotonic
        self._last_token: list[float] = [0.0] * request.num_choices
        self._dispatched = 0.0
        self._prefilling = 0.0
        self._first_token = 0.0
        self._finishes: list[str] = []
        self._tracer = tracer
        self._joined = 0.0
        self._outcome = "aborted"
        self._reason = ""
        """What went wrong, where that is not the client's own doing."""

    @property
    def num_prompt_tokens(self) -> int:
        """Counted once however many choices there are."""
        return len(self.request.prompt_ids)

    @property
    def cached_tokens(self) -> int:
        """The prefill worker's figure."""
        return (self._generation.cached_tokens or 0) if self._generation else 0

    @property
    def prompt_logprobs(self) -> PromptLogprobs | None:
        """Of the prompt's own tokens, where they are asked for; here before the first delta."""
        return self._generation.prompt_logprobs if self._generation else None

    @property
    def stage(self) -> str:
        """One of STAGES, as the user sees it."""
        if not self.num_output_tokens:
            return "prefilling" if self._prefilling else "queued"
        if self._joined or self.num_output_tokens > self.request.num_choices:
            return "decoding"
        return "transferring"

    async def dispatch(self, dispatcher: Dispatcher) -> None:
        """Hand the request over. Raises what the dispatcher raises; the request has ended then."""
        self._dispatched = self._clock()
        self._metrics.prepare.observe(self._dispatched - self._arrived)
        try:
            self._generation = await dispatcher.submit(self.request if self._has_output else of_one_token(self.request))
        except SluiceError as error:
            self._note(error)
            self._end(self._outcome)
            raise
        except BaseException:
            self._end("aborted")
            raise
        self._metrics.prompt_tokens.inc(self.num_prompt_tokens)

    async def __aiter__(self) -> AsyncIterator[list[Delta]]:
        """Batches of deltas. Raises SluiceError when the request fails, also when one choice of it does."""
        assert self._generation is not None, "dispatched first"
        try:
            async for generated in self._generation:
                deltas = generated if self._has_output else bare_ends(generated)
                self._measure(deltas)
                yield deltas
            if self._interrupted is not None:
                raise self._interrupted
        except SluiceError as error:
            self._note(error)
            raise
        self._outcome = "completed"

    def _note(self, error: SluiceError) -> None:
        self._outcome = error.code
        self._reason = error.message if error.http_status >= 500 else ""

    def listen(self, listener: Listener) -> None:
        """As `Generation.listen`. Nothing is heard of several choices, which gain from one write for all, and of output
        that is dropped."""
        assert self._generation is not None, "dispatched first"
        if self._has_output and self.request.num_choices == 1:
            self._listener = listener
            self._generation.listen(self._heard)

    def _heard(self, delta: Delta) -> bool:
        assert self._listener is not None, "there before anything is heard"
        if not self._listener(delta):
            return False
        if delta.token_ids:
            self._observe(0, len(delta.token_ids), self._clock())
        return True

    def prefilling(self) -> None:
        """The prompt is being computed; a later attempt's does not count as a stage of the user's."""
        if not self._prefilling:
            self._prefilling = self._clock()
            self._metrics.stage.labels("queue").observe(self._prefilling - self._dispatched)

    def joined(self) -> None:
        """The KV is on the decode worker; what passed since the first token is what the transfer cost the user: nothing
        where it is here first. A later attempt's does not count."""
        if not self._joined:
            self._joined = self._clock()
            if self._first_token:
                self._metrics.stage.labels("transfer").observe(self._joined - self._first_token)

    async def interrupt(self, error: SluiceError) -> None:
        """End it for a reason of the server's: whoever iterates gets the error."""
        self._interrupted = error
        if self._generation is not None:
            await self._generation.aclose()

    async def aclose(self) -> None:
        """End it: aborts what still runs. Idempotent."""
        if self._on_end is None:
            return
        self._end(self._outcome)
        if self._generation is not None:
            await self._generation.aclose()

    def _measure(self, deltas: list[Delta]) -> None:
        now = self._clock()
        for delta in deltas:
            count = len(delta.token_ids)
            if count:
                self._observe(delta.choice, count, now)
            if delta.finish is not None:
                self._finishes.append(delta.finish.reason.value)
                if delta.finish.reason in FAILURES:
                    raise _failure(delta.finish)

    def _observe(self, choice: int, count: int, now: float) -> None:
        last = self._last_token[choice]
        self._last_token[choice] = now
        if last:
            self._metrics.tokens.observe(now - last, count)
        elif self.num_output_tokens == 0:
            self._observe_first(now)
        self.num_output_tokens += count
        self._metrics.tokens.num_tokens += count

    def _observe_first(self, now: float) -> None:
        self._first_token = now
        self._metrics.first_token.observe(now - self._arrived)
        if self._prefilling:
            self._metrics.stage.labels("prefill").observe(now - self._prefilling)
        if self._joined:
            self._joined = now
            self._metrics.stage.labels("transfer").observe(0.0)

    def _end(self, outcome: str) -> None:
        on_end, self._on_end = self._on_end, None
        self._listener = None  # it knows this
        if on_end is None:
            return
        seconds = self._clock() - self._arrived
        self._metrics.requests.labels(self._api, outcome).inc()
        self._metrics.end_to_end.observe(seconds)
        self._log(outcome, seconds)
        self._trace(outcome)
        self._metrics.cached_tokens.inc(self.cached_tokens)
        on_end(self)

    def _trace(self, outcome: str) -> None:
        if self._tracer is None or self._root is None:
            return
        times = Times(
            self._arrived, self._dispatched, self._prefilling, self._first_token, self._joined, ended=self._clock()
        )  # fmt: skip
        operation = "chat" if self._api in _CHAT_APIS else "text_completion"
        attributes: dict[str, Attribute] = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "sluice",
            "gen_ai.request.model": self.request.model,
            "gen_ai.usage.input_tokens": self.num_prompt_tokens,
            "gen_ai.usage.output_tokens": self.num_output_tokens,
            "gen_ai.response.finish_reasons": self._finishes,
            "gen_ai.response.id": self.request.request_id,
        }
        failed = "" if outcome in ("completed", "aborted") else outcome
        self._tracer.end(self._root, times, f"{operation} {self.request.model}", attributes, failed)

    def _log(self, outcome: str, seconds: float) -> None:
        """The request's one line: what it was and took, never what it said."""
        request = self.request
        log.info(
            "%s %s model=%s key=%s prompt_tokens=%d output_tokens=%d cached_tokens=%d first_token_ms=%.0f "
            "total_ms=%.0f finish=%s client_id=%s%s",
            self._api,
            outcome,
            request.model,
            self.key or "-",
            self.num_prompt_tokens,
            self.num_output_tokens,
            self.cached_tokens,
            (self._first_token - self._arrived) * 1e3 if self._first_token else 0.0,
            seconds * 1e3,
            ",".join(self._finishes) or "-",
            request.client_request_id or "-",
            f" reason={self._reason!r}" if self._reason else "",
            extra={"request_id": request.request_id},
        )


def _failure(finish: Finish) -> SluiceError:
    if finish.reason is FinishReason.ABORT:
        return RequestAbortedError(finish.message or "the request was aborted")
    return WorkerFailedError(finish.message or "the workers failed while they held this request")
