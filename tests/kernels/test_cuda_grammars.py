"""Outputs under grammars on the cuda backend, where the device waits for masks that the host makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from services.common.request import FinishReason, GrammarKind, GrammarSpec, SamplingParams
from services.common.text import Vocabulary
from services.engine.backends.cuda import runner, sampler
from services.engine.backends.cuda.clock import Mark
from services.engine.matcher import Matcher
from tests.engine.driver import Driver
from tests.engine.tiny import make_worded_model, reference_greedy
from tests.kernels.conftest import HAS_CARD, Engines

TOKENS = 5 if HAS_CARD else 3  # interpreted steps take seconds


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_CARD, reason="needs a CUDA device: interpreted, a grammar's steps take minutes")
def test_grammars_bind_as_on_the_cpu_and_leave_rows_beside_alone(engine: Engines, tmp_path: Path) -> None:
    folder = make_worded_model(tmp_path)
    bound = [
        SamplingParams(seed=1, grammar=GrammarSpec(GrammarKind.REGEX, r"[ab]{3}-[0-9]{2}!")),
        SamplingParams(temperature=0.0, grammar=GrammarSpec(GrammarKind.EBNF, 'root ::= "left" | "right"')),
        SamplingParams(seed=2, grammar=GrammarSpec(GrammarKind.REGEX, "[xyz]{12}")),
    ]
    free = [SamplingParams(temperature=0.0), SamplingParams(temperature=0.9, top_p=0.8, seed=5)]
    runs = []
    for driver in (Driver(folder, backend="cpu"), engine(folder)):
        eos = driver.engine.ready().eos_token_ids
        driver.turn(*(driver.admit((5, 6, 7, 8), 20, sampling=each, stop_token_ids=eos) for each in bound + free))
        while driver.engine.has_work:  # with the patience that compiling a grammar takes
            driver.turn()
        runs.append(dict(driver.tokens))
        driver.check()
    assert runs[0] == runs[1]
    assert all(driver.finishes[job, 0] is FinishReason.STOP for job in range(1, 1 + len(bound)))


def test_rows_under_a_grammar_keep_to_it_and_others_are_not_touched(
    engine: Engines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And each step is launched whole while the token before is not told yet: it is the device that waits for masks."""
    folder = make_worded_model(tmp_path)
    driver = engine(folder, max_running_requests=2)
    told: list[int] = []

    def draws(given: sampler.Draws, *rest: Any) -> object:
        if given.direct_masks is not None:
            told.append(len(driver.tokens.get((bound.job_id, 0), ())))
        return sampler.launch_draws(given, *rest)

    monkeypatch.setattr(runner, "launch_draws", draws)
    grammar = GrammarSpec(GrammarKind.REGEX, "[xyz]{9}")
    bound = driver.admit((5, 6, 7), TOKENS, sampling=SamplingParams(seed=1, grammar=grammar))
    free = driver.admit((8, 9), TOKENS)
    driver.turn(free, bound)
    while driver.engine.has_work:
        driver.turn()
    pieces = Vocabulary.load(folder).visible_pieces
    assert pieces is not None
    text = b"".join(pieces[token] for token in driver.tokens[bound.job_id, 0]).decode()
    assert len(driver.tokens[bound.job_id, 0]) == TOKENS
    assert told == [0, *range(TOKENS - 1)]
    assert set(text) <= set("xyz")
    assert driver.tokens[free.job_id, 0] == reference_greedy(folder, (8, 9), TOKENS)
    driver.check()


def test_an_error_in_making_masks_ends_the_engine_and_holds_up_no_device(
    engine: Engines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no grammar knows this token")

    monkeypatch.setattr(Matcher, "took", broken)
    driver = engine(make_worded_model(tmp_path), max_running_requests=1)
    grammar = GrammarSpec(GrammarKind.REGEX, "[xyz]{9}")
    driver.turn(driver.admit((5, 6, 7), TOKENS, sampling=SamplingParams(seed=1, grammar=grammar)))

    def rest() -> None:
        while driver.engine.has_work:
            driver.turn()

    with pytest.raises(RuntimeError, match="no grammar knows"):
        rest()
    Mark(driver.engine._runner.backend.device).wait()
