"""Two tensor parallel ranks over gloo: the same greedy and sampled tokens as one rank."""

import multiprocessing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from services.common import ipc
from services.common.request import GrammarKind, GrammarSpec, SamplingParams
from services.engine.config import ConfigError
from tests.engine.driver import Driver, engine_config
from tests.engine.tiny import EOS, prompt_of, reference_greedy

NUM_TOKENS = 10


def _commands(driver: Driver) -> list[ipc.Command]:
    greedy = [driver.admit(prompt_of(n), NUM_TOKENS, stop_token_ids=(EOS,)) for n in (1, 16, 40)]
    return [*greedy, driver.admit(prompt_of(12), NUM_TOKENS, sampling=SamplingParams(temperature=0.9, seed=4))]


def _constrained(driver: Driver) -> ipc.Admit:
    grammar = GrammarSpec(GrammarKind.REGEX, "a+")
    return driver.admit(prompt_of(5), NUM_TOKENS, sampling=SamplingParams(grammar=grammar))


def _run_rank(rank: int, folder: Path, rendezvous: str, pipe: Connection) -> None:
    driver = Driver(folder, num_ranks=2, rank=rank, rendezvous=rendezvous)
    ranks = driver.engine.ranks
    driver.turn(*ranks.share(_commands(driver) if rank == 0 else []))
    while driver.engine.has_work:
        driver.turn(*ranks.share([]))
    driver.check()
    tokens = [driver.tokens[key] for key in sorted(driver.tokens)]
    driver.turn(*ranks.share([_constrained(driver)] if rank == 0 else []))
    pipe.send((tokens, [refused.message for refused in driver.said(ipc.GrammarRefused)]))
    ranks.close()


@pytest.mark.parametrize("family", ["llama-biased", "qwen3-moe"])
def test_two_ranks_give_the_tokens_of_one(family: str, model_of: Any, tmp_path: Path) -> None:  # noqa: ANN401
    folder: Path = model_of(family)
    alone = Driver(folder)
    alone.run(*_commands(alone))
    context = multiprocessing.get_context("spawn")
    ends, processes = [], []
    for rank in range(2):
        near, far = context.Pipe()
        process = context.Process(target=_run_rank, args=(rank, folder, f"file://{tmp_path}/meet", far), daemon=True)
        process.start()
        ends.append(near)
        processes.append(process)
    outputs = []
    for near in ends:
        assert near.poll(90), "a rank does not answer"
        outputs.append(near.recv())
    for process in processes:
        process.join(30)
    expected = [alone.tokens[key] for key in sorted(alone.tokens)]
    assert outputs == [(expected, ["grammars need an engine of one rank"])] * 2
    assert expected[:3] == [reference_greedy(folder, prompt_of(n), NUM_TOKENS) for n in (1, 16, 40)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_ranks": 2}, "rendezvous"),
        ({"num_ranks": 2, "rank": 2, "rendezvous": "file:///nowhere"}, "rank is 2; allowed: 0 to 1"),
        ({"num_ranks": 2, "rendezvous": "file:///nowhere", "role": "decode"}, "role 'mixed'"),
    ],
)
def test_ranks_that_cannot_be_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        engine_config(Path("/nowhere"), **changes)
