"""`POST /v1/chat/completions`."""

import msgspec

from services.pd_master.api.choices import Choice, gather
from services.pd_master.api.events import stream_events
from services.pd_master.api.http import HttpCall, UntilDisconnect
from services.pd_master.api.openai.answer_plan import AnswerPlan, ChoiceReader, message_of, num_reasoning_tokens
from services.pd_master.api.openai.answers import ChatChoice, ChatCompletion, ChatHead, ScoredChatCompletion
from services.pd_master.api.openai.chat_events import ChatEvents, finish_reason
from services.pd_master.api.openai.chat_request import chat_request, check_chat
from services.pd_master.api.openai.chat_schema import ChatBody
from services.pd_master.api.openai.continuous_usage import counted
from services.pd_master.api.openai.head import answer_head
from services.pd_master.api.openai.logprobs import chat_logprobs
from services.pd_master.api.openai.usage import usage_of
from services.pd_master.api.parse import BodyParser
from services.pd_master.api.prompt_logprobs import shown_prompt
from services.pd_master.gateway import Gateway, Target, now
from services.pd_master.live_request import LiveRequest
from services.pd_master.parsers.pieces import Content, Piece

_parse = BodyParser(ChatBody)


class ChatEndpoint:
    """Handler of chat completions. Called by the app on the event loop."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def __call__(self, call: HttpCall) -> None:
        """One chat."""
        arrived = now()
        body = _parse(await call.body(self._gateway.config.max_body_bytes))
        check_chat(body)
        async with UntilDisconnect(call):
            target = await self._gateway.target(body.model)
            request, plan = await chat_request(self._gateway, body, target, call)
            live = await self._gateway.start(request, api="chat", arrived=arrived)
            try:
                await self._answer(call, body, live, target, plan)
            finally:
                await live.aclose()

    async def _answer(
        self, call: HttpCall, body: ChatBody, live: LiveRequest, target: Target, plan: AnswerPlan
    ) -> None:
        request = live.request
        head: ChatHead = {
            "id": f"chatcmpl-{request.request_id}",
            "object": "chat.completion.chunk" if body.stream else "chat.completion",
            **answer_head(body, target.model),
        }
        call.name_answer(request.request_id)
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
            await stream_events(call, live, counted(events, [live], body.stream_options), live.listen)
            return
        choices = await gather(live, request.num_choices)
        shown = [
            _choice(at, choice, body, target, readers[at] if readers else None) for at, choice in enumerate(choices)
        ]
        answer: ChatCompletion = {**head, "choices": shown, "usage": usage_of([live], num_reasoning_tokens(readers))}
        if body.prompt_logprobs is None:
            await call.reply(200, msgspec.json.encode(answer))
            return
        await call.reply(
            200, await self._gateway.tokenizers.run(_with_prompt, answer, live, body.prompt_logprobs, target)
        )


def _with_prompt(answer: ChatCompletion, live: LiveRequest, num_top: int, target: Target) -> bytes:
    """The whole answer; in a thread, since long prompts have many log-probabilities."""
    scores, prompt_ids = live.prompt_logprobs, live.request.prompt_ids
    assert scores is not None, "asked for, and here before the first token"
    shown = shown_prompt(prompt_ids, scores, num_top, target.text.vocabulary)
    scored: ScoredChatCompletion = {**answer, "prompt_logprobs": shown, "prompt_token_ids": prompt_ids}
    return msgspec.json.encode(scored)


def _choice(at: int, choice: Choice, body: ChatBody, target: Target, reader: ChoiceReader | None) -> ChatChoice:
    assert choice.finish is not None, "gathered to its end"
    pieces: list[Piece] = (
        [Content(choice.text)] if reader is None else reader.read(choice.parts, len(choice.token_ids), is_last=True)
    )
    logprobs = chat_logprobs(choice.logprobs, target.text.vocabulary, body.top_logprobs or 0) if body.logprobs else None
    return {
        "index": at,
        "message": message_of(pieces),
        "logprobs": logprobs,
        "finish_reason": finish_reason(choice.finish, has_calls=reader is not None and reader.has_calls(choice.finish)),
        "stop_reason": choice.stop_reason,
    }
