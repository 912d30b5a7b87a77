"""The detokenizer and the stop strings against the tokenizer's own one-shot decode, with the real demo tokenizer."""

import functools
import itertools
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from services.common.request import StopParams, TextParams
from services.common.text import TextStream, Vocabulary

DEMO = Path("~/.cache/sluice/models/smollm2-135m-instruct").expanduser()
TEXTS = [
    "Hello, world! ",
    "Grüße aus Köln – ",
    "你好，世界。",
    "مرحبا بالعالم ",
    "🙂👩‍👩‍👧‍👦🇩🇪 ",
    "def f(x):\n    return x\n",
    "END",
    "STOP\n\n",
]

pytestmark = pytest.mark.demo_model


@functools.cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(DEMO / "tokenizer.json"))


@functools.cache
def vocabulary() -> Vocabulary:
    return Vocabulary(tokenizer())


def stream(*stops: str, include: bool = False, min_new_tokens: int = 0, skip_special: bool = True) -> TextStream:
    stop = StopParams(max_new_tokens=1, stop_strings=stops, include_stop_string=include, min_new_tokens=min_new_tokens)
    return TextStream(vocabulary(), stop, TextParams(skip_special_tokens=skip_special))


def one_by_one(text: TextStream, ids: list[int]) -> list[str]:
    return [*(text.push([token]) for token in ids), text.close()]


random_ids = st.lists(st.integers(0, 49151), max_size=40)
real_ids = st.lists(st.sampled_from(TEXTS), max_size=8).map(lambda parts: tokenizer().encode("".join(parts)).ids)
any_ids = st.one_of(random_ids, real_ids, st.tuples(real_ids, random_ids).map(lambda two: two[0] + two[1]))
stop_strings = st.lists(
    st.one_of(
        st.text(alphabet="END STOP\nöé好🙂世", min_size=1, max_size=5), st.sampled_from(["END", "\n\n", "ND", "E"])
    ),
    min_size=1,
    max_size=4,
)


@given(ids=any_ids, skip_special=st.booleans())
@settings(max_examples=300, deadline=None)
def test_deltas_add_up_to_the_one_shot_text(ids: list[int], skip_special: bool) -> None:
    pieces = one_by_one(stream(skip_special=skip_special), ids)
    assert "".join(pieces) == tokenizer().decode(ids, skip_special_tokens=skip_special)


@given(ids=real_ids)
@settings(max_examples=200, deadline=None)
def test_no_delta_holds_a_part_of_a_character(ids: list[int]) -> None:
    pieces = one_by_one(stream(), ids)
    assert not any("\ufffd" in piece for piece in pieces)


@given(ids=any_ids, stops=stop_strings, include=st.booleans())
@settings(max_examples=300, deadline=None)
def test_stop_string_cuts_the_text_at_the_match_that_ends_first(
    ids: list[int], stops: list[str], include: bool
) -> None:
    text = stream(*stops, include=include)
    shown = "".join(one_by_one(text, ids))
    whole = tokenizer().decode(ids, skip_special_tokens=True)
    matches = sorted((whole.find(stop) + len(stop), whole.find(stop), stop) for stop in stops if stop in whole)
    if not matches or matches[0][2].endswith("\ufffd"):
        assert text.match is None or text.match.stop_string in whole
        return
    end, start, stop = matches[0]
    assert text.match is not None
    assert text.match.stop_string == stop
    assert shown == whole[: end if include else start]


@given(ids=any_ids, stops=stop_strings, cuts=st.lists(st.integers(0, 60), max_size=4))
@settings(max_examples=200, deadline=None)
def test_result_does_not_depend_on_how_the_ids_arrive(ids: list[int], stops: list[str], cuts: list[int]) -> None:
    single, batched = stream(*stops), stream(*stops)
    expected = "".join(one_by_one(single, ids))
    bounds = [0, *sorted(cut for cut in cuts if cut < len(ids)), len(ids)]
    got = "".join(batched.push(ids[a:b]) for a, b in itertools.pairwise(bounds)) + batched.close()
    assert got == expected
    assert batched.match == single.match


@given(ids=real_ids, stops=stop_strings, at=st.integers(0, 30))
@settings(max_examples=100, deadline=None)
def test_silent_replay_continues_as_the_old_stream_would_have(ids: list[int], stops: list[str], at: int) -> None:
    old, new = stream(*stops), stream(*stops)
    old.push(ids[:at])
    new.push(ids[:at])
    assert one_by_one(new, ids[at:]) == one_by_one(old, ids[at:])


def test_match_counts_the_token_that_completes_it() -> None:
    ids = tokenizer().encode("one two END three").ids
    text = stream("END")
    text.push(ids)
    assert text.match is not None
    assert tokenizer().decode(ids[: text.match.num_output_tokens]) == "one two END"


def test_text_that_may_begin_a_stop_string_is_held_back_and_given_at_the_end() -> None:
    text = stream("wor\n\nld")
    assert text.push(tokenizer().encode("hello wor").ids) == "hello "
    assert text.close() == "wor"


def test_stop_string_within_min_new_tokens_does_not_count() -> None:
    ids = tokenizer().encode("a a a a").ids
    text = stream("a", min_new_tokens=3)
    text.push(ids)
    assert text.match is not None
    assert text.match.num_output_tokens == 3


def test_incomplete_character_at_the_end_is_one_replacement() -> None:
    ids = tokenizer().encode("🙂").ids
    assert len(ids) > 1
    text = stream()
    assert [text.push([token]) for token in ids[:-1]] == [""] * (len(ids) - 1)
    assert text.close() == "\ufffd"


def test_sentence_piece_tokens_keep_their_leading_space_and_join_their_bytes() -> None:
    names = {"<unk>": 0, "▁Hi": 1, "▁there": 2, "<0xC3>": 3, "<0xA9>": 4}
    piece = Tokenizer(models.WordLevel(names, unk_token="<unk>"))
    piece.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    text = TextStream(Vocabulary(piece), StopParams(max_new_tokens=9), TextParams())
    assert one_by_one(text, [1, 2, 3, 4]) == [" Hi", " there", "", "é", ""]


@pytest.mark.parametrize(("spaces", "expected"), [(True, "[A] [A] hello"), (False, "[A][A]hello")])
def test_spaces_between_special_tokens_are_kept_only_when_asked(spaces: bool, expected: str) -> None:
    word = Tokenizer(models.WordLevel({"[U]": 0, "hello": 1}, unk_token="[U]"))
    word.add_special_tokens(["[A]"])
    params = TextParams(skip_special_tokens=False, spaces_between_special_tokens=spaces)
    text = TextStream(Vocabulary(word), StopParams(max_new_tokens=9), params)
    assert "".join(one_by_one(text, [2, 2, 1])) == expected


def test_ids_beyond_the_vocabulary_have_no_text() -> None:
    assert "".join(one_by_one(stream(), [999_999])) == ""


def test_a_token_costs_microseconds() -> None:
    ids = tokenizer().encode("The quick brown fox jumps over the lazy dog. " * 200).ids
    texts = [stream(), stream("END", "\n\nHuman:")]
    for text in texts:
        start = time.process_time()
        for token in ids:
            text.push([token])
        assert (time.process_time() - start) / len(
            ids
        ) < 50e-6  # measured 0.6 and 3; the bound only catches another order
