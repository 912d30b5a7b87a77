"""Keys' limits: buckets that refill, and refusals that say when to come back."""

import pytest

from services.pd_master.allowance import Allowances, Limits, RateLimitedError


def test_requests_beyond_the_limit_wait_for_their_place() -> None:
    allowances = Allowances({"alice": Limits(requests_per_minute=2)}, now=0.0)
    for _ in range(2):
        allowances.admit("alice", 10, now=0.0)
    with pytest.raises(RateLimitedError, match="requests") as refused:
        allowances.admit("alice", 10, now=0.0)
    assert refused.value.retry_after_s == pytest.approx(30.0)
    allowances.admit("alice", 10, now=30.0)


def test_a_long_answer_overdraws_and_is_waited_for() -> None:
    allowances = Allowances({"alice": Limits(tokens_per_minute=60)}, now=0.0)
    allowances.admit("alice", 20, now=0.0)
    allowances.used("alice", 100)
    with pytest.raises(RateLimitedError, match="tokens") as refused:
        allowances.admit("alice", 1, now=0.0)
    assert refused.value.retry_after_s == pytest.approx(61.0)
    allowances.admit("alice", 1, now=61.0)


def test_a_refusal_takes_nothing() -> None:
    allowances = Allowances({"alice": Limits(requests_per_minute=60, tokens_per_minute=10)}, now=0.0)
    allowances.admit("alice", 10, now=0.0)
    for _ in range(100):
        with pytest.raises(RateLimitedError):
            allowances.admit("alice", 1, now=0.0)
    allowances.admit("alice", 1, now=60.0)


def test_an_idle_key_saves_up_one_minute_at_most() -> None:
    allowances = Allowances({"alice": Limits(requests_per_minute=1)}, now=0.0)
    allowances.admit("alice", 1, now=1e6)
    with pytest.raises(RateLimitedError):
        allowances.admit("alice", 1, now=1e6)


def test_others_have_no_limit() -> None:
    allowances = Allowances({"alice": Limits(requests_per_minute=1)}, now=0.0)
    for _ in range(1000):
        allowances.admit("bob", 10**6, now=0.0)
        allowances.used("bob", 10**6)


def test_what_found_no_worker_is_given_back_and_no_more_than_a_minute_is_held() -> None:
    allowances = Allowances({"alice": Limits(requests_per_minute=1, tokens_per_minute=10)}, now=0.0)
    for _ in range(3):
        allowances.admit("alice", 50, now=0.0)
        allowances.give_back("alice", 50)
    allowances.admit("alice", 10, now=60.0)
    with pytest.raises(RateLimitedError):
        allowances.admit("alice", 1, now=60.0)


def test_shares_of_a_limit_add_up_to_it_and_are_never_nothing() -> None:
    assert Limits(60, 1000).divided(4) == Limits(15, 250)
    assert Limits(1, None).divided(4) == Limits(1, None)
