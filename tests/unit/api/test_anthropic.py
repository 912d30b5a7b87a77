"""The Anthropic API with its official client, streamed and whole."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, TypeAlias

import anthropic
import pytest
import pytest_asyncio

from services.common.errors import NoWorkerError, OverloadedError, SluiceError, WorkerFailedError
from services.common.request import FinishReason
from tests.fakes.dispatcher import FakeModel
from tests.unit.api.conftest import Api
from tests.unit.api.test_tools import OUTPUT, TOOLS_TEMPLATE
from tests.unit.api.tiny_model import write_tiny_model

ASK: list[Any] = [{"role": "user", "content": "Weather?"}]
TOOLS: list[Any] = [{"name": "weather", "description": "d", "input_schema": {"type": "object", "properties": {}}}]

Client: TypeAlias = Any
"""The official client; its answers are checked at run time, not by their types."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("anthropic"), TOOLS_TEMPLATE)


@pytest_asyncio.fixture(loop_scope="session")
async def client(api: Api, folder: Path) -> AsyncIterator[Client]:
    tools = FakeModel("tools", folder, vocab_size=api.text.vocab_size, max_context_tokens=4096)
    api.models.served = [*api.models.served, tools]
    async with anthropic.AsyncAnthropic(base_url=api.url, api_key="none", max_retries=0) as client:
        yield client


async def test_message_has_text_usage_and_stop_reason(api: Api, client: Client) -> None:
    api.dispatcher.script.output = [api.text.encode("Hello world")]
    api.dispatcher.script.cached_tokens = 4
    message = await client.messages.create(model="tiny", max_tokens=50, system="Be brief.", messages=ASK)
    assert [block.text for block in message.content] == ["Hello world"]
    assert message.stop_reason == "end_turn"
    prompt = api.dispatcher.requests[0].prompt_ids
    assert message.usage.input_tokens + message.usage.cache_read_input_tokens == len(prompt)
    assert message.usage.cache_read_input_tokens == 4
    assert message.usage.output_tokens == len(api.text.encode("Hello world"))
    assert api.text.decode(prompt).startswith("<|im_start|>system\nBe brief.<|im_end|>")


@pytest.mark.parametrize("step", [1, 5, 1000])
async def test_stream_adds_up_to_thinking_text_and_tool_use(api: Api, client: Client, step: int) -> None:
    api.dispatcher.script.output = [api.text.encode(OUTPUT)]
    api.dispatcher.script.step = step
    async with client.messages.stream(model="tools", max_tokens=999, messages=ASK, tools=TOOLS) as stream:
        kinds = [event.type async for event in stream]
        message = await stream.get_final_message()
    assert kinds[0] == "message_start"
    assert kinds[-1] == "message_stop"
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 3
    thinking, text, call = message.content
    assert (thinking.thinking, text.text, call.name, call.input) == (
        "Rain?",
        "Looking.\n",
        "weather",
        {"city": "Zürich"},
    )
    assert message.stop_reason == "tool_use"
    assert message.usage.output_tokens == len(api.text.encode(OUTPUT))


async def test_whole_message_equals_the_stream(api: Api, client: Client) -> None:
    api.dispatcher.script.output = [api.text.encode(OUTPUT)]
    message = await client.messages.create(model="tools", max_tokens=999, messages=ASK, tools=TOOLS)
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use"]
    assert message.content[2].input == {"city": "Zürich"}


async def test_a_system_message_within_the_conversation_stays_there(api: Api, client: Client) -> None:
    """As coding agents send what their harness has to say."""
    turns = [*ASK, {"role": "system", "content": [{"type": "text", "text": "Agents: none."}]}]
    api.dispatcher.script.output = [api.text.encode("Hello")]
    await client.messages.create(
        model="tiny",
        max_tokens=9,
        system="Be brief.",
        messages=turns,
        extra_body={
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            "diagnostics": {"previous_message_id": "msg_1"},
            "speed": "standard",
        },
    )
    prompt = api.text.decode(api.dispatcher.requests[0].prompt_ids)
    assert [part.split("\n", 1)[0] for part in prompt.split("<|im_start|>")[1:]] == [
        "system", "user", "system", "assistant",
    ]  # fmt: skip
    assert "<|im_start|>system\nAgents: none.<|im_end|>" in prompt


async def test_blocks_results_and_thoughts_go_into_the_template(api: Api, client: Client) -> None:
    api.dispatcher.script.output = [api.text.encode(OUTPUT)]
    message = await client.messages.create(model="tools", max_tokens=999, messages=ASK, tools=TOOLS)
    result = {"type": "tool_result", "tool_use_id": message.content[2].id, "content": [{"type": "text", "text": "18"}]}
    more = [
        *ASK,
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": [result, {"type": "text", "text": "So?"}]},
    ]
    await client.messages.create(model="tools", max_tokens=99, messages=more, tools=TOOLS)
    prompt = api.text.decode(api.dispatcher.requests[-1].prompt_ids)
    assert '<tool_call>{"name": "weather", "arguments": {"city": "Zürich"}}</tool_call>' in prompt
    assert "<|im_start|>tool\n18<|im_end|>\n<|im_start|>user\nSo?<|im_end|>" in prompt


async def test_stop_sequence_is_named(api: Api, client: Client) -> None:
    api.dispatcher.script.output = [api.text.encode("Hello world")]
    message = await client.messages.create(model="tiny", max_tokens=50, messages=ASK, stop_sequences=[" world"])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", " world")


async def test_limits_are_the_clients_or_the_contexts(api: Api, client: Client) -> None:
    api.dispatcher.script.finish = FinishReason.LENGTH
    message = await client.messages.create(model="tiny", max_tokens=2, messages=ASK)
    assert message.stop_reason == "max_tokens"
    message = await client.messages.create(model="tiny", max_tokens=8000, messages=ASK)
    assert message.stop_reason == "model_context_window_exceeded"
    request = api.dispatcher.requests[-1]
    assert request.stop.max_new_tokens == 512 - len(request.prompt_ids)


async def test_count_tokens_equals_the_prompt(api: Api, client: Client) -> None:
    counted = await client.messages.count_tokens(model="tiny", messages=ASK, system="Be brief.")
    await client.messages.create(model="tiny", max_tokens=5, messages=ASK, system="Be brief.")
    assert counted.input_tokens == len(api.dispatcher.requests[0].prompt_ids)


@pytest.mark.parametrize(
    ("change", "status", "kind", "text"),
    [
        ({"max_tokens": 0}, 400, "invalid_request_error", "max_tokens"),
        ({"extra_body": {"temperature": 1.5}}, 400, "invalid_request_error", "temperature"),
        ({"extra_body": {"foo": 1}}, 400, "invalid_request_error", "foo"),
        ({"model": "other"}, 404, "not_found_error", "other"),
        ({"tools": TOOLS}, 400, "invalid_request_error", "tools"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            400,
            "invalid_request_error",
            "messages[0].content[0]",
        ),
    ],
)
async def test_errors_have_anthropics_shape(
    api: Api, client: Client, change: dict[str, Any], status: int, kind: str, text: str
) -> None:
    with pytest.raises(anthropic.APIStatusError) as raised:
        await client.messages.create(**{"model": "tiny", "max_tokens": 5, "messages": ASK, **change})
    assert raised.value.status_code == status
    body: Any = raised.value.body
    assert body["type"] == "error"
    assert body["error"]["type"] == kind
    assert text in body["error"]["message"]
    assert api.dispatcher.requests == []


@pytest.mark.parametrize(
    ("error", "kind"), [(OverloadedError("full"), "rate_limit_error"), (NoWorkerError("none"), "overloaded_error")]
)
async def test_overload_has_its_type(api: Api, client: Client, error: SluiceError, kind: str) -> None:
    api.dispatcher.script.refuse = error
    with pytest.raises(anthropic.APIStatusError) as raised:
        await client.messages.create(model="tiny", max_tokens=5, messages=ASK)
    assert kind in raised.value.message


async def test_failure_in_mid_stream_is_an_error_event(api: Api, client: Client) -> None:
    api.dispatcher.script.output = [api.text.encode("Hello world")]
    api.dispatcher.script.fail_after = 1
    api.dispatcher.script.failure = WorkerFailedError("both workers died")
    stream = await client.messages.create(model="tiny", max_tokens=50, messages=ASK, stream=True)
    with pytest.raises(anthropic.APIError, match="both workers died"):
        [event async for event in stream]


async def test_models_are_listed_in_this_apis_form(api: Api, client: Client) -> None:
    page = await client.models.list()
    assert [(model.id, model.type, model.display_name) for model in page.data] == [
        (name, "model", name) for name in ("tiny", "tools")
    ]
    assert page.data[0].created_at.year >= 2025
    assert (await client.models.retrieve("tools")).max_input_tokens == 4096
    with pytest.raises(anthropic.NotFoundError) as raised:
        await client.models.retrieve("none")
    assert "not_found_error" in str(raised.value.body)
    api.models.served = []
    assert (await client.models.list()).data == []


async def test_paths_that_are_not_there_say_so_in_this_apis_form(client: Client) -> None:
    with pytest.raises(anthropic.NotFoundError) as raised:
        await client.messages.batches.list()
    assert "not_found_error" in str(raised.value.body)


async def test_an_answer_goes_on_with_the_words_put_in_its_mouth(api: Api, client: Client) -> None:
    begun = [*ASK, {"role": "assistant", "content": "It is"}]
    await client.messages.create(model="tiny", max_tokens=8, messages=begun)
    prompt = api.text.decode(api.dispatcher.requests[0].prompt_ids)
    assert prompt.endswith("<|im_start|>assistant\nIt is")
    counted = await client.messages.count_tokens(model="tiny", messages=begun)
    assert counted.input_tokens == len(api.dispatcher.requests[0].prompt_ids)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {"if": {}}}}},
            "output_config.format.schema.if: not supported",
        ),
        ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice.name: no tool is named 'x'"),
        (
            {"tools": [{**TOOLS[0], "input_schema": {"not": {}}}], "tool_choice": {"type": "any"}},
            "tools[0].input_schema.not: not supported",
        ),
    ],
)
async def test_what_is_wrong_is_said_by_the_names_of_this_api(
    client: Client, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(anthropic.BadRequestError) as raised:
        await client.messages.create(model="tools", max_tokens=9, messages=ASK, **change)
    assert f"'message': {repr(message)[:-1]}" in str(raised.value)
