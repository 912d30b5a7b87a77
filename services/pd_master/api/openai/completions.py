"""`POST /v1/completions`."""

import contextlib

import msgspec

from services.common.errors import InvalidRequestError
from services.common.request import Request
from services.pd_master import checks
from services.pd_master.api.choices import gather
from services.pd_master.api.events import stream_events
from services.pd_master.api.http import HttpCall, UntilDisconnect
from services.pd_master.api.merge import merge
from services.pd_master.api.openai import sampling
from services.pd_master.api.openai.answers import Completion, CompletionHead
from services.pd_master.api.openai.completion_answer import Echo, echo_of, logprobs_of, shown_choices
from services.pd_master.api.openai.completion_events import CompletionEvents
from services.pd_master.api.openai.completion_schema import CompletionBody, Prompt, prompts_of
from services.pd_master.api.openai.continuous_usage import counted
from services.pd_master.api.openai.head import answer_head
from services.pd_master.api.openai.structured import answer_grammar
from services.pd_master.api.openai.usage import usage_of
from services.pd_master.api.parse import BodyParser
from services.pd_master.gateway import Gateway, Target, new_request_id, now
from services.pd_master.live_request import LiveRequest
from services.pd_master.tokenizer import encode_bounded

DEFAULT_MAX_TOKENS = 16
"""OpenAI's default for completions."""

_parse = BodyParser(CompletionBody)


class CompletionsEndpoint:
    """Handler of completions. Called by the app on the event loop."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def __call__(self, call: HttpCall) -> None:
        """One completion request: each prompt becomes a request of its own."""
        arrived = now()
        body = _parse(await call.body(self._gateway.config.max_body_bytes))
        _check(body)
        prompts = prompts_of(body)
        async with UntilDisconnect(call):
            target = await self._gateway.target(body.model)
            requests = [await self._request(body, prompt, target, call) for prompt in prompts]
            _check_scores(body, requests)
            async with contextlib.AsyncExitStack() as running:
                lives = await self._gateway.start_all(requests, api="completions", arrived=arrived)
                for live in lives:
                    running.push_async_callback(live.aclose)
                await self._answer(call, body, lives, target, prompts)

    async def _request(self, body: CompletionBody, prompt: Prompt, target: Target, call: HttpCall) -> Request:
        config = self._gateway.config
        wanted = body.best_of or body.n or 1
        num_choices = checks.choice_count(wanted, config, param="best_of" if body.best_of else "n")
        ranked = wanted > (body.n or 1)
        num_logprobs = 0 if ranked and body.logprobs is None else body.logprobs
        params = sampling.sampling_params(body, target, num_logprobs)
        bad = await sampling.bad_sequences(self._gateway, body, target)
        echoed = body.logprobs if body.echo else None
        scored = max((num for num in (body.prompt_logprobs, echoed) if num is not None), default=None)
        params = msgspec.structs.replace(
            params, grammar=answer_grammar(body), bad_sequences=bad, num_prompt_logprobs=scored
        )
        prompt_ids = await self._prompt_ids(body, prompt, target, call.size)
        max_new = checks.fit_output(
            len(prompt_ids), body.max_tokens, target, param="max_tokens", num_choices=num_choices,
            default=DEFAULT_MAX_TOKENS,
        )  # fmt: skip
        return Request(
            request_id=new_request_id(),
            model=target.model.name,
            prompt_ids=prompt_ids,
            sampling=params,
            stop=sampling.stop_params(body, target.model, max_new),
            text=sampling.text_params(body),
            num_choices=num_choices,
            priority=body.priority or 0,
            client_request_id=call.label,
            queue_budget_s=config.queue_budget_s,
            deadline_s=config.deadline_s,
        )

    async def _prompt_ids(self, body: CompletionBody, prompt: Prompt, target: Target, num_bytes: int) -> list[int]:
        if isinstance(prompt, list):
            return checks.checked_prompt_ids(prompt, target.model, "prompt")
        special = body.add_special_tokens is not False
        limit = target.model.max_context_tokens
        return await self._gateway.tokenizers.run_for(
            num_bytes, lambda: encode_bounded(target.text, prompt, limit, param="prompt", special=special)
        )

    async def _answer(
        self, call: HttpCall, body: CompletionBody, lives: list[LiveRequest], target: Target, prompts: list[Prompt]
    ) -> None:
        request_id = lives[0].request.request_id
        call.name_answer(request_id)
        head: CompletionHead = {
            "id": f"cmpl-{request_id}",
            "object": "text_completion",
            **answer_head(body, target.model),
        }
        echoes = [echo_of(body, prompt, live, target) for prompt, live in zip(prompts, lives, strict=True)]
        if not body.stream:
            await self._reply(call, body, lives, target, echoes, head)
            return
        num_choices = body.n or 1
        shown = [echo for echo in echoes for _ in range(num_choices)]
        logprobs = [logprobs_of(body, echo, target) for echo in shown] if body.logprobs is not None else None
        events = CompletionEvents(
            lives,
            head,
            include_usage=bool(body.stream_options and body.stream_options.include_usage),
            echoes=shown,
            logprobs=logprobs,
        )
        encoder = counted(events, lives, body.stream_options)
        listen = lives[0].listen if len(lives) == 1 else None
        async with contextlib.aclosing(merge(lives, num_choices)) as batches:
            if not (body.echo and logprobs is not None):
                await stream_events(call, batches, encoder, listen)
                return
            async with contextlib.aclosing(events.after_prompts(batches, self._gateway.tokenizers.run)) as ready:
                await stream_events(call, ready, encoder, listen)

    async def _reply(
        self,
        call: HttpCall,
        body: CompletionBody,
        lives: list[LiveRequest],
        target: Target,
        echoes: list[Echo | None],
        head: CompletionHead,
    ) -> None:
        per_prompt = lives[0].request.num_choices
        async with contextlib.aclosing(merge(lives, per_prompt)) as batches:
            choices = await gather(batches, len(lives) * per_prompt)

        def encoded() -> bytes:
            shown = shown_choices(body, choices, lives, echoes, target)
            answer: Completion = {**head, "choices": shown, "usage": usage_of(lives)}
            return msgspec.json.encode(answer)

        is_long = any(live.prompt_logprobs is not None for live in lives)
        await call.reply(200, await self._gateway.tokenizers.run(encoded) if is_long else encoded())


def _check_scores(body: CompletionBody, requests: list[Request]) -> None:
    """The prompts' log-probabilities are held, and shown with each choice, by the call as a whole."""
    num_tokens = sum(len(request.prompt_ids) for request in requests)
    param = "prompt_logprobs" if body.prompt_logprobs is not None else "echo"
    num_top = requests[0].sampling.num_prompt_logprobs
    checks.check_prompt_logprobs(num_tokens, num_top, param=param, num_shown=body.n or 1)


def _check(body: CompletionBody) -> None:
    """What types alone do not say."""
    sampling.check_fields(body)
    answer_grammar(body)
    if body.suffix:
        raise InvalidRequestError("suffix: insertion is not supported by the served models", param="suffix")
    if body.best_of is not None and body.best_of < (body.n or 1):
        raise InvalidRequestError("best_of: must be at least n", param="best_of")
    if body.best_of is not None and body.best_of > (body.n or 1) and body.stream:
        raise InvalidRequestError("best_of: a stream cannot be ranked before its end", param="best_of")
