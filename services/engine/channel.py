"""The engine's end of ipc: one ZMQ PAIR socket, and a thread that says Alive while a long step runs.

The loop's thread uses the socket between steps. The watch thread uses it only inside `stepping()`, when the loop's
thread is busy computing, and always under the lock, so the socket never sees two threads at once.
"""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

import zmq

from services.common.ipc import Alive, Command, Event, Usage, decode_commands, encode
from services.engine.lifeline import ControlProcessLostError, Lifeline

log = logging.getLogger(__name__)

ALIVE_S = 1.0
_WATCH_S = 0.2
_HIGH_WATER_FRAMES = 10_000


class Channel:
    """Opened by the process's main, used by the loop."""

    def __init__(self, endpoint: str, wake: list["int | zmq.Socket[bytes]"], lifeline: Lifeline) -> None:
        """Connect to `endpoint`; `wait` also ends when one of `wake` is readable."""
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PAIR)
        self._socket.set_hwm(_HIGH_WATER_FRAMES)
        self._socket.setsockopt(zmq.LINGER, 1000)
        self._socket.connect(endpoint)
        self._poller = zmq.Poller()
        for waited in (self._socket, *wake, *(() if lifeline.fd is None else (lifeline.fd,))):
            self._poller.register(waited, zmq.POLLIN)
        self._lock = threading.Lock()
        self._lifeline = lifeline
        self._last_sent = time.monotonic()
        self._step_began: float | None = None
        self._step = 0
        self._usage = Usage(0, 0, 0, 0, 0)
        self._closed = threading.Event()
        self._watch = threading.Thread(target=self._watch_steps, name="alive", daemon=True)
        self._watch.start()

    def __enter__(self) -> "Channel":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed.set()
        self._watch.join()
        self._socket.close()

    def receive(self) -> list[Command]:
        """Everything that has come; never waits."""
        commands: list[Command] = []
        with self._lock:
            while True:
                try:
                    frame = self._socket.recv(zmq.NOBLOCK)
                except zmq.Again:
                    return commands
                commands += decode_commands(frame)

    def wait(self, timeout_s: float) -> None:
        """Wait for a command or the KV transfer, at most so long; only outside `stepping()`."""
        self._poller.poll(int(timeout_s * 1000))

    def send(self, events: list[Event]) -> None:
        """Send one frame; raises ControlProcessLostError when nobody has read ten thousand frames."""
        with self._lock:
            self._send(events)

    def note(self, step: int, usage: Usage) -> None:
        """Remember the state for the watch thread; raises ControlProcessLostError when the control process is gone."""
        with self._lock:
            self._step, self._usage = step, usage
        self._lifeline.check()

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """The loop's thread computes and leaves the socket alone."""
        with self._lock:
            self._step_began = time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                self._step_began = None

    def _send(self, events: list[Event]) -> None:
        try:
            self._socket.send(encode(events), zmq.NOBLOCK)
        except zmq.Again:
            raise ControlProcessLostError(f"the control process left {_HIGH_WATER_FRAMES} frames unread") from None
        self._last_sent = time.monotonic()

    def _watch_steps(self) -> None:
        while not self._closed.wait(_WATCH_S):
            now = time.monotonic()
            with self._lock:
                if self._step_began is not None and now - self._last_sent >= ALIVE_S:
                    self._send([Alive(self._step, now - self._step_began, self._usage)])
