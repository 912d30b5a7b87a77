"""How the worker stands: what heartbeats, health pages and gauges say, read from engine and Router."""

import time

from services.common.ipc import StepDone
from services.common.messages import Load
from services.common.metrics import WorkerMetrics
from services.router.router import Router
from services.worker.engine_client import EngineClient

SILENCE_S = 5.0
"""An engine that gives no sign of life for so long is stopped or wedged: no work for it, long before it is given up."""


class Status:
    """One per worker process; `router` is set once the engine is ready."""

    def __init__(self, engine: EngineClient, metrics: WorkerMetrics, *, stall_s: float, max_queue: int) -> None:
        self._engine = engine
        self._metrics = metrics
        self._stall_s = stall_s
        self._max_queue = max_queue
        self.router: Router | None = None
        self.draining = False
        self._gone_at = 0.0
        self.load = Load()
        """As of the last `sample`."""
        self._tokens = 0
        self._sampled_at = time.monotonic()

    def drain(self, within_s: float) -> None:
        """The worker is unready from now on, and gone in `within_s`."""
        self.draining = True
        self._gone_at = time.monotonic() + within_s

    @property
    def drain_left_s(self) -> float:
        """Seconds until a draining worker is gone; 0 when it does not drain."""
        return max(self._gone_at - time.monotonic(), 0.0)

    def observe_step(self, step: StepDone) -> None:
        """Once a step."""
        self._tokens += step.num_prefill_tokens or step.num_decode_rows
        self._metrics.engine.observe_step(step)

    def problem(self) -> str | None:
        """Why the worker is not ready, or None (R14: masters are not asked)."""
        if self.draining:
            return "draining"
        if self.router is None:
            return "the model is being loaded"
        if self._engine.silent_s > SILENCE_S:
            return f"the engine has been silent for {self._engine.silent_s:.1f} s"
        return self.stalled()

    def stalled(self, patience: float = 1.0) -> str | None:
        """Whether the engine is wedged, and for how long, or None; a dead one ends the process. Patience multiplies."""
        if self._engine.ready is not None and self._engine.age_s > self._stall_s * patience:
            return f"the engine has made no step for {self._engine.age_s:.1f} s"
        return None

    def sample(self) -> None:
        """Take the figures, once a second: rates are of the time since the last sample."""
        if self.router is None:
            return
        now = time.monotonic()
        rate = self._tokens / max(now - self._sampled_at, 1e-3)
        self._tokens, self._sampled_at = 0, now
        load, usage = self.router.load, self._engine.usage
        self.load = Load(
            queued_requests=load.num_waiting,
            queued_tokens=load.waiting_tokens,
            running_requests=load.num_running,
            max_queued_requests=self._max_queue,
            held_slots=usage.held_slots,
            reserved_slots=usage.reserved_slots,
            evictable_slots=usage.evictable_slots,
            num_slots=usage.num_slots,
            admitted_peak_ratio=load.admitted_peak_ratio,
            demand_ratio=load.demand_ratio,
            predicted_wait_s=load.predicted_wait_s,
            tokens_per_s=rate,
        )

    def feed_gauges(self) -> None:
        """Before a scrape: as things are now, not as of the last sample."""
        if self.router is not None:
            series, load = self._metrics.router, self.router.load
            series.admitted_peak_ratio.set(load.admitted_peak_ratio)
            series.demand_ratio.set(load.demand_ratio)
            series.predicted_wait.set(load.predicted_wait_s)
            series.waiting.set(load.num_waiting)
            series.running.set(load.num_running)
        self._metrics.engine.age.set(self._engine.age_s)
        self._metrics.engine.observe_usage(self._engine.usage)
