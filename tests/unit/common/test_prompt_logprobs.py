"""A prompt's log-probabilities, put together from their chunks."""

from services.common.prompt_logprobs import PromptLogprobs, PromptScores


def chunk(first: int, end: int) -> PromptLogprobs:
    """Of the prompt tokens from position `first` to before `end`, with one alternative each."""
    packed = b"".join(position.to_bytes(4, "little") for position in range(first, end))
    return PromptLogprobs(first, 1, packed, packed, packed, packed)


def test_chunks_that_come_again_are_left_out_and_the_whole_is_joined_once() -> None:
    scores = PromptScores(9, 1)
    for first, end in ((1, 4), (1, 6), (6, 9)):
        assert not scores.is_complete
        scores.take(chunk(first, end))
    assert scores.whole() == chunk(1, 9)
    assert scores.whole() is scores.whole(), "held twice"


def test_a_prompt_of_one_token_has_an_empty_whole() -> None:
    assert PromptScores(1, 1).whole() == chunk(1, 1)
