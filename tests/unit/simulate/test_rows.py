"""Sums over decoding rows against counting one by one."""

from hypothesis import given, settings
from hypothesis import strategies as st

from bench.simulate.rows import Row, Rows
from bench.simulate.story import Story
from bench.simulate.trace import Arrival

rows_to_come = st.lists(st.tuples(st.integers(1, 300), st.integers(1, 120), st.integers(0, 40)), max_size=25)


def occupied(row: Row, step: int, extent: int) -> int:
    """By walking: an extent is taken where none is left for the next token."""
    slots = tokens = row.context
    for _ in range(step - row.since):
        slots += extent if tokens == slots else 0
        tokens += 1
    return slots


@settings(max_examples=60, deadline=None)
@given(rows_to_come, st.sets(st.integers(0, 24)), st.sampled_from((1, 7, 32, 50)))
def test_sums_equal_the_rows(coming: list[tuple[int, int, int]], leave_early: set[int], extent: int) -> None:
    rows, live, ended = Rows(extent), [], []
    for number, (context, outputs, wait) in enumerate(coming):
        story = Story(number, Arrival(0.0, context, outputs), 1000)
        row = Row((number, 0), story, context, 0, rows.step)
        rows.add(row)
        live.append(row)
        for _ in range(wait):
            rows.grow()
            for done in rows.advance():
                rows.remove(done)
                live.remove(done)
                ended.append((done.story.number, rows.step - done.since))
        if number in leave_early and row in live:
            rows.remove(row)
            live.remove(row)
        assert len(rows) == len(live)
        assert rows.slots == sum(occupied(row, rows.step, extent) for row in live)
        assert rows.context_tokens == sum(row.context + rows.step - row.since for row in live)
    assert all(steps == coming[number][1] for number, steps in ended)
