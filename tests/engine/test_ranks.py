"""Two tensor parallel ranks over gloo: the same tokens as one rank, whatever a request asks for."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from services.common import ipc
from services.common.request import GrammarKind, GrammarSpec, SamplingParams
from services.engine.agreement import Agreement, RankLostError, Turn
from services.engine.config import ConfigError
from services.engine.notes import GrammarDone
from tests.engine.driver import Driver, engine_config
from tests.engine.process import EngineProcess
from tests.engine.tiny import make_worded_model, prompt_of, reference_greedy

pytestmark = pytest.mark.timeout(300)  # six processes start on what cores there are
NUM_TOKENS = 10


def commands(driver: Driver) -> list[ipc.Admit]:
    eos = driver.engine.ready().eos_token_ids
    greedy = [driver.admit(prompt_of(n), NUM_TOKENS, stop_token_ids=eos) for n in (1, 16, 40)]
    sampled = SamplingParams(temperature=0.9, top_p=0.9, seed=4, frequency_penalty=0.5, num_logprobs=3)
    return [*greedy, driver.admit(prompt_of(12), NUM_TOKENS, sampling=sampled)]


def constrained(driver: Driver) -> list[ipc.Admit]:
    eos = driver.engine.ready().eos_token_ids
    sampling = [
        SamplingParams(temperature=1.0, seed=seed, grammar=GrammarSpec(GrammarKind.REGEX, source))
        for seed, source in enumerate(("(a|b){4,20}", "[a-z ]+", "(("))
    ]
    return [driver.admit(prompt_of(5 + i), NUM_TOKENS, stop_token_ids=eos, sampling=s) for i, s in enumerate(sampling)]


def test_two_ranks_give_the_tokens_of_one(model_of: Any, tmp_path: Path) -> None:  # noqa: ANN401
    folders: dict[str, Path] = {family: model_of(family) for family in ("llama-biased", "qwen3-moe")}
    (tmp_path / "worded").mkdir()
    folders["worded"] = make_worded_model(tmp_path / "worded")
    with ExitStack() as stack:
        engines = {
            family: stack.enter_context(EngineProcess(folder, tmp_path, num_ranks=2, worker_id=family, wait=False))
            for family, folder in folders.items()
        }
        for family, engine in engines.items():
            engine.ready = engine.wait(ipc.EngineReady)
            _compare(engine, folders[family], with_grammars=family == "worded")
            engine.send(ipc.Shutdown())
            assert [process.wait(120) for process in engine.ranks] == [0, 0]


def _compare(engine: EngineProcess, folder: Path, *, with_grammars: bool) -> None:
    alone = Driver(folder)
    wanted = [*commands(alone), *(constrained(alone) if with_grammars else [])]
    alone.run(*wanted, turns=10**6)
    engine.send(*wanted)
    for _ in wanted:
        engine.wait(ipc.Ended)
    for command in wanted:
        assert engine.outputs(command.job_id) == alone.tokens[command.job_id, 0]
    assert _refused(engine.events) == _refused(alone.events)
    assert len(_refused(alone.events)) == with_grammars
    assert engine.outputs(2) == reference_greedy(folder, prompt_of(16), NUM_TOKENS)
    engine.check()


def _refused(events: list[ipc.Event]) -> list[ipc.Event]:
    return [event for event in events if isinstance(event, ipc.GrammarRefused)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_ranks": 2}, "rendezvous"),
        ({"num_ranks": 2, "rank": 2, "rendezvous": "/nowhere"}, "rank is 2; allowed: 0 to 1"),
    ],
)
def test_ranks_that_cannot_be_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        engine_config(Path("/nowhere"), **changes)


def test_all_ranks_hear_all_notes_in_the_same_turn_and_order(tmp_path: Path) -> None:
    ranks = [Agreement(rank, 3, str(tmp_path)) for rank in range(3)]
    try:
        for rank in (2, 1, 0):
            ranks[rank].tell(GrammarDone(rank, None))
        for other in ranks[1:]:
            other.send_notes()
        notes: list[tuple[int, GrammarDone]] = []
        while len(notes) < 3:
            turn = ranks[0].begin([ipc.Abort(7)], 9)
            assert [_next(other) for other in ranks[1:]] == [turn, turn]
            assert (turn.commands, turn.drawn) == ([ipc.Abort(7)], 9)
            notes += turn.notes  # type: ignore[arg-type]
        assert sorted(notes) == [(rank, GrammarDone(rank, None)) for rank in range(3)]
    finally:
        for each in ranks:
            each.close()


def _next(rank: Agreement) -> Turn:
    assert rank.socket is not None
    assert rank.socket.poll(10_000), "no turn came"
    turn = rank.next()
    assert turn is not None
    return turn


def test_a_rank_that_drew_other_tokens_ends(llama: Path, tmp_path: Path) -> None:
    driver = Driver(llama)
    driver.engine._agreement = Agreement(1, 2, str(tmp_path))
    zero = Agreement(0, 2, str(tmp_path))
    zero.begin([], drawn=77)
    turns = driver.engine._agreement.socket
    assert turns is not None
    assert turns.poll(10_000)
    with pytest.raises(RankLostError, match="other tokens"):
        driver.engine.follow()
    for each in (zero, driver.engine._agreement):
        each.close()
