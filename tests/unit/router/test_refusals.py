"""Who is refused at the door, and who is given up early."""

import math
from dataclasses import replace

import numpy as np
import pytest

from services.common.errors import ContextLengthError, OverloadedError
from services.router.scheduler import hopeless, refusal, retry_after_s
from services.router.work import RouterConfig, WorkKind
from tests.unit.router.engine_model import work

CONFIG = RouterConfig(capacity_slots=1000, chunk_tokens=100, step_budget_tokens=100, extent_slots=1)
LOCAL, PREFILL, RESERVATION = WorkKind.LOCAL, WorkKind.PREFILL, WorkKind.RESERVATION


@pytest.mark.parametrize(
    ("prompt", "max_new", "choices", "kind", "fits"),
    [
        (899, 100, 1, LOCAL, True),
        (900, 100, 1, LOCAL, False),
        (700, 100, 3, RESERVATION, False),
        (999, 100, 1, PREFILL, True),
        (1000, 1, 1, PREFILL, False),
    ],
)
def test_what_an_idle_worker_could_not_run_is_refused(
    prompt: int, max_new: int, choices: int, kind: WorkKind, fits: bool
) -> None:
    asked = work("a", prompt, kind, max_new_tokens=max_new, num_choices=choices)
    error = refusal(asked, CONFIG, num_waiting=0, predicted_wait_s=0, now_s=0)
    assert (error is None) == fits
    if not fits:
        assert isinstance(error, ContextLengthError)
        assert error.param == "max_new_tokens"


@pytest.mark.parametrize("kind", [LOCAL, PREFILL, RESERVATION])
def test_more_choices_than_run_at_once_are_refused_naming_n(kind: WorkKind) -> None:
    config = replace(CONFIG, max_running=4)
    assert refusal(work("a", kind=kind, num_choices=4), config, num_waiting=0, predicted_wait_s=0, now_s=0) is None
    error = refusal(work("a", kind=kind, num_choices=5), config, num_waiting=0, predicted_wait_s=0, now_s=0)
    assert isinstance(error, ContextLengthError)
    assert (error.param, error.retryable) == ("n", False)


def test_a_full_queue_is_refused_with_retry_after() -> None:
    error = refusal(work("a"), CONFIG, num_waiting=CONFIG.max_waiting, predicted_wait_s=7.2, now_s=0)
    assert isinstance(error, OverloadedError)
    assert error.retry_after_s == 8


@pytest.mark.parametrize(("deadline_s", "refused"), [(math.inf, False), (116.0, False), (114.0, True), (99.0, True)])
def test_what_would_miss_its_deadline_even_in_half_the_predicted_wait_is_refused_at_once(
    deadline_s: float, refused: bool
) -> None:
    asked = work("a", queue_deadline_s=deadline_s)
    error = refusal(asked, CONFIG, num_waiting=5, predicted_wait_s=30.0, now_s=100.0)
    assert isinstance(error, OverloadedError) == refused


def test_a_preempted_sequence_is_never_refused() -> None:
    asked = work("a", kind=WorkKind.RESUMED, queue_deadline_s=1.0)
    assert refusal(asked, CONFIG, num_waiting=10_000, predicted_wait_s=99.0, now_s=50.0) is None


def test_hopeless_are_those_that_would_miss_even_half_the_predicted_wait() -> None:
    waits_s, deadline_s = np.array([10.0, 30.0, 10.0]), np.array([106.0, 106.0, math.inf])
    assert hopeless(waits_s, deadline_s, now_s=100.0, confidence=0.5) == [1]


@pytest.mark.parametrize(("wait_s", "expected"), [(0.0, 1), (2.1, 3), (1e9, 60)])
def test_retry_after_is_whole_seconds_within_bounds(wait_s: float, expected: int) -> None:
    assert retry_after_s(wait_s) == expected
