"""What one end of a stream between pods still has to write. Order is kept, saying never waits, the wait is bounded."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any, Generic, TypeVar

from services.common.errors import SluiceError
from services.worker.session_errors import SessionOverflowError

PATIENCE_S = 0.02
"""How long what can wait does so for something that cannot: a step of an engine."""
MAX_WAITING = 100_000
"""Messages that one stream may let wait. A peer that reads nothing for that long is lost."""
T = TypeVar("T")


def _nothing() -> list[Any]:
    return []


class Outbox(Generic[T]):
    """Filled by the service, emptied by the stream's task, which asks for more only when the socket can take it.

    cut: makes more messages at the moment of writing, from what has grown or changed since; none when nothing has.
    """

    def __init__(self, name: str, cut: Callable[[], list[T]] = _nothing) -> None:
        self._name = name
        self._cut = cut
        self._waiting: list[T] = []
        self._wake = asyncio.Event()
        self._patience: asyncio.TimerHandle | None = None
        self.end: SluiceError | None = None
        """Why `close` ended it."""

    def say(self, *messages: T, can_wait: bool = False) -> None:
        """Queue messages. `can_wait`: nobody minds if they go along with the next others, in their order."""
        self._waiting.extend(messages)
        if not can_wait:
            self._wake.set()
        elif self._patience is None:
            self._patience = asyncio.get_running_loop().call_later(PATIENCE_S, self._patience_ends)

    def _patience_ends(self) -> None:
        self._patience = None
        self._wake.set()

    def poke(self) -> None:
        """`cut` has something."""
        self._wake.set()

    def close(self, reason: SluiceError) -> None:
        """End the stream once what waits has been written."""
        self.end = self.end or reason
        self._wake.set()

    async def batches(self) -> AsyncGenerator[list[T]]:
        """All that there is to write at a time, until `close`. Raises SessionOverflowError."""
        while True:
            batch = self._batch()
            if batch:
                yield batch
                continue
            if self.end is not None:
                return
            await self._wake.wait()
            self._wake.clear()

    def _batch(self) -> list[T]:
        if len(self._waiting) > MAX_WAITING:
            raise SessionOverflowError(f"{len(self._waiting)} messages wait for {self._name}")
        batch, self._waiting = self._waiting, []
        return [*batch, *self._cut()]
