"""`POST /v1/completions`."""

import contextlib

import msgspec

from services.common.errors import InvalidRequestError
from services.common.request import Request
from services.pd_master import checks
from services.pd_master.api.choices import Choice, gather
from services.pd_master.api.events import stream_events
from services.pd_master.api.http import HttpCall, UntilDisconnect
from services.pd_master.api.merge import merge
from services.pd_master.api.openai import sampling
from services.pd_master.api.openai.answers import Completion, CompletionChoice, CompletionHead
from services.pd_master.api.openai.completion_events import CompletionEvents
from services.pd_master.api.openai.completion_schema import CompletionBody, Prompt, prompts_of
from services.pd_master.api.openai.head import answer_head
from services.pd_master.api.openai.logprobs import CompletionLogprobs
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
            async with contextlib.AsyncExitStack() as running:
                lives = []
                for request in requests:
                    live = await self._gateway.start(request, api="completions", arrived=arrived)
                    running.push_async_callback(live.aclose)
                    lives.append(live)
                await self._answer(call, body, lives, target, prompts)

    async def _request(self, body: CompletionBody, prompt: Prompt, target: Target, call: HttpCall) -> Request:
        config = self._gateway.config
        wanted = body.best_of or body.n or 1
        num_choices = checks.choice_count(wanted, config, param="best_of" if body.best_of else "n")
        ranked = wanted > (body.n or 1)
        num_logprobs = 0 if ranked and body.logprobs is None else body.logprobs
        params = sampling.sampling_params(body, target, num_logprobs)
        bad = await sampling.bad_sequences(self._gateway, body, target)
        params = msgspec.structs.replace(params, grammar=answer_grammar(body), bad_sequences=bad)
        prompt_ids = await self._prompt_ids(body, prompt, target)
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

    async def _prompt_ids(self, body: CompletionBody, prompt: Prompt, target: Target) -> list[int]:
        if isinstance(prompt, list):
            return checks.checked_prompt_ids(prompt, target.model, "prompt")
        special = body.add_special_tokens is not False
        limit = target.model.max_context_tokens
        return await self._gateway.tokenizers.run(
            lambda: encode_bounded(target.text, prompt, limit, param="prompt", special=special)
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
        echoes = [_echo(body, prompt, live, target) for prompt, live in zip(prompts, lives, strict=True)]
        if not body.stream:
            await self._reply(call, body, lives, target, echoes, head)
            return
        num_choices = body.n or 1
        shown = [echo for echo in echoes for _ in range(num_choices)]
        logprobs = [_logprobs(body, echo, target) for echo in shown] if body.logprobs is not None else None
        events = CompletionEvents(
            lives,
            head,
            include_usage=bool(body.stream_options and body.stream_options.include_usage),
            echoes=shown,
            logprobs=logprobs,
        )
        async with contextlib.aclosing(merge(lives, num_choices)) as batches:
            await stream_events(call, batches, events)

    async def _reply(
        self,
        call: HttpCall,
        body: CompletionBody,
        lives: list[LiveRequest],
        target: Target,
        echoes: list[str],
        head: CompletionHead,
    ) -> None:
        async with contextlib.aclosing(merge(lives, lives[0].request.num_choices)) as batches:
            choices = await gather(batches, len(lives) * lives[0].request.num_choices)
        shown: list[CompletionChoice] = []
        per_prompt = lives[0].request.num_choices
        for at, echo in enumerate(echoes):
            of_prompt = choices[at * per_prompt : (at + 1) * per_prompt]
            for choice in _best(of_prompt, body.n or 1):
                shown.append(_choice(len(shown), choice, echo, body, target))
        answer: Completion = {**head, "choices": shown, "usage": usage_of(lives)}
        await call.reply(200, msgspec.json.encode(answer))


def _check(body: CompletionBody) -> None:
    """What types alone do not say."""
    sampling.refuse_unsupported(body)
    answer_grammar(body)
    if body.suffix:
        raise InvalidRequestError("suffix: insertion is not supported by the served models", param="suffix")
    if body.stream_options is not None and not body.stream:
        raise InvalidRequestError("stream_options: only with stream", param="stream_options")
    if body.best_of is not None and body.best_of < (body.n or 1):
        raise InvalidRequestError("best_of: must be at least n", param="best_of")
    if body.best_of is not None and body.best_of > (body.n or 1) and body.stream:
        raise InvalidRequestError("best_of: a stream cannot be ranked before its end", param="best_of")
    if body.echo and body.logprobs is not None:
        raise InvalidRequestError("echo: prompt log-probabilities are not supported by this server", param="echo")


def _echo(body: CompletionBody, prompt: Prompt, live: LiveRequest, target: Target) -> str:
    """The prompt as text, when it is to stand before the output."""
    if not body.echo:
        return ""
    if isinstance(prompt, str):
        return prompt
    return target.text.decode(live.request.prompt_ids, skip_special_tokens=live.request.text.skip_special_tokens)


def _best(choices: list[Choice], num: int) -> list[Choice]:
    """The `num` choices with the highest mean log-probability (best_of), or all there are."""
    if len(choices) <= num:
        return choices
    return sorted(choices, key=_mean_logprob, reverse=True)[:num]


def _mean_logprob(choice: Choice) -> float:
    values = [logprob.logprob for logprob in choice.logprobs]
    return sum(values) / len(values) if values else float("-inf")


def _logprobs(body: CompletionBody, echo: str, target: Target) -> CompletionLogprobs:
    return CompletionLogprobs(target.text.vocabulary, body.logprobs or 0, offset=len(echo))


def _choice(at: int, choice: Choice, echo: str, body: CompletionBody, target: Target) -> CompletionChoice:
    logprobs = _logprobs(body, echo, target).take(choice.logprobs) if body.logprobs is not None else None
    return {
        "index": at,
        "text": echo + choice.text,
        "logprobs": logprobs,
        "finish_reason": choice.finish_reason,
        "stop_reason": choice.stop_reason,
    }
