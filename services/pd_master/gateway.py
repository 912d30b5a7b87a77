"""The front's common core: from an accepted request to its deltas, measured. HTTP and gRPC handlers stand on it."""

import asyncio
import dataclasses
import logging
import time
from collections.abc import Sequence

from services.common.config import GatewayConfig
from services.common.errors import ModelNotFoundError, NoWorkerError, OverloadedError, SluiceError
from services.common.request import Request
from services.pd_master.allowance import Allowances, Limits
from services.pd_master.backend import Dispatcher, Models, ServedModel
from services.pd_master.entropy import Entropy
from services.pd_master.keys import current_key
from services.pd_master.live_request import STAGES, LiveRequest
from services.pd_master.metrics import GatewayMetrics
from services.pd_master.model_text import ModelText
from services.pd_master.tokenizer import TokenizerService
from services.pd_master.tracing import Tracer

log = logging.getLogger(__name__)

_entropy = Entropy()


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """The model a request names, with its text side."""

    model: ServedModel
    text: ModelText
    models: Models

    @property
    def num_slots(self) -> int:
        """Of the largest KV pool that decodes for it now; 0 when there is none."""
        return self.models.num_slots(self.model.name)


class Gateway:
    """Lives on the event loop of a pd_master; every API handler holds it."""

    def __init__(
        self,
        config: GatewayConfig,
        models: Models,
        dispatcher: Dispatcher,
        tokenizers: TokenizerService,
        metrics: GatewayMetrics,
        limits: dict[str, Limits] | None = None,
    ) -> None:
        """`limits`: of API keys, by their names."""
        self.config = config
        self.models = models
        self.tokenizers = tokenizers
        self.metrics = metrics
        self.tracer = Tracer(config.otlp_endpoint)
        self.started_at = time.time()
        self._dispatcher = dispatcher
        self._allowances = Allowances(limits or {}, now())
        self._live: dict[str, LiveRequest] = {}
        self._idle = asyncio.Event()
        self._idle.set()

    async def target(self, name: str | None) -> Target:
        """The model of a request; without a name, the one there is.

        Raises NoWorkerError before any worker has been seen and ModelNotFoundError for a name that none serves.
        """
        served = self.models.models()
        if not served:
            raise NoWorkerError("no worker has reported a model yet", param="model")
        if name is not None:
            model = self.models.model(name)
        elif len(served) == 1:
            model = served[0]
        else:
            names = ", ".join(model.name for model in served)
            raise ModelNotFoundError(f"several models are served, name one of: {names}", param="model")
        text = await self.tokenizers.text_of(model.tokenizer_dir)
        return Target(model, text, self.models)

    async def start(self, request: Request, *, api: str, arrived: float) -> LiveRequest:
        """Dispatch a request. `arrived`: `now()` when its handling began.

        Raises OverloadedError at the limit of requests in work or of the caller's key, and what the dispatcher raises.
        """
        (live,) = await self.start_all([request], api=api, arrived=arrived)
        return live

    async def start_all(self, requests: Sequence[Request], *, api: str, arrived: float) -> list[LiveRequest]:
        """Dispatch all requests of one call, or none: the call is let in as a whole before the first one costs work,
        and where a later one is refused those before it are ended. Raises as `start`."""
        if self.num_active + len(requests) > self.config.max_queue:
            raise OverloadedError(
                f"{self.num_active} requests are in work and {len(requests)} more came: {self.config.max_queue} is the "
                "limit",
                retry_after_s=1.0,
            )
        key, num_tokens = current_key.get(), sum(len(request.prompt_ids) for request in requests)
        self._allowances.admit(key, num_tokens, now())
        lives: list[LiveRequest] = []
        try:
            for request in requests:
                lives.append(self._live_request(request, api, arrived))
                await lives[-1].dispatch(self._dispatcher)
        except BaseException as error:
            if isinstance(error, SluiceError):
                self._allowances.give_back(key, num_tokens)
            for live in lives:
                await live.aclose()
            raise
        return lives

    def _live_request(self, request: Request, api: str, arrived: float) -> LiveRequest:
        live = LiveRequest(request, self.metrics, api=api, arrived=arrived, on_end=self._ended, tracer=self.tracer)
        self._live[request.request_id] = live
        self._idle.clear()
        self.metrics.active.inc()
        return live

    @property
    def num_active(self) -> int:
        """Generations in work."""
        return len(self._live)

    async def idle(self) -> None:
        """Returns when no generation is in work."""
        await self._idle.wait()

    async def end_all(self, error: SluiceError) -> None:
        """End every generation; its client gets the error."""
        await asyncio.gather(*(live.interrupt(error) for live in list(self._live.values())))

    def stages(self) -> dict[str, int]:
        """Generations in work by their stage, in the order that requests go through."""
        counts = dict.fromkeys(STAGES, 0)
        for live in self._live.values():
            counts[live.stage] += 1
        return counts

    def prefilling(self, request_id: str) -> None:
        """A worker began to compute this prompt."""
        live = self._live.get(request_id)
        if live is not None:
            live.prefilling()

    def joined(self, request_id: str) -> None:
        """A decode worker has this request's KV."""
        live = self._live.get(request_id)
        if live is not None:
            live.joined()

    def _ended(self, live: LiveRequest) -> None:
        self._live.pop(live.request.request_id, None)
        self._allowances.used(live.key, live.num_output_tokens)
        self.metrics.active.dec()
        if not self._live:
            self._idle.set()


def new_request_id() -> str:
    """128 random bits: clients cannot guess or collide with another's."""
    return _entropy.take(16).hex()


def new_call_id() -> str:
    """An id for a tool call."""
    return f"call_{_entropy.take(12).hex()}"


now = time.monotonic
"""The clock on which arrivals and deltas are measured; uvloop's own stands still within a turn of the loop."""
