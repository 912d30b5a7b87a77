"""Tool calls and reasoning through the chat API with the official client, streamed and whole."""

import json
from pathlib import Path
from typing import Any

import openai
import pytest

from services.common.request import FinishReason, GrammarKind
from tests.fakes.dispatcher import FakeModel
from tests.unit.api.conftest import Api
from tests.unit.api.tiny_model import CHATML, write_tiny_model

TOOLS_TEMPLATE = (
    "{% if tools %}<tools>{% for tool in tools %}{{ tool | tojson }}{% endfor %}</tools>"
    'as <tool_call>{"name": ...}</tool_call>{% endif %}'
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.tool_calls %}{% for call in message.tool_calls %}<tool_call>{{ call.function | tojson }}</tool_call>"
    "{% endfor %}{% else %}{{ message.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is not defined or enable_thinking %}<think>"
    "{% endif %}{% endif %}"
)
OUTPUT = 'Rain?</think>\n\nLooking.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call>'
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Weather of a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
ASK: list[dict[str, Any]] = [{"role": "user", "content": "Weather?"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tools"), TOOLS_TEMPLATE)


@pytest.fixture
def tools_api(api: Api, folder: Path) -> Api:
    """The server with a model that knows tools and thinks."""
    api.models.served = [FakeModel("tools", folder, vocab_size=api.text.vocab_size, max_context_tokens=4096)]
    api.dispatcher.script.output = [api.text.encode(OUTPUT)]
    return api


async def test_whole_answer_has_reasoning_text_and_call(tools_api: Api) -> None:
    answer = await tools_api.openai.chat.completions.create(model="tools", messages=ASK, tools=TOOLS)
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Looking.\n"
    assert choice.message.reasoning_content == "Rain?"
    call = choice.message.tool_calls[0]
    assert call.id.startswith("call_")
    assert 0 < answer.usage.completion_tokens_details.reasoning_tokens < answer.usage.completion_tokens
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Zürich"})


@pytest.mark.parametrize("step", [1, 7, 1000])
async def test_stream_adds_up_to_the_whole_answer(tools_api: Api, step: int) -> None:
    tools_api.dispatcher.script.step = step
    stream = await tools_api.openai.chat.completions.create(model="tools", messages=ASK, tools=TOOLS, stream=True)
    content = reasoning = arguments = ""
    names, ids, finishes = [], [], []
    async for chunk in stream:
        choice = chunk.choices[0]
        content += choice.delta.content or ""
        reasoning += getattr(choice.delta, "reasoning_content", None) or ""
        for call in choice.delta.tool_calls or []:
            names += [call.function.name] if call.function.name else []
            ids += [call.id] if call.id else []
            arguments += call.function.arguments
        finishes += [choice.finish_reason] if choice.finish_reason else []
    assert (content, reasoning, names) == ("Looking.\n", "Rain?", ["weather"])
    assert json.loads(arguments) == {"city": "Zürich"}
    assert len(ids) == 1
    assert finishes == ["tool_calls"]


async def test_truncated_call_ends_with_length(tools_api: Api) -> None:
    tools_api.dispatcher.script.output = [tools_api.text.encode(OUTPUT)[:-12]]
    tools_api.dispatcher.script.finish = FinishReason.LENGTH
    answer = await tools_api.openai.chat.completions.create(model="tools", messages=ASK, tools=TOOLS)
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].message.tool_calls[0].function.name == "weather"


async def ends_as(api: Api, **ask: Any) -> tuple[str | None, Any]:
    """The reason and the usage of an answer; of a stream where it is one."""
    ask = {"model": "tools", "messages": ASK, **ask}
    if not ask.get("stream"):
        answer = await api.openai.chat.completions.create(**ask)
        return answer.choices[0].finish_reason, answer.usage
    stream = await api.openai.chat.completions.create(**ask, stream_options={"include_usage": True})
    *_, finish, last = [chunk async for chunk in stream]
    return finish.choices[0].finish_reason, last.usage


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_that_a_stop_string_cut_off_is_none_to_make(tools_api: Api, stream: bool) -> None:
    for stop, reason in (("city", "stop"), ("</tool_call>", "tool_calls")):
        assert (await ends_as(tools_api, tools=TOOLS, stop=stop, stream=stream))[0] == reason


@pytest.mark.parametrize("stream", [False, True])
async def test_thoughts_that_are_cut_off_are_all_of_the_outputs_tokens(tools_api: Api, stream: bool) -> None:
    tools_api.dispatcher.script.output = [tools_api.text.encode("Will it rain? It may")]
    tools_api.dispatcher.script.finish = FinishReason.LENGTH
    _, usage = await ends_as(tools_api, stream=stream)
    assert usage.completion_tokens_details.reasoning_tokens == usage.completion_tokens


async def test_without_tools_the_marks_are_text(tools_api: Api) -> None:
    for extra in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        answer = await tools_api.openai.chat.completions.create(model="tools", messages=ASK, **extra)
        assert "<tool_call>" in answer.choices[0].message.content
        assert answer.choices[0].message.tool_calls is None
        assert answer.choices[0].finish_reason == "stop"


async def test_the_template_sees_tools_calls_and_results(tools_api: Api) -> None:
    answer = await tools_api.openai.chat.completions.create(model="tools", messages=ASK, tools=TOOLS)
    message = answer.choices[0].message
    more = [*ASK, message, {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "18 degrees"}]
    await tools_api.openai.chat.completions.create(model="tools", messages=more, tools=TOOLS)
    prompt = tools_api.text.decode(tools_api.dispatcher.requests[-1].prompt_ids)
    assert '"description": "Weather of a city"' in prompt
    assert '<tool_call>{"name": "weather", "arguments": {"city": "Zürich"}}</tool_call>' in prompt
    assert "<|im_start|>tool\n18 degrees" in prompt


async def test_parallel_tool_calls_off_shows_one_call(tools_api: Api) -> None:
    call = '<tool_call>{"name": "weather", "arguments": {}}</tool_call>'
    tools_api.dispatcher.script.output = [tools_api.text.encode("</think>" + call + call)]
    for parallel, number in ((True, 2), (False, 1)):
        answer = await tools_api.openai.chat.completions.create(
            model="tools", messages=ASK, tools=TOOLS, parallel_tool_calls=parallel
        )
        assert len(answer.choices[0].message.tool_calls) == number


async def test_thinking_can_be_switched_off_by_the_template(tools_api: Api) -> None:
    tools_api.dispatcher.script.output = [tools_api.text.encode("Plain.")]
    answer = await tools_api.openai.chat.completions.create(
        model="tools", messages=ASK, extra_body={"chat_template_kwargs": {"enable_thinking": False}}
    )
    assert answer.choices[0].message.content == "Plain."


async def test_reasoning_can_be_left_out_or_left_in_the_text(tools_api: Api) -> None:
    answer = await tools_api.openai.chat.completions.create(
        model="tools", messages=ASK, tools=TOOLS, extra_body={"include_reasoning": False}
    )
    assert not hasattr(answer.choices[0].message, "reasoning_content")
    answer = await tools_api.openai.chat.completions.create(
        model="tools", messages=ASK, tools=TOOLS, extra_body={"separate_reasoning": False}
    )
    assert answer.choices[0].message.content.startswith("Rain?</think>")


async def test_logprobs_stay_complete_beside_pieces(tools_api: Api) -> None:
    stream = await tools_api.openai.chat.completions.create(
        model="tools", messages=ASK, tools=TOOLS, stream=True, logprobs=True
    )
    num = 0
    async for chunk in stream:
        logprobs = chunk.choices[0].logprobs
        num += len(logprobs.content) if logprobs else 0
    assert num == len(tools_api.text.encode(OUTPUT))


async def test_model_whose_template_knows_no_tools_refuses_them(api: Api) -> None:
    assert "tool" not in CHATML
    with pytest.raises(openai.BadRequestError) as raised:
        await api.openai.chat.completions.create(model="tiny", messages=ASK, tools=TOOLS)
    assert raised.value.param == "tools"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
async def test_forced_calls_go_to_the_engine_as_a_grammar(tools_api: Api, choice: Any) -> None:  # noqa: ANN401
    await tools_api.openai.chat.completions.create(model="tools", messages=ASK, tools=TOOLS, tool_choice=choice)
    grammar = tools_api.dispatcher.requests[-1].sampling.grammar
    assert grammar is not None
    assert (grammar.kind, grammar.field) == (GrammarKind.STRUCTURAL_TAG, "tool_choice")
    assert "weather" in grammar.source


async def test_a_forced_call_names_a_tool_there_is(tools_api: Api) -> None:
    choice: Any = {"type": "function", "function": {"name": "unknown"}}
    with pytest.raises(openai.BadRequestError) as raised:
        await tools_api.openai.chat.completions.create(model="tools", messages=ASK, tools=TOOLS, tool_choice=choice)
    assert raised.value.param == "tool_choice.function.name"


async def test_bad_arguments_in_an_earlier_call_name_their_place(tools_api: Api) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": "{"}}
    messages = [*ASK, {"role": "assistant", "tool_calls": [call]}]
    with pytest.raises(openai.BadRequestError) as raised:
        await tools_api.openai.chat.completions.create(model="tools", messages=messages)
    assert raised.value.param == "messages[1].tool_calls[0].function.arguments"


def strict_tools(*, strict: bool = True) -> list[dict[str, Any]]:
    """The same, strict, beside one that is not."""
    function = {**TOOLS[0]["function"], "strict": strict}  # type: ignore[dict-item]
    return [{"type": "function", "function": function}, {"type": "function", "function": {"name": "clock"}}]


async def test_calls_of_strict_tools_keep_to_their_schemas_where_the_model_may_call(tools_api: Api) -> None:
    create = tools_api.openai.chat.completions.create
    await create(model="tools", messages=ASK, tools=strict_tools())
    grammar = tools_api.dispatcher.requests[-1].sampling.grammar
    assert grammar is not None
    assert (grammar.kind, grammar.field) == (GrammarKind.STRUCTURAL_TAG, "tools")
    assert '"triggers": ["<tool_call>"]' in grammar.source
    assert "weather" in grammar.source
    assert "clock" in grammar.source
    await create(model="tools", messages=ASK, tools=strict_tools(strict=False))
    assert tools_api.dispatcher.requests[-1].sampling.grammar is None
    await create(model="tools", messages=ASK, tools=strict_tools(), tool_choice="none")
    assert tools_api.dispatcher.requests[-1].sampling.grammar is None
    with pytest.raises(openai.BadRequestError) as refused:
        await create(model="tools", messages=ASK, tools=strict_tools(), extra_body={"min_tokens": 3})
    assert refused.value.param == "min_tokens"


@pytest.mark.parametrize(
    ("mark", "field"), [('"parameters": dictionary of argument name', "tools"), ("<|channel|>", None)]
)
async def test_strict_tools_are_refused_only_where_no_mark_begins_a_call(
    api: Api, tmp_path: Path, mark: str, field: str | None
) -> None:
    folder = write_tiny_model(tmp_path, CHATML + "{# " + mark + " #}")
    api.models.served = [FakeModel("other", folder, vocab_size=api.text.vocab_size, max_context_tokens=4096)]
    body = {"model": "other", "messages": ASK, "tools": strict_tools()}
    response = await api.http.post("/v1/chat/completions", json=body)
    if field is not None:
        assert (response.status_code, response.json()["error"]["param"]) == (400, field)
        return
    assert response.status_code == 200, response.text
    for form in ({"tool_choice": "required"}, {"guided_regex": "[ab]", "tools": None}):
        assert (await api.http.post("/v1/chat/completions", json=body | form)).status_code == 200
        grammar = api.dispatcher.requests[-1].sampling.grammar
        assert grammar is not None
        assert mark in grammar.source


async def test_strict_tools_are_strict_in_every_chat_api(tools_api: Api) -> None:
    schema = TOOLS[0]["function"]["parameters"]  # type: ignore[index]
    cases: list[tuple[str, dict[str, Any]]] = [
        (
            "/v1/responses",
            {"input": "Weather?", "tools": [{"type": "function", "name": "weather", "parameters": schema}]},
        ),
        ("/v1/messages", {"messages": ASK, "max_tokens": 9, "tools": [{"name": "weather", "input_schema": schema}]}),
    ]
    for path, body in cases:
        for strict in (False, True):
            tools = [{**body["tools"][0], "strict": strict}]
            response = await tools_api.http.post(path, json={"model": "tools", **body, "tools": tools})
            assert response.status_code == 200, response.text
            assert (tools_api.dispatcher.requests[-1].sampling.grammar is not None) == strict


FORM = {"type": "json_schema", "json_schema": {"name": "oak", "schema": {"const": "oak"}}}


async def test_a_form_of_the_answer_leaves_the_choice_to_call(tools_api: Api) -> None:
    create = tools_api.openai.chat.completions.create
    await create(model="tools", messages=ASK, tools=TOOLS, response_format=FORM)
    grammar = tools_api.dispatcher.requests[-1].sampling.grammar
    assert grammar is not None
    assert (grammar.kind, grammar.field) == (GrammarKind.STRUCTURAL_TAG, "response_format.json_schema.schema")
    assert "oak" in grammar.source
    assert "weather" in grammar.source


async def test_a_forced_call_comes_in_place_of_the_answer_whatever_its_form(tools_api: Api) -> None:
    create = tools_api.openai.chat.completions.create
    await create(model="tools", messages=ASK, tools=TOOLS, tool_choice="required", response_format=FORM)
    grammar = tools_api.dispatcher.requests[-1].sampling.grammar
    assert grammar is not None
    assert grammar.field == "tool_choice"
    assert "oak" not in grammar.source


async def test_a_form_of_the_whole_output_leaves_none(tools_api: Api) -> None:
    ask: dict[str, Any] = {"model": "tools", "messages": ASK, "tools": TOOLS, "extra_body": {"guided_regex": "oak"}}
    await tools_api.openai.chat.completions.create(**ask)
    grammar = tools_api.dispatcher.requests[-1].sampling.grammar
    assert grammar is not None
    assert "weather" not in grammar.source
    with pytest.raises(openai.BadRequestError, match="tool_choice: guided_regex asks for text"):
        await tools_api.openai.chat.completions.create(**ask, tool_choice="required")
