"""The Responses API with the official client, streamed and whole."""

import json
from pathlib import Path
from typing import Any

import openai
import pytest

from services.common.errors import WorkerFailedError
from services.common.request import FinishReason
from tests.fakes.dispatcher import FakeModel
from tests.unit.api.conftest import Api
from tests.unit.api.test_tools import OUTPUT, TOOLS_TEMPLATE
from tests.unit.api.tiny_model import write_tiny_model

TOOLS = [{"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}, "strict": False}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("responses"), TOOLS_TEMPLATE)


@pytest.fixture
def tools_api(api: Api, folder: Path) -> Api:
    tools = FakeModel("tools", folder, vocab_size=api.text.vocab_size, max_context_tokens=4096)
    api.models.served = [*api.models.served, tools]
    return api


async def test_text_comes_back_with_usage(api: Api) -> None:
    api.dispatcher.script.output = [api.text.encode("Hello world")]
    response = await api.openai.responses.create(model="tiny", input="Hi", instructions="Be brief.")
    assert response.output_text == "Hello world"
    assert response.status == "completed"
    assert response.usage.output_tokens == len(api.text.encode("Hello world"))
    prompt = api.text.decode(api.dispatcher.requests[0].prompt_ids)
    assert prompt.startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi")


async def test_whole_response_has_reasoning_message_and_call(tools_api: Api) -> None:
    tools_api.dispatcher.script.output = [tools_api.text.encode(OUTPUT)]
    response = await tools_api.openai.responses.create(model="tools", input="Weather?", tools=TOOLS)
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call"]
    assert json.loads(response.output[2].arguments) == {"city": "Zürich"}


@pytest.mark.parametrize("step", [1, 6, 1000])
async def test_stream_tells_of_every_item_and_adds_up(tools_api: Api, step: int) -> None:
    tools_api.dispatcher.script.output = [tools_api.text.encode(OUTPUT)]
    tools_api.dispatcher.script.step = step
    async with tools_api.openai.responses.stream(model="tools", input="Weather?", tools=TOOLS) as stream:
        events = [event async for event in stream]
        final = await stream.get_final_response()
    kinds = [event.type for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    assert kinds.count("response.output_item.added") == kinds.count("response.output_item.done") == 3
    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    arguments = "".join(event.delta for event in events if event.type == "response.function_call_arguments.delta")
    assert text == final.output_text == "Looking.\n"
    assert json.loads(arguments) == {"city": "Zürich"}
    assert final.output[0].content[0].text == "Rain?"
    assert 0 < final.usage.output_tokens_details.reasoning_tokens < final.usage.output_tokens


async def test_output_items_can_be_sent_back(tools_api: Api) -> None:
    tools_api.dispatcher.script.output = [tools_api.text.encode(OUTPUT)]
    first = await tools_api.openai.responses.create(model="tools", input="Weather?", tools=TOOLS)
    items: list[Any] = [
        {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
        *first.output,
        {"type": "function_call_output", "call_id": first.output[2].call_id, "output": "18"},
    ]
    await tools_api.openai.responses.create(model="tools", input=items, tools=TOOLS)
    prompt = tools_api.text.decode(tools_api.dispatcher.requests[-1].prompt_ids)
    assert '<tool_call>{"name": "weather", "arguments": {"city": "Zürich"}}</tool_call>' in prompt
    assert "<|im_start|>tool\n18" in prompt


async def test_limit_makes_it_incomplete(api: Api) -> None:
    api.dispatcher.script.finish = FinishReason.LENGTH
    response = await api.openai.responses.create(model="tiny", input="Hi", max_output_tokens=2)
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")


async def test_failure_in_mid_stream_is_a_failed_response(api: Api) -> None:
    api.dispatcher.script.output = [api.text.encode("Hello world")]
    api.dispatcher.script.fail_after = 1
    api.dispatcher.script.failure = WorkerFailedError("lost")
    stream = await api.openai.responses.create(model="tiny", input="Hi", stream=True)
    events = [event async for event in stream]
    assert events[-1].type == "response.failed"
    assert events[-1].response.error.message == "lost"


async def test_earlier_responses_are_not_kept_and_the_error_says_so(api: Api) -> None:
    response = await api.openai.responses.create(model="tiny", input="Hi", store=True)
    assert response.store is False
    ask = api.openai.responses
    for call in (ask.retrieve(response.id), ask.delete(response.id), ask.cancel(response.id)):
        with pytest.raises(openai.NotFoundError, match="not kept here"):
            await call


async def test_input_tokens_are_those_of_the_prompt(api: Api) -> None:
    counted = await api.openai.responses.input_tokens.count(model="tiny", input="Hi", instructions="Be brief.")
    assert counted.object == "response.input_tokens"
    response = await api.openai.responses.create(model="tiny", input="Hi", instructions="Be brief.")
    assert counted.input_tokens == response.usage.input_tokens


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0].content[0]"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"extra_body": {"foo": 1}}, "foo"),
        ({"temperature": 3}, "temperature"),
        ({"tools": TOOLS}, "tools"),
        ({"tools": [{"type": "custom", "name": "x"}]}, "tools[0].type"),
        ({"tools": [{"name": "x"}]}, "tools[0].type"),
        ({"tools": [{"type": "namespace", "name": "x", "tools": [{"name": "y"}]}]}, "tools[0].tools[0].type"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "name": "x"}}, "tool_choice.name"),
        ({"max_output_tokens": 100_000}, "max_output_tokens"),
        ({"input": "word " * 2000}, "input"),
        (
            {"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{"}], "instructions": "x"},
            "input",
        ),
        ({"text": {"format": {"type": "json_schema", "schema": {"if": {}}}}}, "text.format.schema.if"),
    ],
)
async def test_bad_input_names_the_field(api: Api, change: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        await api.openai.responses.create(**{"model": "tiny", "input": "Hi", **change})
    assert raised.value.param == param
    assert param == "input" or f" - {param}: " in str(raised.value)
    assert api.dispatcher.requests == []


async def test_tools_that_agents_offer_everywhere_are_left_out_where_there_are_none(tools_api: Api) -> None:
    hosted = [{"type": "web_search", "external_web_access": False}, {"type": "image_generation"}]
    response = await tools_api.openai.responses.create(
        model="tools", input="Weather?", tools=[*hosted, *TOOLS], extra_body={"client_metadata": {"session": "1"}}
    )
    assert [tool.name for tool in response.tools] == ["weather"]
    prompt = tools_api.text.decode(tools_api.dispatcher.requests[-1].prompt_ids)
    assert '"weather"' in prompt
    assert "web_search" not in prompt


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_of_a_namespaces_function_names_both(tools_api: Api, stream: bool) -> None:
    """As agents offer what an MCP server has; the model sees one name."""
    output = 'So.</think><tool_call>\n{"name": "sky__weather", "arguments": {}}\n</tool_call>'
    tools_api.dispatcher.script.output = [tools_api.text.encode(output)]
    namespace = {"type": "namespace", "name": "sky", "description": "d", "tools": TOOLS}
    ask = {"model": "tools", "input": "Weather?", "tools": [namespace]}
    if stream:
        async with tools_api.openai.responses.stream(**ask) as events:
            response = await events.get_final_response()
    else:
        response = await tools_api.openai.responses.create(**ask)
    call = response.output[-1]
    assert (call.type, call.namespace, call.name) == ("function_call", "sky", "weather")
    items = [{"role": "user", "content": "Weather?"}, *response.output]
    items += [{"type": "function_call_output", "call_id": call.call_id, "output": "18"}]
    await tools_api.openai.responses.create(model="tools", input=items, tools=[namespace])
    prompts = [tools_api.text.decode(request.prompt_ids) for request in tools_api.dispatcher.requests]
    assert '"name": "sky__weather"' in prompts[0]
    assert '<tool_call>{"name": "sky__weather", "arguments": {}}</tool_call>' in prompts[1]
