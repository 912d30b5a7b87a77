"""Chat templates and tokenization give exactly what `transformers` gives; what they refuse names `messages`."""

import json
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from services.cli.demo_model import fetch_demo_model
from services.common.errors import ContextLengthError, InvalidRequestError
from services.pd_master.api.openai.chat_schema import Message
from services.pd_master.api.openai.messages import template_messages
from services.pd_master.chat_template import ChatTemplate
from services.pd_master.model_text import ModelText
from services.pd_master.tokenizer import encode_bounded
from tests.unit.api.tiny_model import CHATML, write_tiny_model

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "It's <b>&</b> é",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Zürich"}}}
PLAIN = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Héllo <|im_end|> 🌍\n\n  x"}]
LONG = [*PLAIN, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "今日は"}]
WITH_CALL = [
    *PLAIN,
    {"role": "assistant", "tool_calls": [CALL]},
    {"role": "tool", "content": "18", "tool_call_id": "c1"},
]

TEMPLATES = {
    "chatml": CHATML,
    "bos and eos": (
        "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content | trim }}{{ eos_token }}{% endfor %}"
    ),
    "tools as json": (
        "{%- if tools %}{{- '<tools>' }}{%- for tool in tools %}{{- tool | tojson }}\n{%- endfor %}{{- '</tools>' }}"
        "{%- endif %}{%- for m in messages %}{{- m.role }}\n{%- if m.tool_calls %}{%- for call in m.tool_calls %}"
        "{{- call.function.arguments | tojson(indent=2) }}{%- endfor %}{%- else %}{{- m.content }}{%- endif %}\n"
        "{%- endfor %}{%- if add_generation_prompt %}{{- 'assistant:' }}{%- endif %}"
    ),
    "loop controls": (
        "{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}{{ m.content or '' }}"
        "{% if loop.index > 2 %}{% break %}{% endif %}{% endfor %}"
    ),
    "namespace and macros": (
        "{% macro show(m) %}[{{ m.role | upper }}]{{ m.content if m.content is string else '' }}{% endmacro %}"
        "{% set ns = namespace(n=0, last='') %}"
        "{% for m in messages %}{% set ns.n = ns.n + 1 %}{{ show(m) }}{% endfor %}"
        "{{ ns.n }}"
    ),
    "generation marker": (
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content or 'call' }}"
        "{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
    ),
    "own variables": "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
    "{{ messages[-1]['content'].split('x')[0].lstrip('\n') }}",
    "blocks and whitespace": (
        "{% for m in messages %}\n    {% if true %}\n  {{ m.role }}\n    {% endif %}\n{% endfor %}\nend"
    ),
}


Reference: TypeAlias = Any
"""transformers' tokenizer."""


@pytest.fixture(scope="module")
def demo() -> tuple[Reference, ModelText]:
    folder = fetch_demo_model()
    return reference(folder), ModelText(folder)


def reference(folder: Path) -> Reference:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


@pytest.mark.demo_model
@pytest.mark.parametrize("messages", [PLAIN, PLAIN[1:], LONG], ids=["system", "user", "long"])
@pytest.mark.parametrize("prompt", [True, False])
def test_demo_models_chat_equals_transformers(
    demo: tuple[Reference, ModelText], messages: list[dict[str, Any]], prompt: bool
) -> None:
    tokenizer, text = demo
    expected = tokenizer.apply_chat_template(messages, add_generation_prompt=prompt, return_dict=False)
    rendered = text.template().render(messages, add_generation_prompt=prompt)
    assert text.encode(rendered, add_special_tokens=False) == expected


@pytest.mark.demo_model
@pytest.mark.parametrize("text_", ["", " ", "Hello", "日本語 🌍\r\n\t", "<|im_start|>x", "a" * 5000, "é" * 99])
def test_demo_models_ids_equal_transformers(demo: tuple[Reference, ModelText], text_: str) -> None:
    tokenizer, text = demo
    assert text.encode(text_) == tokenizer(text_)["input_ids"]


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("messages", [PLAIN, LONG, WITH_CALL], ids=["plain", "long", "call"])
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["no tools", "tools"])
def test_templates_of_the_field_equal_transformers(
    tmp_path: Path, name: str, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None
) -> None:
    if name == "chatml" and messages is WITH_CALL:
        pytest.skip("the template reads the content of every message")
    folder = write_tiny_model(tmp_path, TEMPLATES[name])
    tokenizer = reference(folder)
    expected = tokenizer.apply_chat_template(
        messages, tools=tools, add_generation_prompt=True, tokenize=False, enable_thinking=False
    )
    text = ModelText(folder)
    rendered = text.template(with_tools=tools is not None).render(
        messages, tools=tools, extra={"enable_thinking": False}
    )
    assert rendered == expected
    assert text.encode(rendered, add_special_tokens=False) == tokenizer.encode(expected, add_special_tokens=False)


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('no system messages') }}",
        "{{ messages[99].content }}",
        "{{ messages[0].content + 1 }}",
        "{{ 1 // 0 }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{{ messages[0].missing.content }}",
    ],
)
def test_what_a_template_refuses_is_the_clients_error(template: str) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        ChatTemplate(template, {}).render(PLAIN)
    assert raised.value.param == "messages"


def test_template_that_does_not_compile_is_named_when_the_model_loads(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not compile"):
        ModelText(write_tiny_model(tmp_path, "{% if %}"))


def test_strftime_now_is_there() -> None:
    assert len(ChatTemplate("{{ strftime_now('%Y-%m-%d') }}", {}).render(PLAIN)) == len("2026-01-01")


def test_named_templates_serve_requests_with_tools(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = [
        {"name": "default", "template": "plain"},
        {"name": "tool_use", "template": "with tools"},
    ]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    text = ModelText(folder)
    assert text.template().render(PLAIN) == "plain"
    assert text.template(with_tools=True).render(PLAIN) == "with tools"


def test_template_file_wins_over_the_config(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path)
    (folder / "chat_template.jinja").write_text("from the file")
    assert ModelText(folder).template().render(PLAIN) == "from the file"


def test_model_without_a_template_says_so(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path)
    (folder / "tokenizer_config.json").unlink()
    with pytest.raises(InvalidRequestError, match="no chat template"):
        ModelText(folder).template()


def test_text_beyond_any_tokenization_is_refused_unread(tmp_path: Path) -> None:
    text = ModelText(write_tiny_model(tmp_path))
    with pytest.raises(ContextLengthError, match="characters") as raised:
        encode_bounded(text, "x" * (10 * text.max_token_bytes + 1), 10, param="prompt")
    assert raised.value.param == "prompt"


def test_longest_prompt_leaves_room_for_one_token(tmp_path: Path) -> None:
    text = ModelText(write_tiny_model(tmp_path))
    ids = text.encode("Hello world, how are you")
    assert encode_bounded(text, "Hello world, how are you", len(ids) + 1, param="prompt") == ids
    with pytest.raises(ContextLengthError):
        encode_bounded(text, "Hello world, how are you", len(ids), param="prompt")


STRICT = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning.') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}{% endfor %}"
)
FORGETFUL = (
    "{% if messages[0].role == 'system' %}<system>{{ messages[0].content }}{% endif %}"
    "{% for m in messages if m.role != 'system' %}<{{ m.role }}>{{ m.content }}{% endfor %}"
)
LATE = [Message("system", "A"), Message("user", "Q"), Message("developer", "B"), Message("user", "R")]


@pytest.mark.parametrize("source", [STRICT, FORGETFUL])
def test_late_system_messages_are_gathered_for_a_template_that_knows_them_at_the_front_alone(source: str) -> None:
    template = ChatTemplate(source, {})
    assert template.render(template_messages(LATE, template)) == "<system>A\n\nB<user>Q<user>R"


def test_late_system_messages_stay_in_place_where_the_template_shows_them() -> None:
    template = ChatTemplate(CHATML, {})
    assert [one["role"] for one in template_messages(LATE, template)] == ["system", "user", "system", "user"]
