"""When a worker calls itself unready, and when dead: a long step is neither, an engine without a sign of life is."""

from dataclasses import dataclass
from typing import Any, cast

from services.common.metrics import WorkerMetrics
from services.worker.app import LIVENESS_PATIENCE
from services.worker.engine_client import EngineClient
from services.worker.status import SILENCE_S, Status

STALL_S = 60.0


@dataclass
class Engine:
    """What Status asks of the engine."""

    ready: object = True
    silent_s: float = 0.0
    busy_s: float = 0.0

    @property
    def age_s(self) -> float:
        return max(self.silent_s, self.busy_s)


def status(engine: Engine) -> Status:
    """A worker that has loaded its model."""
    metrics = WorkerMetrics(has_prefill=True, has_decode=True)
    made = Status(cast(EngineClient, engine), metrics, stall_s=STALL_S, max_queue=1)
    made.router = cast(Any, object())
    return made


def test_thirty_second_prefill_trips_neither_probe() -> None:
    one = status(Engine(silent_s=1.0, busy_s=30.0))
    assert one.problem() is None
    assert one.stalled(LIVENESS_PATIENCE) is None


def test_engine_without_a_sign_of_life_is_unready_within_seconds_and_dead_much_later() -> None:
    assert SILENCE_S <= 6
    one = status(Engine(silent_s=SILENCE_S + 0.1))
    assert "silent" in str(one.problem())
    assert one.stalled(LIVENESS_PATIENCE) is None
    assert status(Engine(silent_s=STALL_S * LIVENESS_PATIENCE + 1)).stalled(LIVENESS_PATIENCE) is not None


def test_step_beyond_the_limit_is_unready() -> None:
    assert "no step" in str(status(Engine(busy_s=STALL_S + 1)).problem())


def test_long_model_load_is_unready_but_alive() -> None:
    one = status(Engine(ready=None, silent_s=600.0))
    one.router = None
    assert one.problem() == "the model is being loaded"
    assert one.stalled(LIVENESS_PATIENCE) is None
