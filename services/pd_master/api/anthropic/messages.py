"""`POST /v1/messages` and `POST /v1/messages/count_tokens`."""

import msgspec

from services.common.request import Request
from services.pd_master.api.anthropic.answers import AnswerMessage, TokenCount
from services.pd_master.api.anthropic.convert import chat_body
from services.pd_master.api.anthropic.events import MessageEvents
from services.pd_master.api.anthropic.schema import CountBody, MessagesBody
from services.pd_master.api.anthropic.wire import content_of, message_head, stop_of, usage_of
from services.pd_master.api.choices import gather
from services.pd_master.api.events import stream_events
from services.pd_master.api.http import HttpCall, UntilDisconnect
from services.pd_master.api.openai.answer_plan import ChoiceReader
from services.pd_master.api.openai.chat_request import chat_request, check_chat, prompt_length
from services.pd_master.api.parse import BodyParser
from services.pd_master.api.translated import FieldNames
from services.pd_master.gateway import Gateway, now
from services.pd_master.live_request import LiveRequest
from services.pd_master.parsers.pieces import Content, Piece

_parse = BodyParser(MessagesBody)
_parse_count = BodyParser(CountBody)
_NAMES = FieldNames(
    {
        r"response_format\.json_schema": "output_config.format",
        r"response_format": "output_config.format",
        r"tools\[(\d+)\]\.function\.parameters": r"tools[\1].input_schema",
        r"tools\[(\d+)\]\.function": r"tools[\1]",
        r"tool_choice\.function": "tool_choice",
        r"continue_final_message": "messages",
        r"reasoning_effort": "output_config.effort",
        r"stop": "stop_sequences",
    }
)


class MessagesEndpoint:
    """Handlers of the Anthropic API. Called by the app on the event loop."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def __call__(self, call: HttpCall) -> None:
        """One message."""
        arrived = now()
        body = _parse(await call.body(self._gateway.config.max_body_bytes))
        with _NAMES.translating():
            await self._answer(call, body, arrived)

    async def _answer(self, call: HttpCall, body: MessagesBody, arrived: float) -> None:
        chat = chat_body(body)
        check_chat(chat)
        async with UntilDisconnect(call):
            target = await self._gateway.target(body.model)
            open_ended, plan = await chat_request(self._gateway, chat, target, call)
            request, fills_context = _limited(open_ended, body.max_tokens)
            live = await self._gateway.start(request, api="messages", arrived=arrived)
            call.name_answer(request.request_id, b"request-id")
            readers = plan.parsers(1)
            reader = readers[0] if readers else None
            try:
                if body.stream:
                    await stream_events(
                        call, live, MessageEvents(live, reader, fills_context=fills_context), live.listen
                    )
                else:
                    await _reply(call, live, reader, fills_context=fills_context)
            finally:
                await live.aclose()

    async def count(self, call: HttpCall) -> None:
        """Tokens of the prompt that these messages make."""
        body = _parse_count(await call.body(self._gateway.config.max_body_bytes))
        with _NAMES.translating():
            num_tokens = await prompt_length(self._gateway, chat_body(body), call)
        counted: TokenCount = {"input_tokens": num_tokens}
        await call.reply(200, msgspec.json.encode(counted))


def _limited(request: Request, max_tokens: int) -> tuple[Request, bool]:
    """With the client's limit, where the context has room for it; else the context is the limit, and says so."""
    room = request.stop.max_new_tokens
    stop = msgspec.structs.replace(request.stop, max_new_tokens=min(max_tokens, room))
    return msgspec.structs.replace(request, stop=stop), max_tokens > room


async def _reply(call: HttpCall, live: LiveRequest, reader: ChoiceReader | None, *, fills_context: bool) -> None:
    choice = (await gather(live, 1))[0]
    assert choice.finish is not None, "gathered to its end"
    pieces: list[Piece] = [Content(choice.text)] if choice.text else []
    if reader is not None:
        pieces = reader.read(choice.parts, len(choice.token_ids), is_last=True)
    has_calls = reader is not None and reader.has_calls(choice.finish)
    answer: AnswerMessage = {
        **message_head(live),
        "content": content_of(pieces),
        **stop_of(choice.finish, has_calls=has_calls, fills_context=fills_context),
        "usage": usage_of(live),
    }
    await call.reply(200, msgspec.json.encode(answer))
