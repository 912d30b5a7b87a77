"""What a worker's job looks like in a trace: its stages in order, as far as it came."""

from typing import Any

import pytest

from services.common.ipc import AttemptKey
from services.common.tracing import Span, TraceParent
from services.router.work import QueuedWork, WorkKind
from services.worker.spans import JobTimes, JobTrace, job_spans

GATEWAY = TraceParent("a" * 32, "b" * 16, is_sampled=True)
Stage = tuple[str, float, float]


def spans(kind: WorkKind, **reached: Any) -> list[Span]:
    """Of a job that was queued at 1 and ended at 9."""
    times = JobTimes(QueuedWork(1, kind, 0.0, 100, 20), queued_s=1.0, **reached)
    return job_spans(times, JobTrace(GATEWAY, AttemptKey("r", 2)), "prefill", 9.0)


@pytest.mark.parametrize(
    ("kind", "reached", "stages"),
    [
        (
            WorkKind.PREFILL,
            {"admitted_s": 2.0, "first_output_s": 5.0, "pushed_s": 6.0, "push_took_s": 3.0},
            [("queue", 1, 2), ("prefill", 2, 5), ("transfer", 3, 6)],
        ),
        (
            WorkKind.RESERVATION,
            {"admitted_s": 2.0, "joined_s": 4.0, "first_output_s": 5.0},
            [("reserve", 1, 2), ("join", 2, 4), ("decode", 4, 9)],
        ),
        (
            WorkKind.LOCAL,
            {"admitted_s": 2.0, "first_output_s": 5.0},
            [("queue", 1, 2), ("prefill", 2, 5), ("decode", 5, 9)],
        ),
        (WorkKind.PREFILL, {}, [("queue", 1, 9)]),
        (WorkKind.RESERVATION, {"admitted_s": 2.0}, [("reserve", 1, 2), ("join", 2, 9)]),
    ],
)
def test_stages_follow_each_other_and_end_with_the_job(
    kind: WorkKind, reached: dict[str, float], stages: list[Stage]
) -> None:
    whole, *below = spans(kind, **reached)
    assert [(span.name, span.start_s, span.end_s) for span in below] == stages
    assert (whole.start_s, whole.end_s) == (1.0, 9.0)
    assert {span.parent_id for span in below} == {whole.span_id}


def test_job_hangs_below_the_gateways_span_and_names_its_attempt() -> None:
    whole, *_ = spans(WorkKind.PREFILL, admitted_s=2.0)
    assert (whole.trace_id, whole.parent_id) == (GATEWAY.trace_id, GATEWAY.span_id)
    assert whole.name == "prefill worker"
    assert whole.attributes["sluice.request_id"] == "r"
    assert whole.attributes["sluice.attempt"] == 2
