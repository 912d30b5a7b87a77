"""Completions over a real socket with the official client."""

import openai
import pytest

from services.common.errors import WorkerFailedError
from tests.unit.api.conftest import Api


async def test_prompt_forms_become_one_request_each(api: Api) -> None:
    ids = api.text.encode("Hello")
    for prompt, expected in [
        ("Hello", [ids]),
        (["Hello", "Hello"], [ids, ids]),
        (ids, [ids]),
        ([ids, ids], [ids, ids]),
    ]:
        api.dispatcher.requests.clear()
        answer = await api.openai.completions.create(model="tiny", prompt=prompt)
        assert [request.prompt_ids for request in api.dispatcher.requests] == expected
        assert [choice.index for choice in answer.choices] == list(range(len(expected)))
        assert answer.usage.prompt_tokens == sum(map(len, expected))
        assert answer.usage.completion_tokens == 2 * len(expected)


async def test_choices_of_several_prompts_are_numbered_prompt_by_prompt(api: Api) -> None:
    api.dispatcher.script.output = [api.text.encode("first"), api.text.encode("second")]
    answer = await api.openai.completions.create(model="tiny", prompt=["a", "b"], n=2)
    assert [choice.text for choice in answer.choices] == ["first", "second", "first", "second"]
    stream = await api.openai.completions.create(model="tiny", prompt=["a", "b"], n=2, stream=True)
    texts = ["", "", "", ""]
    async for chunk in stream:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == ["first", "second", "first", "second"]


async def test_echo_puts_the_prompt_first_once(api: Api) -> None:
    api.dispatcher.script.output = [api.text.encode(" world")]
    answer = await api.openai.completions.create(model="tiny", prompt=api.text.encode("Hello"), echo=True)
    assert answer.choices[0].text == "Hello world"
    stream = await api.openai.completions.create(model="tiny", prompt="Hello", echo=True, stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == "Hello world"


async def test_logprobs_lists_run_parallel_to_the_tokens(api: Api) -> None:
    ids = api.text.encode("Hello world")
    api.dispatcher.script.output = [ids]
    answer = await api.openai.completions.create(model="tiny", prompt="x", logprobs=2, max_tokens=50)
    logprobs = answer.choices[0].logprobs
    assert "".join(logprobs.tokens) == "Hello world"
    assert logprobs.token_logprobs == [-0.25] * len(ids)
    assert logprobs.text_offset[0] == 0
    assert logprobs.text_offset[-1] == len("Hello world") - len(logprobs.tokens[-1])
    stream = await api.openai.completions.create(model="tiny", prompt="x", logprobs=2, max_tokens=50, stream=True)
    offsets = [offset async for chunk in stream for offset in chunk.choices[0].logprobs.text_offset]
    assert offsets == logprobs.text_offset


async def test_best_of_generates_more_and_returns_n(api: Api) -> None:
    answer = await api.openai.completions.create(model="tiny", prompt="x", n=1, best_of=3)
    assert api.dispatcher.requests[0].num_choices == 3
    assert len(answer.choices) == 1
    assert answer.choices[0].logprobs is None


async def test_default_limit_is_sixteen_tokens(api: Api) -> None:
    await api.openai.completions.create(model="tiny", prompt="x")
    assert api.dispatcher.requests[0].stop.max_new_tokens == 16


async def test_one_failing_prompt_fails_the_call_and_ends_the_others(api: Api) -> None:
    api.dispatcher.script.fail_after = 1
    api.dispatcher.script.failure = WorkerFailedError("lost")
    with pytest.raises(openai.InternalServerError):
        await api.openai.completions.create(model="tiny", prompt=["a", "b"])
    assert all(generation.closed.is_set() for generation in api.dispatcher.generations)


async def test_stream_usage_counts_tokens_of_all_prompts(api: Api) -> None:
    stream = await api.openai.completions.create(
        model="tiny", prompt=["a", "b"], stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[-1].usage.completion_tokens == 4
    assert chunks[-1].choices == []
