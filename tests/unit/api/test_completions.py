"""Completions over a real socket with the official client."""

import threading
from typing import Any

import openai
import pytest

from services.common.errors import WorkerFailedError
from services.pd_master import checks
from services.pd_master.api.openai.logprobs import CompletionLogprobs
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


@pytest.mark.parametrize("num_top", [0, 2])
async def test_echoed_prompts_have_log_probabilities_too(api: Api, num_top: int) -> None:
    prompt, output = api.text.encode("Hé 🌍, you"), api.text.encode(" world")
    api.dispatcher.script.output = [output]
    ask = {"model": "tiny", "prompt": prompt, "logprobs": num_top, "echo": True, "max_tokens": 50}
    answer = await api.openai.completions.create(**ask)
    lists = answer.choices[0].logprobs
    assert api.dispatcher.requests[0].sampling.num_prompt_logprobs == num_top
    assert answer.choices[0].text == "Hé 🌍, you world"
    assert lists.token_logprobs == [None, *[-float(at) for at in range(1, len(prompt))], *[-0.25] * len(output)]
    assert len(lists.tokens) == len(lists.text_offset) == len(prompt) + len(output)
    assert lists.text_offset[len(prompt)] == len("Hé 🌍, you")
    assert answer.choices[0].text[lists.text_offset[len(prompt) - 1] :].startswith(lists.tokens[len(prompt) - 1])
    if num_top:
        assert lists.top_logprobs[0] is None
        assert set(lists.top_logprobs[1].values()) == {-0.5, -1.0}, "the prompt's own token stands in it too"
    else:
        assert lists.top_logprobs is None
    stream = await api.openai.completions.create(**ask, stream=True)
    chunks = [chunk.choices[0] async for chunk in stream]
    assert "".join(chunk.text for chunk in chunks) == answer.choices[0].text
    assert [value for chunk in chunks for value in chunk.logprobs.token_logprobs] == lists.token_logprobs
    assert [value for chunk in chunks for value in chunk.logprobs.text_offset] == lists.text_offset


@pytest.mark.parametrize("stream", [False, True])
async def test_no_tokens_asked_for_is_the_prompt_scored_and_nothing_generated(api: Api, stream: bool) -> None:
    prompts = [api.text.encode("Hello"), api.text.encode("you")]
    ask = {"model": "tiny", "prompt": prompts, "max_tokens": 0, "echo": True, "logprobs": 1, "n": 2}
    if stream:
        events = await api.openai.completions.create(**ask, stream=True, stream_options={"include_usage": True})
        chunks = [chunk async for chunk in events]
        usage, pieces = chunks.pop().usage, [chunk.choices[0] for chunk in chunks]
    else:
        answer = await api.openai.completions.create(**ask)
        usage, pieces = answer.usage, answer.choices
    for at, (text, prompt) in enumerate([("Hello", prompts[0])] * 2 + [("you", prompts[1])] * 2):
        own = [piece for piece in pieces if piece.index == at]
        assert "".join(piece.text for piece in own) == text
        scores = [value for piece in own for value in piece.logprobs.token_logprobs]
        assert scores == [None, *[-float(at) for at in range(1, len(prompt))]]
        assert (own[-1].finish_reason, own[-1].stop_reason) == ("length", None)
    assert (usage.prompt_tokens, usage.completion_tokens) == (sum(map(len, prompts)), 0)


async def test_no_tokens_asked_for_without_echo_is_an_empty_completion(api: Api) -> None:
    answer = await api.openai.completions.create(model="tiny", prompt="Hello", max_tokens=0)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("", "length")
    api.dispatcher.script.failure = WorkerFailedError("lost")
    api.dispatcher.script.fail_after = 0
    with pytest.raises(openai.InternalServerError):
        await api.openai.completions.create(model="tiny", prompt="Hello", max_tokens=0)


async def test_prompt_logprobs_are_each_choices_and_prompts_own(api: Api) -> None:
    body = {"model": "tiny", "prompt": [[5, 6, 7], [8, 9]], "n": 2, "prompt_logprobs": 1}
    choices = (await api.http.post("/v1/completions", json=body)).json()["choices"]
    assert [len(choice["prompt_logprobs"]) for choice in choices] == [3, 3, 2, 2]
    first, second, third = choices[0]["prompt_logprobs"]
    assert first is None
    assert second["6"] == {"logprob": -1.0, "rank": 2, "decoded_token": api.text.vocabulary.piece(6).decode()}
    assert second["0"]["rank"] == 1
    assert list(third) == ["7", "0"]
    assert choices[2]["prompt_token_ids"] == [8, 9]


async def test_more_prompt_logprobs_than_an_answer_may_hold_are_refused(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "MAX_PROMPT_LOGPROBS", 20)
    body = {"model": "tiny", "prompt": [1] * 10, "prompt_logprobs": 1}
    assert (await api.http.post("/v1/completions", json=body)).status_code == 200
    refused = await api.http.post("/v1/completions", json=body | {"prompt_logprobs": 2})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "prompt_logprobs")


async def test_prompt_logprobs_are_bounded_over_all_prompts_and_choices_of_a_call(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "MAX_PROMPT_LOGPROBS", 40)
    body = {"model": "tiny", "prompt": [[1] * 5] * 2, "prompt_logprobs": 1, "n": 2}
    assert (await api.http.post("/v1/completions", json=body)).status_code == 200
    api.dispatcher.requests.clear()
    for more in ({"n": 3}, {"prompt": [[1] * 5] * 3}):
        refused = await api.http.post("/v1/completions", json=body | more)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "prompt_logprobs")
    echoed = {"model": "tiny", "prompt": [[1] * 5] * 5, "logprobs": 1, "echo": True}
    refused = await api.http.post("/v1/completions", json=echoed)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "echo")
    assert api.dispatcher.requests == [], "none of a refused call's prompts is computed"


async def test_streamed_echo_is_made_once_a_prompt_and_beside_the_event_loop(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[threading.Thread] = []
    take_prompt = CompletionLogprobs.take_prompt

    def noted(self: CompletionLogprobs, *args: Any) -> Any:  # noqa: ANN401
        made.append(threading.current_thread())
        return take_prompt(self, *args)

    monkeypatch.setattr(CompletionLogprobs, "take_prompt", noted)
    stream = await api.openai.completions.create(
        model="tiny", prompt=["Hello", "you"], n=3, echo=True, logprobs=1, stream=True
    )
    texts = [""] * 6
    async for chunk in stream:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert [text[:3] for text in texts] == ["Hel"] * 3 + ["you"] * 3
    assert len(made) == 2
    assert threading.main_thread() not in made


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


async def test_continuous_usage_is_that_of_the_prompt_whose_choice_it_is(api: Api) -> None:
    prompts = [api.text.encode("Hello"), api.text.encode("you and me")]
    options = {"include_usage": True, "continuous_usage_stats": True}
    stream = await api.openai.completions.create(
        model="tiny", prompt=prompts, n=2, stream=True, echo=True, stream_options=options
    )
    *chunks, last = [chunk async for chunk in stream]
    for choice in range(4):
        own = [chunk.usage for chunk in chunks if chunk.choices[0].index == choice]
        assert {usage.prompt_tokens for usage in own} == {len(prompts[choice // 2])}
        assert (own[0].completion_tokens, own[-1].completion_tokens) == (0, 2)
    assert last.usage.completion_tokens == 8


async def test_stream_usage_counts_tokens_of_all_prompts(api: Api) -> None:
    stream = await api.openai.completions.create(
        model="tiny", prompt=["a", "b"], stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[-1].usage.completion_tokens == 4
    assert chunks[-1].choices == []
