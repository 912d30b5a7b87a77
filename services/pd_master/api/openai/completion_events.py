"""Completion chunks as server-sent events; several prompts' requests share one stream."""

from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Sequence
from functools import partial

import msgspec

from services.common.errors import SluiceError
from services.common.request import Delta, Finish
from services.pd_master.api.errors import openai_error
from services.pd_master.api.openai.answers import CompletionHead, CompletionLogprobLists
from services.pd_master.api.openai.chat_events import DONE
from services.pd_master.api.openai.completion_answer import Echo
from services.pd_master.api.openai.logprobs import CompletionLogprobs
from services.pd_master.api.openai.usage import usage_of
from services.pd_master.live_request import LiveRequest

encode = msgspec.json.encode


class CompletionEvents:
    """Encodes one completion stream. A delta's choice counts over all prompts: prompt * n + choice."""

    def __init__(
        self,
        lives: Sequence[LiveRequest],
        head: CompletionHead,
        *,
        include_usage: bool,
        echoes: list[Echo | None],
        logprobs: list[CompletionLogprobs] | None,
    ) -> None:
        """`echoes`: what is shown before each choice's output. `logprobs`: one per choice, if asked for."""
        self._lives = lives
        self._include_usage = include_usage
        self._unshown = {at: echo for at, echo in enumerate(echoes) if echo is not None}
        """Prompts whose choices have shown nothing yet."""
        self._prompts: dict[Echo, bytes] = {}
        """Prompts with their log-probabilities, encoded behind the choice's number."""
        self._logprobs = logprobs
        self._head = b"data: " + encode(head)[:-1]
        self._open = [self._head + b',"choices":[{"index":%d,"text":' % at for at in range(len(echoes))]
        self._close = b'}],"usage":null}\n\n' if include_usage else b"}]}\n\n"
        self._text_close = b',"logprobs":null,"finish_reason":null' + self._close

    def start(self) -> bytes:
        """The echoed prompts; with log-probabilities, each waits for its own."""
        if self._logprobs is not None:
            return b""
        return b"".join([self._text(at, echo.text) for at, echo in self._unshown.items() if echo.text])

    async def after_prompts(
        self, batches: AsyncIterable[list[Delta]], run: Callable[[Callable[[], bytes]], Awaitable[bytes]]
    ) -> AsyncGenerator[list[Delta], None]:
        """The same batches, each once the prompts before it are encoded with their log-probabilities: once a prompt,
        by `run`, off the event loop that a long one would hold up. Use it in `contextlib.aclosing`."""
        async for deltas in batches:
            for delta in deltas:
                echo = self._unshown.get(delta.choice)
                if echo is not None and echo not in self._prompts:
                    self._prompts[echo] = await run(partial(self._prompt, delta.choice, echo))
            yield deltas

    def delta(self, delta: Delta) -> bytes:
        """A chunk, if it shows something."""
        if delta.finish is None and self._logprobs is None:
            return self._text(delta.choice, delta.text) if delta.text else b""
        if self._logprobs is None:
            return self._chunk(delta.choice, delta.text, None, delta.finish)
        lists = self._logprobs[delta.choice]
        echo = self._unshown.pop(delta.choice, None)
        before = self._open[delta.choice] + self._prompts[echo] if echo else b""
        return before + self._chunk(delta.choice, delta.text, lists.take(delta.logprobs or []), delta.finish)

    def end(self) -> bytes:
        """The usage chunk, when asked for, and the end mark."""
        if not self._include_usage:
            return DONE
        return self._head + b',"choices":[],"usage":' + encode(usage_of(self._lives)) + b"}\n\n" + DONE

    def error(self, error: SluiceError) -> bytes:
        """The error as the stream's last event."""
        return b"data: " + openai_error(error) + b"\n\n"

    def _text(self, choice: int, text: str) -> bytes:
        return self._open[choice] + encode(text) + self._text_close

    def _prompt(self, choice: int, echo: Echo) -> bytes:
        assert self._logprobs is not None, "only with log-probabilities"
        return self._rest(echo.text, echo.logprobs(self._logprobs[choice]), None)

    def _chunk(self, choice: int, text: str, logprobs: CompletionLogprobLists | None, finish: Finish | None) -> bytes:
        return self._open[choice] + self._rest(text, logprobs, finish)

    def _rest(self, text: str, logprobs: CompletionLogprobLists | None, finish: Finish | None) -> bytes:
        parts = (
            encode(text),
            b',"logprobs":',
            encode(logprobs),
            b',"finish_reason":',
            encode(finish.reason if finish else None),
            b',"stop_reason":',
            encode(finish.stop_reason if finish else None),
            self._close,
        )
        return b"".join(parts)
