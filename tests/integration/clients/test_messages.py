"""Anthropic's client: text, events, stops, counts, structured output, thoughts, errors."""

from typing import Any, Literal

import anthropic
import pydantic
import pytest

from tests.integration.clients.conftest import ASK, GREEDY, Client
from tests.integration.clients.test_chat import ANSWER


class Kind(pydantic.BaseModel):
    """Bounded without lengths, which this client does not send: it checks them itself afterwards."""

    kind: Literal["city", "river"]
    is_large: bool


def test_a_message_streams_as_it_is_answered_whole(claude: Client, demo: str) -> None:
    whole = claude.messages.create(model=demo, max_tokens=20, messages=ASK, extra_body=GREEDY)
    assert [block.text for block in whole.content] == [ANSWER]
    assert (whole.stop_reason, whole.usage.output_tokens) == ("end_turn", 8)
    with claude.messages.stream(model=demo, max_tokens=20, messages=ASK, extra_body=GREEDY) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == ANSWER
    assert (final.stop_reason, final.usage.output_tokens) == ("end_turn", 8)


def test_counted_tokens_are_those_of_the_prompt(claude: Client, model: str) -> None:
    asked: dict[str, Any] = {"model": model, "messages": ASK, "system": "Be brief."}
    usage = claude.messages.create(**asked, max_tokens=1).usage
    assert claude.messages.count_tokens(**asked).input_tokens == usage.input_tokens + usage.cache_read_input_tokens


def test_a_stop_sequence_and_the_limit_are_told_apart(claude: Client, demo: str) -> None:
    stopped = claude.messages.create(model=demo, max_tokens=20, messages=ASK, stop_sequences=[" is"], extra_body=GREEDY)
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", " is")
    assert stopped.content[0].text == "The capital of France"
    cut = claude.messages.create(model=demo, max_tokens=3, messages=ASK, extra_body=GREEDY)
    assert (cut.stop_reason, cut.usage.output_tokens) == ("max_tokens", 3)


def test_structured_output_is_parsed_into_a_model(claude: Client, model: str) -> None:
    message = claude.messages.parse(
        model=model, max_tokens=100, messages=ASK, output_format=Kind, thinking={"type": "disabled"},
        extra_body=GREEDY,
    )  # fmt: skip
    assert isinstance(message.parsed_output, Kind)


def test_thinking_comes_in_blocks_of_its_own(claude: Client, thinking_model: str) -> None:
    turns = [{"role": "user", "content": "Capital of Italy?"}]
    thought = {"type": "thinking", "thinking": "They ask about Italy.", "signature": ""}
    turns += [{"role": "assistant", "content": [thought, {"type": "text", "text": "Rome."}]}]  # type: ignore[dict-item]
    turns += [{"role": "user", "content": "Capital of Spain?"}]
    with claude.messages.stream(
        model=thinking_model,
        max_tokens=1024 + 24,
        messages=turns,
        extra_body=GREEDY,
        stop_sequences=["."],
        thinking={"type": "enabled", "budget_tokens": 1024},
    ) as stream:
        thoughts = "".join(event.thinking for event in stream if event.type == "thinking")
        message = stream.get_final_message()
    assert message.content[0].type == "thinking"
    assert message.content[0].thinking == thoughts != ""


@pytest.mark.parametrize(
    ("error", "words", "change"),
    [
        (anthropic.NotFoundError, "no-such-model", {"model": "no-such-model"}),
        (anthropic.BadRequestError, "max_tokens", {"max_tokens": 0}),
        (anthropic.BadRequestError, "temperature", {"extra_body": {"temperature": 3}}),
        (anthropic.BadRequestError, "colour", {"extra_body": {"colour": "red"}}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_errors_are_the_clients_own(
    claude: Client, model: str, error: type[Exception], words: str, change: dict[str, Any]
) -> None:
    with pytest.raises(error, match=words):
        claude.messages.create(**{"model": model, "max_tokens": 4, "messages": ASK, **change})
