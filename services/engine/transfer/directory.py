"""The channels of one side by number."""

import logging
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, Protocol, TypeVar

from services.engine.transfer.channel import Channel
from services.engine.transfer.wire import MAX_CHANNEL, Control

log = logging.getLogger(__name__)


class Speaker(Protocol):
    """A `SendChannel` or `ReceiveChannel`."""

    @property
    def channel(self) -> Channel:
        """The connection it speaks on."""
        ...

    def on_control(self, message: Control, now: float) -> None:
        """A message for it."""
        ...

    def tick(self, now: float) -> None:
        """Deadlines."""
        ...

    def leave(self, now: float) -> None:
        """Close on purpose."""
        ...


S = TypeVar("S", bound=Speaker)


class Directory(Generic[S]):
    """Owns the channels that are not over. Transfer thread."""

    def __init__(self) -> None:
        self._speakers: dict[int, S] = {}
        # Random start, then counting: a message for a channel of an earlier start of this process finds none.
        self._last_number = random.randrange(MAX_CHANNEL)

    def __iter__(self) -> Iterator[S]:
        return iter([speaker for speaker in self._speakers.values() if speaker.channel.ended is None])

    def open(self, make: Callable[[int], S]) -> S:
        """Add the channel that `make` builds for a new number."""
        self._last_number = self._last_number % MAX_CHANNEL + 1
        speaker = make(self._last_number)
        self._speakers[self._last_number] = speaker
        return speaker

    def deliver(self, messages: Iterable[Control], now: float) -> None:
        """Hand each message to its channel."""
        for message in messages:
            speaker = self._speakers.get(message.channel)
            if speaker is None:
                log.debug("a %s for channel %d, which is over", message.kind.name, message.channel)
            else:
                speaker.on_control(message, now)

    def flush(self) -> None:
        """Send what the channels have said."""
        for speaker in self._speakers.values():
            speaker.channel.flush()

    def tick(self, now: float) -> None:
        """Tick every channel, then drop those that are over."""
        for speaker in self:
            speaker.tick(now)
        self._speakers = {
            number: speaker for number, speaker in self._speakers.items() if speaker.channel.ended is None
        }

    def leave(self, now: float) -> None:
        """Close every channel on purpose."""
        for speaker in self:
            speaker.leave(now)
