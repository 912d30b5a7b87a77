"""OpenAI's client and chat: text, choices, log-probabilities, stops, structured output, thoughts, errors."""

import asyncio
from typing import Any, Literal

import openai
import pydantic
import pytest

from tests.integration.clients.conftest import ASK, DO_NOT_THINK, THINK, TIMEOUT_S, Client

ANSWER = "The capital of France is Paris."


class Place(pydantic.BaseModel):
    """What structured answers hold; every part is bounded, so each of them ends."""

    kind: Literal["city", "river"]
    name: str = pydantic.Field(max_length=12)
    is_large: bool


def test_a_chat_streams_as_it_is_answered_whole(gpt: Client, demo: str) -> None:
    whole = gpt.chat.completions.create(model=demo, messages=ASK, temperature=0)
    assert whole.choices[0].message.content == ANSWER
    assert (whole.choices[0].finish_reason, whole.usage.completion_tokens) == ("stop", 8)
    stream = gpt.chat.completions.create(
        model=demo, messages=ASK, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    choices = [choice for chunk in chunks for choice in chunk.choices]
    assert "".join(choice.delta.content or "" for choice in choices) == ANSWER
    assert [choice.finish_reason for choice in choices if choice.finish_reason] == ["stop"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 8
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens > 0, "the same prompt came before"


def test_choices_differ_and_repeat_by_seed(gpt: Client, model: str) -> None:
    asked: list[Any] = [{"role": "user", "content": "Name a colour and say why you like it."}]

    def ask() -> list[str | None]:
        answer = gpt.chat.completions.create(model=model, messages=asked, n=3, seed=7, max_tokens=8)
        assert answer.system_fingerprint.startswith("fp_")
        return [choice.message.content for choice in answer.choices]

    first = ask()
    assert len(set(first)) == 3
    assert ask() == first


def test_logprobs_come_with_the_text_up_to_a_stop_string(gpt: Client, demo: str) -> None:
    answer = gpt.chat.completions.create(
        model=demo, messages=ASK, temperature=0, logprobs=True, top_logprobs=2, stop=[" is"]
    )
    choice = answer.choices[0]
    assert choice.message.content == "The capital of France"
    assert choice.finish_reason == "stop"
    assert all(token.logprob <= 0 and len(token.top_logprobs) == 2 for token in choice.logprobs.content)


def test_completions_continue_several_prompts(gpt: Client, model: str) -> None:
    prompts = ["Once upon a time", "The sky is"]
    answer = gpt.completions.create(model=model, prompt=prompts, max_tokens=4, echo=True, temperature=0)
    assert [choice.text.startswith(prompt) for choice, prompt in zip(answer.choices, prompts, strict=True)] == [
        True
    ] * 2
    scored = gpt.completions.create(model=model, prompt=prompts[0], max_tokens=4, logprobs=2, temperature=0)
    assert len(scored.choices[0].logprobs.token_logprobs) == scored.usage.completion_tokens


def test_structured_output_is_parsed_into_a_model(gpt: Client, model: str) -> None:
    asked: dict[str, Any] = {
        "model": model, "messages": ASK, "response_format": Place, "max_tokens": 100, "temperature": 0,
        "extra_body": DO_NOT_THINK,
    }  # fmt: skip
    parsed = gpt.chat.completions.parse(**asked).choices[0].message.parsed
    assert isinstance(parsed, Place)
    with gpt.chat.completions.stream(**asked) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert final.choices[0].message.parsed == parsed


def test_thoughts_stand_beside_the_answer(gpt: Client, thinking_model: str) -> None:
    shown = [{"role": "user", "content": "Capital of Italy?"}]
    shown += [{"role": "assistant", "content": "Rome.", "reasoning_content": "They ask about Italy."}]
    asked = [*shown, {"role": "user", "content": "Capital of Spain?"}]
    answer = gpt.chat.completions.create(
        model=thinking_model, messages=asked, temperature=0, max_tokens=24, extra_body=THINK
    )
    message, usage = answer.choices[0].message, answer.usage
    assert message.reasoning_content
    assert "think>" not in message.reasoning_content + (message.content or "")
    assert 0 < usage.completion_tokens_details.reasoning_tokens <= usage.completion_tokens


@pytest.mark.parametrize(
    ("error", "param", "change"),
    [
        (openai.NotFoundError, "model", {"model": "no-such-model"}),
        (openai.BadRequestError, "temperature", {"temperature": -1}),
        (openai.BadRequestError, "messages[0].role", {"messages": [{"role": "robot", "content": "Hi"}]}),
        (openai.BadRequestError, "max_tokens", {"max_tokens": 10**9}),
        (openai.BadRequestError, "colour", {"extra_body": {"colour": "red"}}),
        (openai.BadRequestError, "guided_regex", {"extra_body": {"guided_regex": "(a"}}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_errors_are_the_clients_own_and_name_the_field(
    gpt: Client, model: str, error: type[openai.APIStatusError], param: str, change: dict[str, Any]
) -> None:
    with pytest.raises(error) as raised:
        gpt.chat.completions.create(**{"model": model, "messages": ASK, "max_tokens": 4, **change})
    assert raised.value.param == param
    assert raised.value.code


def test_the_asynchronous_client_runs_many_at_once(url: str, model: str) -> None:
    async def all_of_them() -> list[int]:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", timeout=TIMEOUT_S) as client:
            asked: Any = ASK
            answers = await asyncio.gather(
                *(client.chat.completions.create(model=model, messages=asked, max_tokens=4) for _ in range(4))
            )
            return [answer.usage.completion_tokens for answer in answers if answer.usage]

    assert asyncio.run(all_of_them()) == [4] * 4
