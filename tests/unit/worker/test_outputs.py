"""One choice's log: stop conditions of both kinds, resumption from any index, replay."""

import functools
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from services.common.ipc import SequenceOutput
from services.common.request import Delta, FinishReason, Request, SamplingParams, StopParams, TextParams, TokenLogprob
from services.common.text import Vocabulary
from services.worker.outputs import ChoiceOutput, Taken

DEMO = Path("~/.cache/sluice/models/smollm2-135m-instruct").expanduser()
EOS = 2

pytestmark = pytest.mark.demo_model


@functools.cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(DEMO / "tokenizer.json"))


@functools.cache
def vocabulary() -> Vocabulary:
    return Vocabulary(tokenizer())


def ids(text: str) -> list[int]:
    encoded: list[int] = tokenizer().encode(text).ids
    return encoded


def output(
    *stops: str, before: str = "", include: bool = False, num_logprobs: int | None = None, stop_id: int = 7,
    include_eos: bool = False, skip_special: bool = True,
) -> ChoiceOutput:  # fmt: skip
    stop = StopParams(
        max_new_tokens=99, stop_strings=stops, include_stop_string=include, stop_token_ids=(stop_id,),
        include_eos=include_eos,
    )  # fmt: skip
    text = TextParams(skip_special_tokens=skip_special)
    request = Request("ab" * 16, "m", [1], SamplingParams(num_logprobs=num_logprobs), stop, text)
    return ChoiceOutput(vocabulary(), request, 0, ids(before), (EOS,))


def step(
    index: int, tokens: list[int], finish: FinishReason | None = None, stop_id: int | None = None
) -> SequenceOutput:
    return SequenceOutput(1, 0, index, tokens, None, finish, stop_id)


def whole(log: ChoiceOutput) -> Delta:
    delta = log.since(0)
    assert delta is not None
    return delta


@pytest.mark.parametrize(
    ("include_eos", "skip_special", "shown"),
    [(True, False, "Hi<|im_end|>"), (True, True, "Hi"), (False, False, "Hi")],
)
def test_the_models_own_end_is_shown_where_it_and_special_tokens_are_asked_for(
    include_eos: bool, skip_special: bool, shown: str
) -> None:
    log = output(include_eos=include_eos, skip_special=skip_special)
    tokens = ids("Hi")
    log.take(step(0, [*tokens, EOS], FinishReason.STOP, EOS))
    assert whole(log).text == shown
    assert whole(log).token_ids == [*tokens, EOS]
    other = output(include_eos=include_eos, skip_special=skip_special)
    other.take(step(0, [*tokens, 7], FinishReason.STOP, 7))  # an id that the request stops at is not the model's end
    assert whole(other).text == "Hi"


def test_end_of_sequence_token_counts_and_shows_nothing() -> None:
    log = output()
    tokens = ids("Hello there")
    assert log.take(step(0, tokens)) is Taken.GOES_ON
    assert log.take(step(len(tokens), [EOS], FinishReason.STOP, EOS)) is Taken.ENDED
    delta = whole(log)
    assert delta.text == "Hello there"
    assert delta.finish is not None
    assert (delta.finish.num_output_tokens, delta.finish.stop_reason) == (len(tokens) + 1, None)
    assert sum(delta.text_lengths) == len(delta.text)
    assert len(delta.text_lengths) == len(delta.token_ids) == len(tokens) + 1


@pytest.mark.parametrize("include", [False, True])
def test_stop_token_of_the_request_is_named_and_shown_only_when_asked(include: bool) -> None:
    (stop_id,) = ids("!")
    log = output(include=include, stop_id=stop_id)
    log.take(step(0, ids("Hello")))
    log.take(step(1, [stop_id], FinishReason.STOP, stop_id))
    delta = whole(log)
    assert delta.finish is not None
    assert delta.finish.stop_reason == stop_id
    assert delta.text == ("Hello!" if include else "Hello")


def test_stop_string_cuts_what_came_after_it_in_the_same_step() -> None:
    log = output("END")
    tokens = ids("one END two three")
    assert log.take(step(0, tokens)) is Taken.CUT
    delta = whole(log)
    assert delta.text == "one "
    assert delta.finish is not None
    assert delta.finish.stop_reason == "END"
    assert tokenizer().decode(delta.token_ids) == "one END"
    assert log.take(step(len(tokens), [5])) is None


def test_stop_string_in_the_last_token_wins_over_the_length() -> None:
    log = output("END")
    assert log.take(step(0, ids("one END"), FinishReason.LENGTH)) is Taken.ENDED
    finish = whole(log).finish
    assert finish is not None
    assert (finish.reason, finish.stop_reason) == (FinishReason.STOP, "END")


def test_held_back_text_comes_with_the_finish_even_alone() -> None:
    log = output("ENDING")
    tokens = ids("one END")
    log.take(step(0, tokens, FinishReason.LENGTH))
    delta = whole(log)
    assert delta.text == "one END"
    assert sum(delta.text_lengths) == len("one ")
    alone = log.since(len(tokens))
    assert alone is not None
    assert (alone.token_ids, alone.text, alone.first_index, alone.finish) == ([], "END", len(tokens), delta.finish)


def test_deltas_from_any_index_add_up() -> None:
    log = output()
    tokens = ids("Grüße, 你好 🙂 and more")
    for index, token in enumerate(tokens):
        log.take(step(index, [token]))
    everything = whole(log)
    for cut in range(len(tokens)):
        rest = log.since(cut)
        assert rest is not None
        assert rest.token_ids == tokens[cut:]
        assert everything.text[: sum(everything.text_lengths[:cut])] + rest.text == everything.text
    assert log.since(len(tokens)) is None


def test_replayed_output_continues_inside_a_stop_string() -> None:
    before, rest = "one EN", "D"
    log = output("END", before=before)
    start = len(ids(before))
    assert log.take(step(start, ids(rest))) is Taken.CUT
    delta = whole(log)
    assert (delta.first_index, delta.text) == (start, "")
    assert delta.finish is not None
    assert delta.finish.num_output_tokens == start + 1


def test_repeated_tokens_are_taken_once() -> None:
    log = output()
    log.take(step(0, [10, 11]))
    assert log.take(step(0, [10, 11])) is None
    assert log.take(step(1, [11, 12])) is Taken.GOES_ON
    assert whole(log).token_ids == [10, 11, 12]


def test_logprobs_are_cut_with_the_tokens() -> None:
    log = output("END", num_logprobs=0)
    tokens = ids("one END two")
    logprobs = [TokenLogprob(token, -0.5) for token in tokens]
    log.take(SequenceOutput(1, 0, 0, tokens, logprobs))
    delta = whole(log)
    assert delta.logprobs is not None
    assert [entry.token_id for entry in delta.logprobs] == delta.token_ids
