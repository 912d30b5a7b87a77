"""Tools and thoughts of random requests, in the words of each API."""

import random
from typing import Any

Json = dict[str, Any]

TOOLS: dict[str, Json] = {
    "weather": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "add": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"enum": [1, 2, 30]}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
}
THINK_SHARE, TOOLS_SHARE = 0.4, 0.5
LONGEST = 120
"""The most output tokens: what a template says of tools takes much of the context."""


def chat_tools(chance: random.Random) -> Json:
    """For chat completions."""
    body: Json = {}
    if chance.random() < THINK_SHARE:
        body["chat_template_kwargs"] = {"enable_thinking": chance.random() < 0.7}
    if names := _some_tools(chance):
        body["tools"] = [_function(function={"name": name, "parameters": TOOLS[name]}) for name in names]
        named = _function(function={"name": names[0]})
        body["tool_choice"] = chance.choice(("auto", "required", "required", "none", named))
        body["parallel_tool_calls"] = chance.random() < 0.5
    return body


def responses_tools(chance: random.Random) -> Json:
    """For Responses."""
    body: Json = {}
    if chance.random() < THINK_SHARE:
        body["reasoning"] = {"effort": chance.choice(("none", "low"))}
    if names := _some_tools(chance):
        body["tools"] = [_function(name=name, parameters=TOOLS[name]) for name in names]
        body["tool_choice"] = chance.choice(("auto", "required", _function(name=names[0])))
    return body


def messages_tools(chance: random.Random) -> Json:
    """For Messages."""
    body: Json = {}
    if chance.random() < THINK_SHARE:
        body["thinking"] = {"type": chance.choice(("adaptive", "disabled"))}
    if names := _some_tools(chance):
        body["tools"] = [{"name": name, "input_schema": TOOLS[name]} for name in names]
        body["tool_choice"] = chance.choice(({"type": "auto"}, {"type": "any"}, {"type": "tool", "name": names[0]}))
    return body


def _some_tools(chance: random.Random) -> list[str]:
    return chance.sample(list(TOOLS), chance.randint(1, len(TOOLS))) if chance.random() < TOOLS_SHARE else []


def _function(**fields: Any) -> Json:
    return {"type": "function", **fields}
