"""The worker's service once something in it has failed."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from services.common.metrics import WorkerMetrics
from services.worker.protocol import effects as fx
from services.worker.service import WorkerService


def test_a_core_that_failed_is_told_nothing_more() -> None:
    nobody = cast(Any, SimpleNamespace(draining=False))
    service = WorkerService(nobody, nobody, nobody, WorkerMetrics(has_prefill=False, has_decode=True))
    told: list[float] = []

    def fail(now: float) -> list[fx.Effect]:
        told.append(now)
        raise AssertionError("an invariant does not hold")

    with pytest.raises(AssertionError):
        service.hand_in(fail)
    assert service.broken.is_set()
    service.hand_in(fail)
    assert len(told) == 1
