"""Chat templates: a conversation becomes the prompt text that the model was trained on.

Templates come with the model and conversations from clients, so rendering happens in Jinja's immutable sandbox. What
templates of the field rely on is here: `tojson` without HTML escapes, `raise_exception`, `strftime_now`, loop controls
and the `{% generation %}` marker, which training tools read and serving passes through.
"""

import datetime
import functools
import json
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
import jinja2.utils

from services.common.errors import InvalidRequestError

# What an expression in a template can raise when a conversation does not have the form it expects.
_RENDER_ERRORS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


class _GenerationMarker(jinja2.ext.Extension):
    """`{% generation %} ... {% endgeneration %}` renders its body."""

    tags = {"generation"}  # noqa: RUF012 - the attribute's form is Jinja's

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _PlainNamespace(jinja2.utils.Namespace):
    """A namespace that keeps no underscore names, which lead out of the sandbox."""

    def __setitem__(self, name: str, value: object) -> None:
        if name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"a template may not set {name!r}")
        super().__setitem__(name, value)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_now(pattern: str) -> str:
    return datetime.datetime.now().strftime(pattern)  # local time: templates print the date where the model runs


def _environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationMarker, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now, namespace=_PlainNamespace)
    return environment


class ChatTemplate:
    """One model's compiled template and the special tokens it may name. Used by many threads at once."""

    def __init__(self, source: str, special_tokens: dict[str, str]) -> None:
        """Raises ValueError when the template does not compile."""
        self.source = source
        self._special_tokens = special_tokens
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ValueError(f"the chat template does not compile: {error}") from error
        self._template.globals = dict(self._template.globals)  # else a chain of dictionaries, copied at each rendering

    @functools.cached_property
    def takes_late_system(self) -> bool:
        """Whether it shows a system message where it stands behind others. Some refuse such a conversation, some leave
        the message out."""
        question, order = "Which colour?", "Name a tree."
        try:
            text = self.render([{"role": "user", "content": question}, {"role": "system", "content": order}])
        except InvalidRequestError:
            return False
        return 0 <= text.find(question) < text.find(order)

    def render(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        extra: dict[str, Any] | None = None,
    ) -> str:
        """The prompt's text. Raises InvalidRequestError (`messages`) when the template refuses the conversation."""
        variables = {**self._special_tokens, **(extra or {})}
        try:
            return self._template.render(
                variables, messages=messages, tools=tools, documents=None, add_generation_prompt=add_generation_prompt
            )
        except _RENDER_ERRORS as error:
            raise InvalidRequestError(
                f"the model's chat template refuses this conversation: {error}", param="messages"
            ) from error
