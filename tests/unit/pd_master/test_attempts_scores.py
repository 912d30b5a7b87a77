"""A prompt's log-probabilities come from the prefill worker; nothing is delivered before them, whatever is lost."""

from services.common.messages import (
    Abort,
    Failed,
    FailureCause,
    Joined,
    Placed,
    Prefilling,
    PromptScored,
    Queued,
    Submit,
)
from services.common.prompt_logprobs import PromptLogprobs
from services.common.request import SamplingParams
from services.pd_master.effects import Deliver, Scored
from tests.unit.pd_master.attempts_bench import D0, D1, K1, K2, P0, P1, Bench, tokens

SCORES = PromptLogprobs(1, 0, b"\0\0\0\0", b"\1\0\0\0", b"", b"")


def bench(num_choices: int = 1) -> Bench:
    """With a request that asks for them."""
    return Bench(num_choices, sampling=SamplingParams(num_prompt_logprobs=0))


def shown(core: Bench) -> list[type]:
    """What the client was told, in order."""
    return [type(one) for one in core.said if isinstance(one, Scored | Deliver)]


def test_output_that_overtakes_them_is_delivered_behind_them() -> None:
    one = bench()
    assert one.take(Submit)[0].score_prompt
    one.decoding()
    one.output(D0, K1, tokens(0, 3))
    one.output(D0, K1, tokens(3, 7, finish=True))
    assert shown(one) == []
    assert one.take(Abort, P0) == []  # it is needed until they are here
    one.heard(P0, PromptScored(K1, SCORES))
    assert shown(one) == [Scored, Deliver, Deliver]
    assert one.delivered == list(range(10))
    assert one.end is not None
    assert one.core.num_attempts == 0


def test_the_prefill_worker_is_released_when_they_are_here() -> None:
    one = bench()
    one.decoding()
    one.heard(P0, PromptScored(K1, SCORES))
    assert one.take(Abort, P0) == [Abort([K1])]
    one.heard(P0, PromptScored(K1, SCORES))  # a session that was resumed says them again
    assert shown(one) == [Scored]


def test_a_prefill_worker_lost_before_them_is_a_new_attempt_from_the_start() -> None:
    one = bench()
    one.take(Submit)
    one.decoding()
    one.output(D0, K1, tokens(0, 3))
    one.said += one.core.worker_lost(P0, 2.0, crashed=True)
    (again,) = one.take(Submit)
    assert (again.output_ids, again.score_prompt) == ([], True)
    one.heard(P1, Queued(K2), Prefilling(K2, 0), PromptScored(K2, SCORES), Placed(K2, D1))
    one.heard(D1, Joined(K2, (0,), 0))
    one.output(D1, K2, tokens(0, 10, finish=True))
    assert one.delivered == list(range(10))


def test_a_prefill_worker_that_forgot_them_is_not_taken_for_done() -> None:
    for lose in (
        lambda one: one.heard(P0, Failed(K1, FailureCause.UNKNOWN_ATTEMPT)),
        lambda one: (one.beat(P0), one.beat(P0)),
    ):
        one = bench()
        one.take(Submit)
        one.decoding()
        lose(one)
        assert len(one.take(Submit)) == 1


def test_a_later_attempt_need_not_score_the_prompt_again() -> None:
    one = bench()
    one.take(Submit)
    one.heard(P0, PromptScored(K1, SCORES))
    one.decoding()
    one.output(D0, K1, tokens(0, 3))
    one.said += one.core.worker_lost(D0, 2.0, crashed=True)
    (again,) = one.take(Submit)
    assert (again.output_ids, again.score_prompt) == ([0, 1, 2], False)


def test_who_does_not_ask_waits_for_none() -> None:
    one = Bench()
    assert not one.take(Submit)[0].score_prompt
    one.decoding()
    one.output(D0, K1, tokens(0, 10, finish=True))
    assert one.delivered == list(range(10))
