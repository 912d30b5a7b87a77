"""Answers and events of the HTTP APIs, read into `Answer`; each raises AssertionError for what no stream may hold."""

import json
from collections.abc import Callable

from tests.faults.chaos.agent_events import messages_event, messages_whole, responses_event, responses_whole
from tests.faults.chaos.answers import Answer, Call, Choice, Json, Usage


def read_whole(path: str, answer: Answer, body: Json) -> None:
    """An answer that is not streamed."""
    _WHOLE[path](answer, body)
    answer.is_whole = True


def read_event(path: str, answer: Answer, data: str) -> None:
    """One event of a stream."""
    assert not answer.is_whole, f"behind the end: {data[:200]}"
    if data == "[DONE]":
        assert not answer.error
        answer.is_whole = True
        return
    _EVENT[path](answer, json.loads(data))


# ------------------------------------------------------------------------------------------------------------- OpenAI


def _chat_whole(answer: Answer, body: Json) -> None:
    for one in body["choices"]:
        choice = answer.choice(one["index"])
        choice.text = one["message"]["content"] or ""
        choice.thoughts = one["message"].get("reasoning_content", "")
        choice.calls = [
            Call(each["function"]["name"], each["function"]["arguments"])
            for each in one["message"].get("tool_calls", ())
        ]
        choice.logprobs = [each["logprob"] for each in (one["logprobs"] or {"content": []})["content"]]
        choice.end(one["finish_reason"], one["stop_reason"])
    answer.prompt_logprobs = _prompt(body)
    _openai_usage(answer, body["usage"])


def _completion_whole(answer: Answer, body: Json) -> None:
    for one in body["choices"]:
        choice = answer.choice(one["index"])
        choice.text = one["text"]
        choice.logprobs = _known((one["logprobs"] or {"token_logprobs": []})["token_logprobs"])
        choice.end(one["finish_reason"], one["stop_reason"])
        answer.prompt_logprobs += _prompt(one)
    _openai_usage(answer, body["usage"])


def _openai_event(answer: Answer, event: Json) -> None:
    if "error" in event:
        answer.error = json.dumps(event["error"])
        return
    if event.get("usage"):
        assert event["choices"] == []
        assert answer.usage is None
        _openai_usage(answer, event["usage"])
        return
    for one in event["choices"]:
        choice = answer.choice(one["index"])
        shown = one.get("logprobs")
        if "delta" in one:
            _chat_delta(choice, one["delta"])
            choice.logprobs += [each["logprob"] for each in shown["content"]] if shown else []
        else:
            choice.text += one["text"]
            choice.logprobs += _known(shown["token_logprobs"]) if shown else []
        if one["finish_reason"]:
            choice.end(one["finish_reason"], one.get("stop_reason"))


def _chat_delta(choice: Choice, delta: Json) -> None:
    choice.text += delta.get("content") or ""
    choice.thoughts += delta.get("reasoning_content") or ""
    for each in delta.get("tool_calls", ()):
        if "id" in each:
            assert each["index"] == len(choice.calls)
            choice.calls.append(Call(each["function"]["name"]))
        choice.calls[each["index"]].arguments += each["function"]["arguments"]


def _openai_usage(answer: Answer, usage: Json) -> None:
    answer.usage = Usage(usage["prompt_tokens"], usage["completion_tokens"])
    assert usage["total_tokens"] == sum(answer.usage)
    assert usage["prompt_tokens_details"]["cached_tokens"] <= answer.usage.prompt


def _known(values: list[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _prompt(holder: Json) -> list[float]:
    shown = holder.get("prompt_logprobs") or []
    return [each["logprob"] for one in shown if one for each in one.values()]


# ------------------------------------------------------------------------------------------------------------- native


def _native_whole(answer: Answer, body: Json) -> None:
    texts = body["generated_text"]
    reasons, tokens, logprobs = body["finish_reason"], body["tokens"], body["logprobs"]
    if len(texts) == 1:
        reasons, tokens, logprobs = [reasons], [tokens], [logprobs]
    for at, text in enumerate(texts):
        choice = answer.choice(at)
        choice.text, choice.ids, choice.logprobs = text, [one["id"] for one in tokens[at]], logprobs[at]
        choice.end(reasons[at])
    answer.prompt_logprobs = _prompt(body)
    answer.usage = Usage(body["prompt_tokens"], sum(len(choice.ids) for choice in answer.choices.values()))


def _native_event(answer: Answer, event: Json) -> None:
    if "error" in event:
        answer.error = json.dumps(event["error"])
        return
    choice, token = answer.choice(0), event["token"]
    choice.text += token["text"]
    if token["id"] is not None:
        choice.ids.append(token["id"])
        choice.logprobs.append(token["logprob"])
    assert token["count_output_tokens"] == len(choice.ids)
    assert event["finished"] == (event["finish_reason"] is not None)
    if event["finished"]:
        choice.end(event["finish_reason"])
        answer.is_whole = True
        answer.usage = Usage(token["prompt_tokens"], len(choice.ids))


_WHOLE: dict[str, Callable[[Answer, Json], None]] = {
    "/v1/chat/completions": _chat_whole,
    "/v1/completions": _completion_whole,
    "/generate": _native_whole,
    "/v1/responses": responses_whole,
    "/v1/messages": messages_whole,
}
_EVENT: dict[str, Callable[[Answer, Json], None]] = {
    "/v1/chat/completions": _openai_event,
    "/v1/completions": _openai_event,
    "/generate_stream": _native_event,
    "/v1/responses": responses_event,
    "/v1/messages": messages_event,
}
