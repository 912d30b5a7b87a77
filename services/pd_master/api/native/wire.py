"""Answers and events of the native API, byte for byte: no space after `data:`, no end mark, keys in the same order."""

from collections.abc import Sequence
from typing import Any

import msgspec

from services.common.errors import RequestAbortedError, SluiceError
from services.common.request import Delta, FinishReason, TokenLogprob
from services.pd_master.api.choices import Choice, spread
from services.pd_master.api.errors import openai_error
from services.pd_master.api.native.answers import Generated, InputUsage, NativeToken
from services.pd_master.api.prompt_logprobs import shown_prompt
from services.pd_master.live_request import LiveRequest
from services.pd_master.model_text import ModelText

encode = msgspec.json.encode


def input_usage(live: LiveRequest) -> InputUsage:
    """What the prompt took."""
    return {"input_text_tokens": live.num_prompt_tokens, "input_cached_tokens": live.cached_tokens}


def whole_answer(live: LiveRequest, choices: list[Choice], text: ModelText, *, details: bool) -> Generated:
    """The answer of `/generate`. With one choice, everything but the text list is a single value."""
    answer: Generated = {
        "generated_text": [choice.text for choice in choices],
        "count_output_tokens": _single([len(choice.token_ids) for choice in choices]),
        "finish_reason": _single([choice.finish_reason for choice in choices]),
        "prompt_tokens": live.num_prompt_tokens,
    }
    if details:
        answer["tokens"] = _single([_tokens(choice, live, text) for choice in choices])
        answer["logprobs"] = _single([[logprob.logprob for logprob in choice.logprobs] for choice in choices])
        answer["prompt_token_ids"] = live.request.prompt_ids
        answer["input_usage"] = input_usage(live)
    return answer


def with_prompt(answer: Generated, live: LiveRequest, text: ModelText) -> bytes:
    """The answer with the prompt's log-probabilities; in a thread, since long prompts have many."""
    scores, request = live.prompt_logprobs, live.request
    num_top = request.sampling.num_prompt_logprobs
    assert scores is not None
    assert num_top is not None
    answer["prompt_token_ids"] = request.prompt_ids
    answer["prompt_logprobs"] = shown_prompt(request.prompt_ids, scores, num_top, text.vocabulary)
    return encode(answer)


class NativeEvents:
    """Encodes one `/generate_stream`: an event per token, choices told apart by nothing, so there is one."""

    def __init__(self, live: LiveRequest, text: ModelText) -> None:
        self._live = live
        self._text = text
        self._num_sent = 0
        self._usage = encode(input_usage(live))
        self._after_count = b',"prompt_tokens":%d,"logprobs":null},"generated_text":null,"finished":' % (
            live.num_prompt_tokens
        )

    def start(self) -> bytes:
        """The stream begins with its first token."""
        return b""

    def delta(self, delta: Delta) -> bytes:
        """An event for each token; the last one carries the delta's end."""
        texts = spread(delta)
        reason = delta.finish.reason if delta.finish else None
        if not texts:  # the end came without a token of its own
            return self._event(None, delta.text, None, reason) if delta.finish or delta.text else b""
        logprobs: Sequence[TokenLogprob | None] = delta.logprobs or [None] * len(texts)
        last = len(texts) - 1
        events = []
        for at, (token, text, logprob) in enumerate(zip(delta.token_ids, texts, logprobs, strict=True)):
            self._num_sent += 1
            events.append(self._event(token, text, logprob, reason if at == last else None))
        return b"".join(events)

    def end(self) -> bytes:
        """The last token said `finished`."""
        return b""

    def error(self, error: SluiceError) -> bytes:
        """A last event that is finished, with the reason and, beyond the wire's keys, what happened."""
        reason = FinishReason.ABORT if isinstance(error, RequestAbortedError) else FinishReason.ERROR
        event = self._event(None, "", None, reason)
        return event[: -len(b"}\n\n")] + b"," + openai_error(error)[1:] + b"\n\n"

    def _event(self, token: int | None, text: str, logprob: TokenLogprob | None, reason: FinishReason | None) -> bytes:
        special = token is not None and self._text.is_special(token)
        parts = (
            b'data:{"token":{"id":',
            encode(token),
            b',"text":',
            encode(text),
            b',"logprob":',
            encode(logprob.logprob if logprob else None),
            b',"special":',
            b"true" if special else b"false",
            b',"count_output_tokens":%d' % self._num_sent,
            self._after_count,
            b"false" if reason is None else b"true",
            b',"finish_reason":',
            encode(reason),
            b',"details":null,"input_usage":',
            self._usage,
            b"}\n\n",
        )
        return b"".join(parts)


def _single(values: list[Any]) -> Any:  # noqa: ANN401 - the wire's own shape: a value or a list of them
    return values[0] if len(values) == 1 else values


def _tokens(choice: Choice, live: LiveRequest, text: ModelText) -> list[NativeToken]:
    logprobs: Sequence[TokenLogprob | None] = choice.logprobs or [None] * len(choice.token_ids)
    return [
        {
            "id": token,
            "text": shown,
            "logprob": logprob.logprob if logprob else None,
            "special": text.is_special(token),
            "count_output_tokens": at + 1,
            "prompt_tokens": live.num_prompt_tokens,
        }
        for at, (token, shown, logprob) in enumerate(zip(choice.token_ids, choice.token_texts, logprobs, strict=True))
    ]
