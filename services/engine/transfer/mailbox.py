"""Queues from one thread to another that a poller can watch."""

import os
import threading
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """Any thread puts, one thread drains; `fileno()` is readable while something is in it."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._lock = threading.Lock()
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._signalled = False

    def put(self, *items: T) -> None:
        """Add items; one system call at most, and none when the fd is readable already."""
        with self._lock:
            self._items.extend(items)
            self._signal()

    def wake(self) -> None:
        """Make the fd readable with nothing put."""
        with self._lock:
            self._signal()

    def drain(self) -> list[T]:
        """Everything put so far, oldest first."""
        if not self._signalled:  # a put that is under way is seen next time: the fd stays readable
            return []
        with self._lock:
            items = list(self._items)
            self._items.clear()
            if self._signalled:
                self._signalled = False
                os.eventfd_read(self._fd)
            return items

    def fileno(self) -> int:
        """For select, poll and ZMQ pollers."""
        return self._fd

    def _signal(self) -> None:
        if not self._signalled:
            self._signalled = True
            os.eventfd_write(self._fd, 1)

    def __del__(self) -> None:
        os.close(self._fd)


class Outbox(Generic[T]):
    """What one thread has for a mailbox, handed over in one go.

    A reader that woke for the first of several items would take the interpreter from the thread that makes the others,
    and each time the two change places costs both tens of us.
    """

    def __init__(self, mailbox: Mailbox[T]) -> None:
        self._mailbox = mailbox
        self._items: list[T] = []

    def put(self, item: T) -> None:
        """Add an item, for the next `deliver`."""
        self._items.append(item)

    def deliver(self) -> None:
        """Put all that was added since the last call into the mailbox."""
        if self._items:
            items, self._items = self._items, []
            self._mailbox.put(*items)
