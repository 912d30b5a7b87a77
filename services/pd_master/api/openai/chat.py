"""`POST /v1/chat/completions`."""

import time
from typing import Any

import msgspec

from services.common.errors import InvalidRequestError
from services.common.request import Request
from services.pd_master import checks
from services.pd_master.api.choices import Choice, gather
from services.pd_master.api.events import stream_events
from services.pd_master.api.http import HttpCall, UntilDisconnect
from services.pd_master.api.openai import sampling
from services.pd_master.api.openai.answer_plan import AnswerPlan, ChoiceReader, message_of, plan_answer
from services.pd_master.api.openai.chat_events import ChatEvents, finish_reason
from services.pd_master.api.openai.chat_schema import ChatBody
from services.pd_master.api.openai.logprobs import chat_logprobs
from services.pd_master.api.openai.messages import template_messages, template_tools
from services.pd_master.api.openai.usage import usage_of
from services.pd_master.api.parse import BodyParser
from services.pd_master.gateway import Gateway, Target, new_request_id, now
from services.pd_master.live_request import LiveRequest
from services.pd_master.parsers.pieces import Content, Piece
from services.pd_master.tokenizer import encode_bounded

_parse = BodyParser(ChatBody)


class ChatEndpoint:
    """Handler of chat completions. Called by the app on the event loop."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def __call__(self, call: HttpCall) -> None:
        """One chat."""
        arrived = now()
        body = _parse(await call.body(self._gateway.config.max_body_bytes))
        _check(body)
        async with UntilDisconnect(call):
            target = await self._gateway.target(body.model)
            request, plan = await self._request(body, target, call)
            live = await self._gateway.start(request, api="chat", arrived=arrived)
            try:
                await self._answer(call, body, live, target, plan)
            finally:
                await live.aclose()

    async def _request(self, body: ChatBody, target: Target, call: HttpCall) -> tuple[Request, AnswerPlan]:
        config = self._gateway.config
        num_choices = checks.choice_count(body.n, config, param="n")
        num_logprobs = (body.top_logprobs or 0) if body.logprobs else None
        params = sampling.sampling_params(body, target.model, num_logprobs)
        prompt_ids, plan = await self._gateway.tokenizers.run(prompt_of, body, target)
        wanted = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
        param = "max_completion_tokens" if body.max_completion_tokens is not None else "max_tokens"
        max_new = checks.fit_output(len(prompt_ids), wanted, target.model, param=param)
        text = sampling.text_params(body)
        if plan.marks_are_special:
            text = msgspec.structs.replace(text, skip_special_tokens=False)
        request = Request(
            request_id=new_request_id(),
            model=target.model.name,
            prompt_ids=prompt_ids,
            sampling=params,
            stop=sampling.stop_params(body, target.model, max_new),
            text=text,
            num_choices=num_choices,
            priority=body.priority or 0,
            client_request_id=call.header(b"x-request-id")[:128],
            queue_budget_s=config.queue_budget_s,
            deadline_s=config.deadline_s,
        )
        return request, plan

    async def _answer(
        self, call: HttpCall, body: ChatBody, live: LiveRequest, target: Target, plan: AnswerPlan
    ) -> None:
        request = live.request
        head = {
            "id": f"chatcmpl-{request.request_id}",
            "object": "chat.completion.chunk" if body.stream else "chat.completion",
            "created": int(time.time()),
            "model": request.model,
        }
        call.headers_out.append((b"x-request-id", request.request_id.encode()))
        readers = plan.parsers(request.num_choices)
        if body.stream:
            events = ChatEvents(
                live,
                head,
                include_usage=bool(body.stream_options and body.stream_options.include_usage),
                vocabulary=target.text.vocabulary,
                num_top_logprobs=body.top_logprobs or 0,
                readers=readers,
            )
            await stream_events(call, live, events)
            return
        choices = await gather(live, request.num_choices)
        shown = [
            _choice(at, choice, body, target, readers[at] if readers else None) for at, choice in enumerate(choices)
        ]
        await call.reply(200, msgspec.json.encode({**head, "choices": shown, "usage": usage_of([live])}))


def prompt_of(body: ChatBody, target: Target) -> tuple[list[int], AnswerPlan]:
    """Template and tokenizer, in a tokenizer thread; what the output will look like follows from them. Raises
    InvalidRequestError and ContextLengthError (`messages`)."""
    tools = template_tools(body.tools) if body.tool_choice != "none" else None
    template = target.text.template(with_tools=tools is not None)
    extra = dict(body.chat_template_kwargs or {})
    if body.reasoning_effort is not None:
        extra["reasoning_effort"] = body.reasoning_effort
    text = template.render(
        template_messages(body.messages, template.source),
        tools=tools,
        add_generation_prompt=body.add_generation_prompt is not False,
        extra=extra,
    )
    if not text:
        raise InvalidRequestError("messages: the chat template makes an empty prompt of them", param="messages")
    special = body.add_special_tokens or False  # templates write the special tokens themselves
    ids = encode_bounded(target.text, text, target.model.max_context_tokens, param="messages", special=special)
    return ids, plan_answer(body, template.source, text)


def _check(body: ChatBody) -> None:
    """What types alone do not say."""
    sampling.refuse_unsupported(body)
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequestError("top_logprobs: needs logprobs to be true", param="top_logprobs")
    if body.stream_options is not None and not body.stream:
        raise InvalidRequestError("stream_options: only with stream", param="stream_options")
    if body.response_format is not None and body.response_format.type != "text":
        raise InvalidRequestError("response_format: only text is supported by this server", param="response_format")
    if body.tool_choice not in (None, "none", "auto"):
        problem = "only none and auto are supported by this server" if body.tools else "needs tools"
        raise InvalidRequestError(f"tool_choice: {problem}", param="tool_choice")
    checks.check_template_kwargs(body.chat_template_kwargs or {}, "chat_template_kwargs")


def _choice(at: int, choice: Choice, body: ChatBody, target: Target, reader: ChoiceReader | None) -> dict[str, Any]:
    assert choice.finish is not None, "gathered to its end"
    pieces: list[Piece] = [Content(choice.text)] if reader is None else reader.read(choice.text, is_last=True)
    logprobs = chat_logprobs(choice.logprobs, target.text.vocabulary, body.top_logprobs or 0) if body.logprobs else None
    return {
        "index": at,
        "message": message_of(pieces),
        "logprobs": logprobs,
        "finish_reason": finish_reason(choice.finish, has_calls=reader is not None and reader.has_calls),
        "stop_reason": choice.stop_reason,
    }
