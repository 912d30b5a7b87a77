"""KV between engines of one and two ranks, in real processes: the tokens of one model, and nothing left on any rank."""

import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from services.common import ipc
from services.common.request import GrammarKind, GrammarSpec, SamplingParams
from tests.engine.pair import PAGES, Pair
from tests.engine.process import EngineProcess
from tests.engine.tiny import make_worded_model, prompt_of, reference_greedy

pytestmark = pytest.mark.timeout(300)  # six processes start on what cores there are
RANKS = (1, 2)
PAIRS = [(2, 2), (1, 2), (2, 1)]
WORDS = 120
"""Ids below this are tokens of the model's vocabulary."""


@pytest.fixture(scope="module")
def worded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_worded_model(tmp_path_factory.mktemp("worded"))


@pytest.fixture(scope="module")
def pairs(worded: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[tuple[int, int], Pair]]:
    """By ranks of the prefill and of the decode engine; each engine is in two pairs."""
    folder = tmp_path_factory.mktemp("ranks")
    with ExitStack() as stack:
        engines = {
            (role, ranks): stack.enter_context(
                EngineProcess(
                    worded, folder, role=role, transfer=PAGES, num_ranks=ranks, worker_id=f"{role}-{ranks}", wait=False
                )
            )
            for role, ranks in itertools.product(("prefill", "decode"), RANKS)
        }
        for engine in engines.values():
            engine.ready = engine.wait(ipc.EngineReady)
        made = {}
        for number, (prefill, decode) in enumerate(PAIRS):
            pair = made[prefill, decode] = Pair(engines["prefill", prefill], engines["decode", decode], 1000 * number)
            assert len(pair.decode.ready.transfer_ports) == decode
            pair.connect()
        yield made


def run(pair: Pair, admit: ipc.Admit) -> list[int]:
    """Through prefill, transfer and decode; all the tokens."""
    pair.prefill.send(admit)
    pair.place(admit, pair.reserve(admit).cached_tokens)
    first = pair.first_tokens(admit)
    pair.join(admit, first)
    pair.finish(admit)
    return [first[0], *pair.decode.outputs(admit.job_id)]


def words(length: int, seed: int) -> tuple[int, ...]:
    return tuple(token % WORDS for token in prompt_of(length, seed=seed))


@pytest.mark.parametrize("ranks", PAIRS)
def test_heads_split_or_joined_on_the_way_give_the_same_tokens(
    pairs: dict[tuple[int, int], Pair], worded: Path, ranks: tuple[int, int]
) -> None:
    pair = pairs[ranks]
    for length in (1, 17, 100):
        prompt = words(length, seed=length)
        assert run(pair, pair.admit(prompt, 10)) == reference_greedy(worded, prompt, 10)
    again = pair.admit(words(100, seed=100), 10)
    pair.prefill.send(again)
    assert pair.reserve(again).cached_tokens >= 100, "every rank holds the prefix"
    for engine in (pair.prefill, pair.decode):
        engine.send(ipc.Abort(again.job_id))
        engine.wait(ipc.Ended, lambda event: event.job_id == again.job_id)
    pair.check()


@pytest.mark.parametrize("ranks", PAIRS)
def test_an_abort_in_the_middle_of_a_transfer_leaves_nothing_on_any_rank(
    pairs: dict[tuple[int, int], Pair], ranks: tuple[int, int]
) -> None:
    pair = pairs[ranks]
    admit = pair.admit(words(200, seed=3), 9)
    pair.prefill.send(admit)
    pair.place(admit, pair.reserve(admit).cached_tokens)
    pair.prefill.wait(ipc.StepDone)
    pair.abort_on_both(admit)
    pair.check()


def test_kv_that_nobody_reserved_fails_once_and_stays_held(pairs: dict[tuple[int, int], Pair]) -> None:
    pair = pairs[2, 2]
    admit = pair.admit(words(60, seed=4), 9)
    pair.fails_unreserved(admit)
    pair.check()


def test_a_grammar_with_logprobs_goes_on_where_the_ranks_are_others(pairs: dict[tuple[int, int], Pair]) -> None:
    sampling = SamplingParams(
        temperature=1.0, seed=5, num_logprobs=2, grammar=GrammarSpec(GrammarKind.REGEX, "(a|b){20}")
    )
    answers = []
    for pair in (pairs[2, 2], pairs[2, 1]):
        admit = pair.admit(words(20, seed=6), 8, sampling=sampling)
        answers.append(run(pair, admit))
        steps = [event for event in pair.decode.events if isinstance(event, ipc.StepDone)]
        told = [output.logprobs for step in steps for output in step.outputs if output.job_id == admit.job_id]
        assert all(logprobs is not None and len(logprobs[0].top) == 2 for logprobs in told)
        pair.check()
    assert answers[0] == answers[1]
    assert len(answers[0]) == 8


def test_a_pair_that_was_closed_is_proven_again(
    pairs: dict[tuple[int, int], Pair],
) -> None:
    pair = pairs[2, 2]
    pair.prefill.send(ipc.DropPeer(pair.decode.config.worker_id))
    assert pair.prefill.wait(ipc.PeerLost).peer_id == pair.decode.config.worker_id
    pair.connect()
    pair.check()
