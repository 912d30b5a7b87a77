"""Chat completions over a real socket with the official client."""

import asyncio
import json
from pathlib import Path
from typing import Any

import openai
import pytest

from services.common.errors import NoWorkerError, OverloadedError, WorkerFailedError
from services.common.messages import Limits, Load, Role, WorkerRef
from services.common.request import FinishReason
from services.pd_master.selector import Snapshot, WorkerView, choose
from tests.fakes.dispatcher import FakeModel
from tests.unit.api.conftest import Api

HELLO = [{"role": "user", "content": "Hello"}]


async def test_whole_answer_carries_text_usage_and_finish_reason(api: Api) -> None:
    ids = api.text.encode("Hello world")
    api.dispatcher.script.output = [ids]
    api.dispatcher.script.cached_tokens = 3
    answer = await api.openai.chat.completions.create(model="tiny", messages=HELLO)
    assert answer.choices[0].message.content == "Hello world"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens == len(ids)
    assert answer.usage.prompt_tokens == len(api.dispatcher.requests[0].prompt_ids)
    assert answer.usage.prompt_tokens_details.cached_tokens == 3


async def test_stream_has_role_text_finish_and_no_usage_unless_asked(api: Api) -> None:
    api.dispatcher.script.output = [api.text.encode("Hello 🌍!")]
    stream = await api.openai.chat.completions.create(model="tiny", messages=HELLO, stream=True)
    chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello 🌍!"
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert all(chunk.usage is None for chunk in chunks)


async def test_usage_chunk_comes_last_with_no_choices(api: Api) -> None:
    stream = await api.openai.chat.completions.create(
        model="tiny", messages=HELLO, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 2
    assert all(chunk.usage is None for chunk in chunks[:-1])


async def test_continuous_usage_is_that_of_the_chunks_own_choice(api: Api) -> None:
    api.dispatcher.script.output = [api.text.encode('a "usage":null}'), api.text.encode("number two")]
    options = {"include_usage": True, "continuous_usage_stats": True}
    stream = await api.openai.chat.completions.create(
        model="tiny", messages=HELLO, stream=True, n=2, stream_options=options
    )
    *chunks, last = [chunk async for chunk in stream]
    num_prompt = len(api.dispatcher.requests[0].prompt_ids)
    for choice, tokens in enumerate(api.dispatcher.script.output):
        own = [chunk.usage for chunk in chunks if chunk.choices[0].index == choice]
        counts = [usage.completion_tokens for usage in own]
        assert counts == sorted(counts)
        assert (counts[0], counts[-1]) == (0, len(tokens))
        assert {usage.prompt_tokens for usage in own} == {num_prompt}
    assert last.usage.completion_tokens == sum(map(len, api.dispatcher.script.output))


async def test_every_choice_is_streamed_to_its_own_end(api: Api) -> None:
    api.dispatcher.script.output = [api.text.encode("one"), api.text.encode("number two")]
    stream = await api.openai.chat.completions.create(model="tiny", messages=HELLO, stream=True, n=2)
    texts, finishes = {0: "", 1: ""}, {}
    async for chunk in stream:
        choice = chunk.choices[0]
        texts[choice.index] += choice.delta.content or ""
        if choice.finish_reason:
            finishes[choice.index] = choice.finish_reason
    assert texts == {0: "one", 1: "number two"}
    assert finishes == {0: "stop", 1: "stop"}


async def test_logprobs_show_token_bytes_and_the_asked_number_of_alternatives(api: Api) -> None:
    ids = api.text.encode("Hé")
    api.dispatcher.script.output = [ids]
    answer = await api.openai.chat.completions.create(model="tiny", messages=HELLO, logprobs=True, top_logprobs=2)
    content = answer.choices[0].logprobs.content
    assert len(content) == len(ids)
    assert bytes(byte for entry in content for byte in entry.bytes).decode() == "Hé"
    assert all(len(entry.top_logprobs) == 2 for entry in content)


async def test_fields_reach_the_engine(api: Api) -> None:
    await api.openai.chat.completions.create(
        model="tiny",
        messages=HELLO,
        temperature=0.5,
        top_p=0.9,
        seed=-1,
        stop=["END"],
        max_completion_tokens=7,
        presence_penalty=1.0,
        frequency_penalty=-1.0,
        logit_bias={"5": 10},
        user="someone",
        extra_body={"top_k": 3, "min_p": 0.1, "repetition_penalty": 1.2, "min_tokens": 2, "ignore_eos": True},
    )
    request = api.dispatcher.requests[0]
    sampling, stop = request.sampling, request.stop
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.9, 3, 0.1)
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (1.0, -1.0, 1.2)
    assert sampling.seed == 2**64 - 1
    assert sampling.logit_bias == {5: 10.0}
    assert (stop.max_new_tokens, stop.min_new_tokens, stop.stop_strings, stop.ignore_eos) == (7, 2, ("END",), True)
    assert len(request.request_id) == 32


async def test_output_limit_defaults_to_what_fits_the_context(api: Api) -> None:
    await api.openai.chat.completions.create(model="tiny", messages=HELLO)
    request = api.dispatcher.requests[0]
    assert request.stop.max_new_tokens == 512 - len(request.prompt_ids)


async def test_seeds_are_drawn_when_the_client_gives_none(api: Api) -> None:
    for _ in range(2):
        await api.openai.chat.completions.create(model="tiny", messages=HELLO)
    first, second = api.dispatcher.requests
    assert first.sampling.seed != second.sampling.seed


async def test_stop_string_is_named_and_left_out(api: Api) -> None:
    api.dispatcher.script.output = [api.text.encode("Hello world and more")]
    answer = await api.openai.chat.completions.create(model="tiny", messages=HELLO, stop=" world")
    assert answer.choices[0].message.content == "Hello"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].model_extra["stop_reason"] == " world"


async def test_content_parts_and_developer_role_reach_the_template(api: Api) -> None:
    await api.openai.chat.completions.create(
        model="tiny",
        messages=[
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Hello"}, {"type": "text", "text": "world"}]},
        ],
    )
    prompt = api.text.decode(api.dispatcher.requests[0].prompt_ids)
    assert prompt == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello\nworld<|im_end|>\n<|im_start|>assistant\n"
    )


async def test_overload_is_429_with_retry_after(api: Api) -> None:
    api.dispatcher.script.refuse = OverloadedError("full", retry_after_s=2.5)
    with pytest.raises(openai.RateLimitError) as raised:
        await api.openai.chat.completions.create(model="tiny", messages=HELLO)
    assert raised.value.response.headers["retry-after"] == "3"
    assert raised.value.code == "overloaded"


async def test_no_worker_is_503(api: Api) -> None:
    api.dispatcher.script.refuse = NoWorkerError("no decode worker")
    with pytest.raises(openai.APIStatusError) as raised:
        await api.openai.chat.completions.create(model="tiny", messages=HELLO)
    assert raised.value.status_code == 503


async def test_failure_before_the_first_token_is_a_status_even_for_streams(api: Api) -> None:
    api.dispatcher.script.fail_after = 0
    api.dispatcher.script.failure = OverloadedError("queue budget ran out")
    with pytest.raises(openai.RateLimitError):
        await api.openai.chat.completions.create(model="tiny", messages=HELLO, stream=True)


async def test_failure_in_mid_stream_is_an_error_event(api: Api) -> None:
    api.dispatcher.script.fail_after = 1
    api.dispatcher.script.failure = WorkerFailedError("both workers died")
    api.dispatcher.script.output = [api.text.encode("Hello world")]
    stream = await api.openai.chat.completions.create(model="tiny", messages=HELLO, stream=True)
    with pytest.raises(openai.APIError, match="both workers died"):
        async for _ in stream:
            pass
    assert api.dispatcher.generations[0].closed.is_set()


@pytest.mark.parametrize("stream", [True, False])
async def test_client_that_leaves_ends_the_generation(api: Api, stream: bool) -> None:
    api.dispatcher.script.hang_after = 1
    api.dispatcher.script.output = [api.text.encode("Hello world")]
    body = {"model": "tiny", "messages": HELLO, "stream": stream}
    reading = asyncio.create_task(first_bytes(api, body))
    generation = await asyncio.wait_for(api.dispatcher.submitted.get(), 60)
    if stream:
        await reading
    reading.cancel()  # the whole answer never comes
    await asyncio.wait_for(generation.closed.wait(), 60)


async def first_bytes(api: Api, body: dict[str, Any]) -> None:
    """Of an answer that is left then."""
    async with api.http.stream("POST", "/v1/chat/completions", json=body) as response:
        await anext(response.aiter_bytes())


async def test_length_is_the_finish_reason_at_the_limit(api: Api) -> None:
    api.dispatcher.script.output = [api.text.encode("Hello world, how are you")]
    answer = await api.openai.chat.completions.create(model="tiny", messages=HELLO, max_tokens=2)
    assert answer.choices[0].finish_reason == FinishReason.LENGTH.value
    assert answer.usage.completion_tokens == 2


async def test_bad_words_are_sequences_of_tokens(api: Api) -> None:
    words = [" Hello", "Hé", "🌍"]
    await api.openai.chat.completions.create(model="tiny", messages=HELLO, extra_body={"bad_words": words})
    bad = api.dispatcher.requests[0].sampling.bad_sequences
    decoded = {api.text.decode(list(ids)) for ids in bad}
    assert {"Hello", "Hé", "🌍"} <= decoded <= {"Hello", " Hello", "Hé", " Hé", "🌍", " 🌍"}


async def test_prompt_logprobs_stand_beside_the_choices(api: Api) -> None:
    body = {"model": "tiny", "messages": HELLO, "prompt_logprobs": 0}
    answer = (await api.http.post("/v1/chat/completions", json=body)).json()
    prompt = api.dispatcher.requests[0].prompt_ids
    assert answer["prompt_token_ids"] == prompt
    assert answer["prompt_logprobs"][0] is None
    assert [list(one) for one in answer["prompt_logprobs"][1:]] == [[str(token)] for token in prompt[1:]]
    plain = (await api.http.post("/v1/chat/completions", json={"model": "tiny", "messages": HELLO})).json()
    assert "prompt_logprobs" not in plain


@pytest.mark.parametrize("n", [1, 2])
async def test_without_a_limit_a_chat_gets_what_fits_the_pool(api: Api, tiny_model: Path, n: int) -> None:
    """A context that no pool has room for is no reason to refuse who did not ask for it."""
    vocab_size = api.text.vocab_size
    api.models.served = [FakeModel("tiny", tiny_model, vocab_size=vocab_size, max_context_tokens=512, num_slots=200)]
    await api.openai.chat.completions.create(model="tiny", messages=HELLO, n=n)
    request = api.dispatcher.requests[0]
    limits = Limits(200, 8, 512, vocab_size, (0,), 64)
    worker = WorkerRef("w", "1")
    view = WorkerView(worker, Role.MIXED, "g", "tiny", "w:1", limits, Load(), True, {}, 0, 0)
    assert choose(request, frozenset(), Snapshot((view,), 0.0)).prefill == worker
    assert request.stop.max_new_tokens == (199 - len(request.prompt_ids)) // n - 32


async def test_raw_stream_is_events_with_done(api: Api) -> None:
    body = {"model": "tiny", "messages": HELLO, "stream": True}
    response = await api.http.post("/v1/chat/completions", json=body)
    assert response.headers["content-type"].startswith("text/event-stream")
    events = response.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    assert all(json.loads(event.removeprefix("data: "))["object"] == "chat.completion.chunk" for event in events[:-2])
