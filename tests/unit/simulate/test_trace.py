"""Traces as they are read."""

from pathlib import Path

import pytest

from bench.simulate.trace import Arrival, lengthened, mean_rate, read_trace, scaled

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
"""
MOONCAKE = """{"timestamp": 500, "input_length": 600, "output_length": 0, "hash_ids": [0, 1]}
{"timestamp": 2500, "input_length": 700, "output_length": 9, "hash_ids": [0, 2]}
"""


def test_azure_counts_from_the_first_arrival(tmp_path: Path) -> None:
    path = tmp_path / "conv.csv"
    path.write_text(AZURE)
    first, second = read_trace(path)
    assert (first.at_s, first.prompt_tokens, first.output_tokens) == (0.0, 374, 44)
    assert second.at_s == pytest.approx(4.314579)


def test_mooncake_keeps_blocks_and_gives_each_at_least_one_token(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(MOONCAKE)
    assert read_trace(path) == [Arrival(0.0, 600, 1, (0, 1)), Arrival(2.0, 700, 9, (0, 2))]
    assert len(read_trace(path, limit=1)) == 1


def test_line_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "conv.csv"
    path.write_text(AZURE + "2023-11-16 18:15:51.0000000,many,1\n")
    with pytest.raises(ValueError, match="arrival 3"):
        read_trace(path)


def test_scaling_changes_the_rate_and_nothing_else() -> None:
    arrivals = [Arrival(at, 10, 5) for at in (0.0, 1.0, 4.0)]
    faster = scaled(arrivals, 2 * mean_rate(arrivals))
    assert [one.at_s for one in faster] == [0.0, 0.5, 2.0]
    with pytest.raises(ValueError, match="two moments"):
        scaled(arrivals[:1], 1.0)


def test_longer_outputs_leave_the_rest_as_it_was() -> None:
    assert lengthened([Arrival(1.0, 10, 5, (7,))], 8) == [Arrival(1.0, 10, 40, (7,))]
