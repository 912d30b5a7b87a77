"""`/tokenize` and `/detokenize`, vLLM's: what a prompt is in tokens, and the way back."""

from typing import Annotated, Any, TypedDict

import msgspec
from msgspec import Meta

from services.common.errors import InvalidRequestError
from services.pd_master import checks
from services.pd_master.api.http import HttpCall, UntilDisconnect
from services.pd_master.api.openai.chat_request import chat_prompt, check_chat
from services.pd_master.api.openai.chat_schema import ChatBody, Message, Tool
from services.pd_master.api.openai.fields import TokenId
from services.pd_master.api.parse import BodyParser
from services.pd_master.gateway import Gateway, Target
from services.pd_master.tokenizer import encode_bounded


class TokenizeBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A text, or a conversation that the model's template makes one of; `model` only where several are served."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Meta(min_length=1)] | None = None
    tools: Annotated[list[Tool], Meta(max_length=128)] | None = None
    add_special_tokens: bool | None = None
    """Of a text they are added unless this says no; templates write them themselves."""
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None


class Tokens(TypedDict):
    """The answer of `/tokenize`; `token_strs` where they were asked for."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Token ids."""

    tokens: list[TokenId]
    model: str | None = None


class Detokenized(TypedDict):
    """The answer of `/detokenize`."""

    prompt: str


_parse = BodyParser(TokenizeBody)
_parse_ids = BodyParser(DetokenizeBody)


class TokenizeEndpoint:
    """Handlers of both. Called by the app on the event loop."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def tokenize(self, call: HttpCall) -> None:
        """Ids of a text or a conversation."""
        body = _parse(await call.body(self._gateway.config.max_body_bytes))
        if (body.prompt is None) == (body.messages is None):
            raise InvalidRequestError("prompt: either prompt or messages must be given", param="prompt")
        async with UntilDisconnect(call):
            target = await self._gateway.target(body.model)
            ids = await self._gateway.tokenizers.run(_ids, body, target)
            names = [target.text.token_name(token) for token in ids] if body.return_token_strs else None
            answer: Tokens = {
                "count": len(ids),
                "max_model_len": target.model.max_context_tokens,
                "tokens": ids,
                "token_strs": names,
            }
            await call.reply(200, msgspec.json.encode(answer))

    async def detokenize(self, call: HttpCall) -> None:
        """The text of ids, special tokens included."""
        body = _parse_ids(await call.body(self._gateway.config.max_body_bytes))
        async with UntilDisconnect(call):
            target = await self._gateway.target(body.model)
            checks.check_ids(body.tokens, target.model, "tokens")
            answer: Detokenized = {"prompt": await self._gateway.tokenizers.run(target.text.decode, body.tokens)}
            await call.reply(200, msgspec.json.encode(answer))


def _ids(body: TokenizeBody, target: Target) -> list[int]:
    """In a tokenizer thread. Raises InvalidRequestError and ContextLengthError naming the field."""
    if body.messages is None:
        special, limit = body.add_special_tokens is not False, target.model.max_context_tokens
        return encode_bounded(target.text, body.prompt or "", limit, param="prompt", special=special)
    chat = ChatBody(
        model=target.model.name,
        messages=body.messages,
        tools=body.tools,
        add_special_tokens=body.add_special_tokens,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        chat_template_kwargs=body.chat_template_kwargs,
    )
    check_chat(chat)
    return chat_prompt(chat, target)[0]
