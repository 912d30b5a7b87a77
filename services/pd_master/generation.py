"""A request's output on its way to one client: what the socket cannot take yet waits here, merged (R15).

open --all choices finished, or an error--> ended --drained by the client--> closed
  '------------------ aclose, or the client does not read --------------------^
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from itertools import groupby

from services.common.errors import RequestAbortedError, SluiceError
from services.common.prompt_logprobs import PromptLogprobs
from services.common.request import Delta
from services.pd_master.backend import Listener
from services.pd_master.delivery import merge_all


class ClientGeneration:
    """Filled by the dispatcher, iterated by the API's handler; both on the event loop of the master process."""

    def __init__(self, abort: Callable[[], None], max_bytes: int, stall_s: float) -> None:
        self.cached_tokens: int | None = None
        self.prompt_logprobs: PromptLogprobs | None = None
        self._abort = abort
        self._max_bytes = max_bytes
        self._stall_s = stall_s
        self._clock = asyncio.get_running_loop().time
        self._pending: list[Delta] = []
        self._num_bytes = 0
        self._pending_since = 0.0
        self._error: SluiceError | None = None
        self._is_over = False
        self._wake = asyncio.Event()
        self._listener: Listener | None = None

    def listen(self, listener: Listener) -> None:
        """Hand new output to `listener` at once, with no task between. What it does not take, and what finishes a
        choice, is left for the iteration, and so is all that comes before the iteration has had it."""
        if not self._is_over:
            self._listener = listener

    def push(self, delta: Delta) -> None:
        """New output. Ends this client when it has left too much unread, or has read nothing for too long."""
        if not self._pending:
            if self._listener is not None and delta.finish is None and self._listener(delta):
                return
            self._pending_since = self._clock()
        self._pending.append(delta)
        self._num_bytes += _size(delta)
        self._wake.set()
        waited_s = self._clock() - self._pending_since
        if self._num_bytes > self._max_bytes:
            self._give_up(f"the client left {self._num_bytes} bytes unread")
        elif waited_s > self._stall_s:
            self._give_up(f"the client read nothing for {waited_s:.0f} s")

    def end(self, error: SluiceError | None) -> None:
        """Nothing more comes."""
        if not self._is_over:
            self._is_over, self._error = True, error
            self._listener = None  # it knows the request, which knows this
            self._wake.set()

    async def __aiter__(self) -> AsyncIterator[list[Delta]]:
        """All that is pending, one delta a choice. Raises what ended the request, once the output before it has been
        read."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._pending:
                yield self._drain()
            if self._is_over and not self._pending:
                if self._error is not None:
                    raise self._error
                return
            if self._is_over:
                self._wake.set()

    async def aclose(self) -> None:
        """The client is gone: end what is left of the request on every worker. Idempotent."""
        self._pending.clear()
        if not self._is_over:
            self.end(None)
            self._abort()

    def _drain(self) -> list[Delta]:
        pending, self._pending, self._num_bytes = self._pending, [], 0
        if len(pending) == 1:
            return pending
        pending.sort(key=_choice)  # stable: each choice's deltas stay in order
        return [merge_all(list(deltas)) for _, deltas in groupby(pending, key=_choice)]

    def _give_up(self, why: str) -> None:
        self._pending.clear()
        if not self._is_over:
            self.end(RequestAbortedError(why))
            self._abort()


def _choice(delta: Delta) -> int:
    return delta.choice


def _size(delta: Delta) -> int:
    """Rough bytes of memory and of socket."""
    logprobs = 0 if delta.logprobs is None else sum(64 + 32 * len(one.top) for one in delta.logprobs)
    return len(delta.text) + 16 * len(delta.token_ids) + 64 + logprobs
