"""Tool calls through both clients: forced by grammar, streamed, and sent back with their results.

Greedy, as all that must come to its end is: what is drawn may pad its JSON until the limit cuts it off.
"""

import json
from typing import Any

from tests.integration.clients.conftest import GREEDY, Client

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {"name": "weather", "description": "The weather of a city", "parameters": CITY}
TOOLS = [{"type": "function", "function": WEATHER}]
NAMED = {"type": "function", "function": {"name": "weather"}}
ASK: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]


def test_a_forced_call_is_whole_and_its_result_can_be_sent_back(gpt: Client, tools_model: str) -> None:
    answer = gpt.chat.completions.create(
        model=tools_model, messages=ASK, tools=TOOLS, tool_choice="required", parallel_tool_calls=False,
        max_tokens=80, temperature=0,
    )  # fmt: skip
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    assert call.function.name == "weather"
    assert set(json.loads(call.function.arguments)) == {"city"}
    result = {"role": "tool", "tool_call_id": call.id, "content": "18 degrees"}
    after = gpt.chat.completions.create(
        model=tools_model, messages=[*ASK, choice.message, result], tools=TOOLS, max_tokens=8
    )
    assert after.usage.prompt_tokens > answer.usage.prompt_tokens


def test_a_named_call_streams_its_arguments(gpt: Client, tools_model: str) -> None:
    with gpt.chat.completions.stream(
        model=tools_model, messages=ASK, tools=TOOLS, tool_choice=NAMED, max_tokens=80, temperature=0
    ) as stream:
        deltas = [event.arguments_delta for event in stream if event.type == "tool_calls.function.arguments.delta"]
        (call,) = stream.get_final_completion().choices[0].message.tool_calls
    assert len(deltas) > 1
    assert "".join(deltas) == call.function.arguments
    assert set(json.loads(call.function.arguments)) == {"city"}


def test_responses_make_a_call_and_take_its_output(gpt: Client, tools_model: str) -> None:
    tool = {"type": "function", "strict": True, **WEATHER}
    first = gpt.responses.create(
        model=tools_model, input=ASK, tools=[tool], tool_choice="required", parallel_tool_calls=False,
        max_output_tokens=80, temperature=0,
    )  # fmt: skip
    (call,) = [item for item in first.output if item.type == "function_call"]
    assert set(json.loads(call.arguments)) == {"city"}
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "18 degrees"}
    second = gpt.responses.create(
        model=tools_model, input=[*ASK, *first.output, output], tools=[tool], max_output_tokens=8
    )
    assert second.usage.input_tokens > first.usage.input_tokens


def test_claude_uses_a_tool_and_hears_of_its_result(claude: Client, tools_model: str) -> None:
    tool = {"name": "weather", "description": "The weather of a city", "input_schema": CITY}
    choice = {"type": "tool", "name": "weather", "disable_parallel_tool_use": True}
    with claude.messages.stream(
        model=tools_model, max_tokens=80, messages=ASK, tools=[tool], tool_choice=choice, extra_body=GREEDY
    ) as stream:
        parts = [event.partial_json for event in stream if event.type == "input_json"]
        message = stream.get_final_message()
    assert message.stop_reason == "tool_use"
    (use,) = [block for block in message.content if block.type == "tool_use"]
    assert json.loads("".join(parts)) == use.input
    assert set(use.input) == {"city"}
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "18 degrees"}
    turns = [*ASK, {"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
    after = claude.messages.create(model=tools_model, max_tokens=8, messages=turns, tools=[tool])
    assert after.usage.input_tokens + after.usage.cache_read_input_tokens > message.usage.input_tokens
