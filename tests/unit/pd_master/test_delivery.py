"""A client's output by index: each token once, cut where a delta overlaps what is known."""

from hypothesis import given
from hypothesis import strategies as st

from services.common.request import Delta, Finish, FinishReason, TokenLogprob
from services.pd_master.delivery import Choice, Fault, merge_all

WORDS = [f"w{index} " for index in range(20)]


def piece(first: int, count: int, *, finish: bool = False) -> Delta:
    """Tokens [first, first + count) of one fixed output."""
    tokens = list(range(first, first + count))
    words = WORDS[first : first + count]
    end = Finish(FinishReason.LENGTH, first + count) if finish else None
    logprobs = [TokenLogprob(token, -1.0) for token in tokens]
    return Delta(0, first, tokens, "".join(words), logprobs, end, tuple(len(word) for word in words))


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=30))
def test_any_overlapping_deltas_give_each_token_and_its_text_once(spans: list[tuple[int, int]]) -> None:
    choice, text = Choice(0), ""
    ids: list[int] = []
    for start, end in [*spans, *((index, index + 1) for index in range(20))]:
        taken = choice.take(piece(start, max(end - start, 0)))
        if isinstance(taken, Delta):
            assert taken.first_index == len(ids)
            assert taken.logprobs is not None
            assert [one.token_id for one in taken.logprobs] == taken.token_ids
            ids += taken.token_ids
            text += taken.text
    assert ids == list(range(20))
    assert text == "".join(WORDS)


def test_delta_beyond_a_gap_is_not_taken() -> None:
    choice = Choice(0)
    assert choice.take(piece(1, 1)) is Fault.GAP
    assert choice.output_ids == []


def test_overlap_with_other_tokens_is_a_fault_and_changes_nothing() -> None:
    choice = Choice(0)
    choice.take(piece(0, 3))
    assert choice.take(Delta(0, 2, [99, 3], "xx", text_lengths=(1, 1))) is Fault.DIVERGED
    assert choice.output_ids == [0, 1, 2]


def test_finish_takes_effect_only_with_all_the_tokens_it_counts() -> None:
    choice = Choice(0)
    early = Delta(0, 0, [0], "w0 ", finish=Finish(FinishReason.STOP, 2), text_lengths=(3,))
    assert choice.take(early) is Fault.GAP
    assert not choice.is_finished
    assert choice.take(piece(0, 2, finish=True)) is not None
    assert choice.is_finished


def test_repeated_finish_of_known_tokens_still_ends_the_choice() -> None:
    choice = Choice(0)
    choice.take(piece(0, 2))
    taken = choice.take(piece(0, 2, finish=True))
    assert isinstance(taken, Delta)
    assert (taken.token_ids, taken.text) == ([], "")
    assert choice.is_finished


def test_text_beyond_the_tokens_goes_with_the_finish() -> None:
    choice = Choice(0)
    choice.take(piece(0, 1))
    last = Delta(0, 0, [0], "w0 held", finish=Finish(FinishReason.LENGTH, 1), text_lengths=(3,))
    taken = choice.take(last)
    assert isinstance(taken, Delta)
    assert taken.text == "held"


def test_nothing_comes_after_the_finish() -> None:
    choice = Choice(0)
    choice.take(piece(0, 2, finish=True))
    assert choice.take(piece(2, 1)) is None


def test_merged_deltas_equal_one_delta_of_all_their_tokens() -> None:
    assert merge_all([piece(0, 2), piece(2, 1), piece(3, 2, finish=True)]) == piece(0, 5, finish=True)
