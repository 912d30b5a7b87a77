"""The search for the highest rate that keeps its bounds, and the loads it plays."""

import math
from dataclasses import replace

import pytest
from tokenizers import Tokenizer

from bench.goodput.bounds import Bounds, highest_rate
from bench.goodput.load import poisson
from bench.goodput.model import CONFIG, write_model
from bench.simulate.figures import Figures

GOOD = Figures(1.0, 1.0, 1.0, [0.1] * 3, [0.01] * 3, [0.01] * 3, [1.0] * 3, 1.0, 1, 0.0, 0.0, 0, math.nan, math.nan)
BOUNDS = Bounds(ttft_s=1.0, itl_s=0.02)


def test_search_comes_within_a_step_of_the_knee_and_asks_no_more_than_it_may() -> None:
    asked: list[float] = []

    def measure(rate: float) -> Figures:
        asked.append(rate)
        return GOOD if rate <= 23.0 else replace(GOOD, itl_s=[0.01, 0.01, 0.03])

    found = highest_rate(measure, BOUNDS, 2.0, 34.0, 6)
    assert 21.0 <= found <= 23.0
    assert len(asked) <= 6


def test_search_tells_when_no_rate_or_every_rate_keeps_the_bounds() -> None:
    assert highest_rate(lambda _: replace(GOOD, ttft_s=[0.1, 0.1, 2.0]), BOUNDS, 2.0, 34.0, 6) == 0.0
    assert highest_rate(lambda _: GOOD, BOUNDS, 2.0, 34.0, 6) == 34.0


def test_a_run_that_refused_somebody_keeps_no_bounds() -> None:
    assert BOUNDS.kept_by(GOOD)
    assert not BOUNDS.kept_by(replace(GOOD, refused_share=0.001))


def test_bounds_are_read_and_said() -> None:
    assert Bounds.parse("ttft=1,itl=0.02") == BOUNDS
    assert str(BOUNDS) == "TTFT p99 <= 1000 ms, ITL p99 <= 20 ms"
    for wrong in ("itl=0.02", "ttft=1,other=2", "ttft=1,junk"):
        with pytest.raises(ValueError, match="bounds are ttft=SECONDS"):
            Bounds.parse(wrong)


def test_poisson_load_has_its_rate_and_the_same_pattern_at_every_rate() -> None:
    slow, fast = poisson(100, 10, 5.0, 400.0), poisson(100, 10, 10.0, 200.0)
    assert len(slow) == len(fast) == 2000
    assert slow[-1].at_s == pytest.approx(400.0, rel=0.1)
    assert [one.at_s for one in fast] == pytest.approx([one.at_s / 2 for one in slow])


def test_stand_in_tokenizer_has_the_models_vocabulary(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = write_model(tmp_path_factory.mktemp("shape"))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == CONFIG["vocab_size"]
    assert all(tokenizer.decode([number]) for number in range(0, 128256, 997))
