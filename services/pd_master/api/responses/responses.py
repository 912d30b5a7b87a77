"""`POST /v1/responses` and `POST /v1/responses/input_tokens`."""

import time

import msgspec

from services.common.errors import SluiceError
from services.common.request import Delta, Finish, FinishReason
from services.pd_master.api.choices import gather, parts_of
from services.pd_master.api.events import stream_events
from services.pd_master.api.http import HttpCall, UntilDisconnect
from services.pd_master.api.openai.answer_plan import ChoiceReader, num_reasoning_tokens
from services.pd_master.api.openai.chat_request import chat_request, check_chat, prompt_length
from services.pd_master.api.parse import BodyParser
from services.pd_master.api.responses.answers import InputTokens, Response, ResponseUsage, Status
from services.pd_master.api.responses.convert import chat_body, known_namespaces
from services.pd_master.api.responses.items import Event, OutputItems
from services.pd_master.api.responses.schema import ContextFields, HostedTool, ResponsesBody
from services.pd_master.api.translated import FieldNames
from services.pd_master.gateway import Gateway, now
from services.pd_master.live_request import LiveRequest
from services.pd_master.parsers.pieces import Content, Piece

_parse = BodyParser(ResponsesBody)
_parse_count = BodyParser(ContextFields)
encode = msgspec.json.encode
_NAMES = FieldNames(
    {
        r"messages(\[.*)?": "input",  # its items make other messages, with other numbers
        r"response_format\.json_schema": "text.format",
        r"response_format": "text.format",
        r"max_(completion_)?tokens": "max_output_tokens",
        r"tools\[(\d+)\]\.function": r"tools[\1]",
        r"tool_choice\.function": "tool_choice",
        r"reasoning_effort": "reasoning.effort",
    }
)


class ResponsesEndpoint:
    """Handler of the Responses API. Called by the app on the event loop."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def __call__(self, call: HttpCall) -> None:
        """One response."""
        arrived = now()
        body = _parse(await call.body(self._gateway.config.max_body_bytes))
        with _NAMES.translating():
            await self._answer(call, body, arrived)

    async def _answer(self, call: HttpCall, body: ResponsesBody, arrived: float) -> None:
        chat = chat_body(body)
        check_chat(chat)
        async with UntilDisconnect(call):
            target = await self._gateway.target(body.model)
            request, plan = await chat_request(self._gateway, chat, target, call)
            live = await self._gateway.start(request, api="responses", arrived=arrived)
            call.name_answer(request.request_id)
            answer = ResponseEvents(live, body, plan.parsers(1))
            try:
                if body.stream:
                    await stream_events(call, live, answer, live.listen)
                else:
                    await call.reply(200, encode(await answer.whole()))
            finally:
                await live.aclose()

    async def count(self, call: HttpCall) -> None:
        """Tokens of the prompt that this input makes."""
        body = _parse_count(await call.body(self._gateway.config.max_body_bytes))
        with _NAMES.translating():
            num_tokens = await prompt_length(self._gateway, chat_body(body), call)
        counted: InputTokens = {"object": "response.input_tokens", "input_tokens": num_tokens}
        await call.reply(200, encode(counted))


class NotKeptError(SluiceError):
    """A response that was answered before: none is kept."""

    code = "response_not_found"
    http_status = 404
    grpc_status = "NOT_FOUND"


async def earlier_response(call: HttpCall) -> None:
    """Whatever is asked of an earlier response. Raises NotKeptError."""
    raise NotKeptError(f"{call.path}: responses are not kept here: their state is the client's, whatever `store` says")


class ResponseEvents:
    """Builds one response, and encodes it as a stream of events."""

    def __init__(self, live: LiveRequest, body: ResponsesBody, readers: list[ChoiceReader] | None) -> None:
        self._live = live
        self._body = body
        self._reader = readers[0] if readers else None
        self._readers = readers
        self._items = OutputItems(live.request.request_id, known_namespaces(body.tools))
        self._created_at = int(time.time())
        self._number = 0
        self._finish: Finish | None = None

    async def whole(self) -> Response:
        """The response of an answer that is not streamed."""
        choice = (await gather(self._live, 1))[0]
        self._finish = choice.finish
        for piece in self._pieces(choice.parts, len(choice.token_ids), is_last=True):
            self._items.add(piece)
        self._items.close(self._status())
        return self._response(self._status())

    def start(self) -> bytes:
        """The response before its output."""
        response: Response = {**self._response("in_progress"), "output": [], "usage": None}
        created = self._encoded({"type": "response.created", "response": response})
        return created + self._encoded({"type": "response.in_progress", "response": response})

    def delta(self, delta: Delta) -> bytes:
        """Events of the pieces that it completes."""
        self._finish = delta.finish or self._finish
        pieces = self._pieces(parts_of(delta), len(delta.token_ids), is_last=delta.finish is not None)
        return b"".join([self._encoded(event) for piece in pieces for event in self._items.add(piece)])

    def end(self) -> bytes:
        """The last item's end and the whole response."""
        status = self._status()
        events = [*self._items.close(status), {"type": f"response.{status}", "response": self._response(status)}]
        return b"".join([self._encoded(event) for event in events])

    def error(self, error: SluiceError) -> bytes:
        """The failed response as the last event."""
        failed = self._response("failed")
        failed["error"] = {"code": "server_error", "message": error.message}
        return self._encoded({"type": "response.failed", "response": failed})

    def _pieces(self, texts: list[str], num_tokens: int, *, is_last: bool) -> list[Piece]:
        if self._reader is not None:
            return self._reader.read(texts, num_tokens, is_last=is_last)
        text = "".join(texts)
        return [Content(text)] if text else []

    def _status(self) -> Status:
        is_cut = self._finish is None or self._finish.reason is FinishReason.LENGTH
        return "incomplete" if is_cut else "completed"

    def _encoded(self, event: Event) -> bytes:
        kind = event["type"]
        numbered = encode({**event, "sequence_number": self._number})
        self._number += 1
        return b"event: %s\ndata: %s\n\n" % (kind.encode(), numbered)

    def _response(self, status: Status) -> Response:
        body = self._body
        return {
            "id": f"resp_{self._live.request.request_id}",
            "object": "response",
            "created_at": self._created_at,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "model": self._live.request.model,
            "output": self._items.items,
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": body.reasoning or {"effort": None, "summary": None},
            "store": False,
            "temperature": self._live.request.sampling.temperature,
            "text": body.text or {"format": {"type": "text"}},
            "tool_choice": body.tool_choice or "auto",
            "tools": [tool for tool in body.tools or () if not isinstance(tool, HostedTool)],
            "top_p": self._live.request.sampling.top_p,
            "truncation": "disabled",
            "usage": self._usage(),
            "user": body.user,
            "metadata": body.metadata or {},
        }

    def _usage(self) -> ResponseUsage:
        live = self._live
        return {
            "input_tokens": live.num_prompt_tokens,
            "input_tokens_details": {"cached_tokens": live.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": live.num_output_tokens,
            "output_tokens_details": {"reasoning_tokens": num_reasoning_tokens(self._readers)},
            "total_tokens": live.num_prompt_tokens + live.num_output_tokens,
        }
