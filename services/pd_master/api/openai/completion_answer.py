"""The choices of a completion that is not streamed, and the echoed prompt before each, streamed or not."""

from collections.abc import Sequence
from typing import NamedTuple

from services.pd_master.api.choices import Choice
from services.pd_master.api.openai.answers import CompletionChoice, CompletionLogprobLists
from services.pd_master.api.openai.completion_schema import CompletionBody, Prompt
from services.pd_master.api.openai.logprobs import CompletionLogprobs
from services.pd_master.api.prompt_logprobs import ShownPrompt, shown_prompt
from services.pd_master.gateway import Target
from services.pd_master.live_request import LiveRequest


class Echo(NamedTuple):
    """A prompt that is shown before its output."""

    text: str
    live: LiveRequest

    def logprobs(self, into: CompletionLogprobs) -> CompletionLogprobLists:
        """The prompt's lists; before any of the output's, and once there is output."""
        scores = self.live.prompt_logprobs
        assert scores is not None, "asked for, and here before the first token"
        return into.take_prompt(self.live.request.prompt_ids, scores, self.text)


def echo_of(body: CompletionBody, prompt: Prompt, live: LiveRequest, target: Target) -> Echo | None:
    """The prompt as text, when it is to stand before the output."""
    if not body.echo:
        return None
    if isinstance(prompt, str):
        return Echo(prompt, live)
    skip = live.request.text.skip_special_tokens
    return Echo(target.text.decode(live.request.prompt_ids, skip_special_tokens=skip), live)


def logprobs_of(body: CompletionBody, echo: Echo | None, target: Target) -> CompletionLogprobs:
    """One choice's lists, at their start."""
    return CompletionLogprobs(target.text.vocabulary, body.logprobs or 0, offset=len(echo.text) if echo else 0)


def shown_choices(
    body: CompletionBody, choices: list[Choice], lives: Sequence[LiveRequest], echoes: Sequence[Echo | None],
    target: Target,
) -> list[CompletionChoice]:  # fmt: skip
    """Of each prompt's choices, which follow each other, the `n` best."""
    shown: list[CompletionChoice] = []
    per_prompt = lives[0].request.num_choices
    for at, (live, echo) in enumerate(zip(lives, echoes, strict=True)):
        prompt = _prompt_of(body, live, target)
        for choice in _best(choices[at * per_prompt : (at + 1) * per_prompt], body.n or 1):
            one = _choice(len(shown), choice, echo, body, target)
            if prompt is not None:
                one["prompt_logprobs"], one["prompt_token_ids"] = prompt, live.request.prompt_ids
            shown.append(one)
    return shown


def _prompt_of(body: CompletionBody, live: LiveRequest, target: Target) -> ShownPrompt | None:
    if body.prompt_logprobs is None or live.prompt_logprobs is None:
        return None
    ids = live.request.prompt_ids
    return shown_prompt(ids, live.prompt_logprobs, body.prompt_logprobs, target.text.vocabulary)


def _best(choices: list[Choice], num: int) -> list[Choice]:
    """The `num` choices with the highest mean log-probability (best_of), or all there are."""
    if len(choices) <= num:
        return choices
    return sorted(choices, key=_mean_logprob, reverse=True)[:num]


def _mean_logprob(choice: Choice) -> float:
    values = [logprob.logprob for logprob in choice.logprobs]
    return sum(values) / len(values) if values else float("-inf")


def _choice(at: int, choice: Choice, echo: Echo | None, body: CompletionBody, target: Target) -> CompletionChoice:
    return {
        "index": at,
        "text": (echo.text if echo else "") + choice.text,
        "logprobs": None if body.logprobs is None else _all_logprobs(choice, echo, body, target),
        "finish_reason": choice.finish_reason,
        "stop_reason": choice.stop_reason,
    }


def _all_logprobs(choice: Choice, echo: Echo | None, body: CompletionBody, target: Target) -> CompletionLogprobLists:
    lists = logprobs_of(body, echo, target)
    if echo is None:
        return lists.take(choice.logprobs)
    prompt, output = echo.logprobs(lists), lists.take(choice.logprobs)
    tops = (prompt["top_logprobs"], output["top_logprobs"])
    return {
        "tokens": prompt["tokens"] + output["tokens"],
        "token_logprobs": prompt["token_logprobs"] + output["token_logprobs"],
        "top_logprobs": None if tops[0] is None or tops[1] is None else tops[0] + tops[1],
        "text_offset": prompt["text_offset"] + output["text_offset"],
    }
