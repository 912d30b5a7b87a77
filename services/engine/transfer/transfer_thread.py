"""The thread that owns all of UCX: takes the loop's commands, lets UCX work, ticks, sleeps."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

from services.engine.transfer.events import TransferError
from services.engine.transfer.fabric import Fabric
from services.engine.transfer.mailbox import Mailbox

log = logging.getLogger(__name__)

_TICK_S = 0.05
"""How often deadlines and dead endpoints are looked at; also the longest sleep, in case UCX's wake-up is lost."""
_FAREWELL_S = 0.1
"""How long BYEs may take to leave."""


class Side(Protocol):
    """The sender's or the receiver's half, all of it on the transfer thread."""

    def turn(self) -> bool:
        """Let the fabric work and handle what it brings; whether there was anything."""
        ...

    def tick(self, now: float) -> None:
        """Look at deadlines; called every _TICK_S."""
        ...

    def leave(self, now: float) -> None:
        """Say goodbye to every peer and close its link."""
        ...


class TransferThread:
    """Runs one side on one fabric until `stop`. Made, started and stopped by the engine's loop thread."""

    def __init__(
        self,
        fabric: Fabric,
        side: Side,
        commands: Mailbox[Callable[[], None]],
        spin_s: float,
        bind: Callable[[], None],
        wake_loop: Callable[[], None],
    ) -> None:
        """`bind` (`PageMemory.bind_thread`) is called first on the thread, `wake_loop` when it ends, so that a loop
        asleep on its events finds out by `check`."""
        self._fabric = fabric
        self._side = side
        self._commands = commands
        self._spin_s = spin_s
        self._bind = bind
        self._wake_loop = wake_loop
        self._stopping = False
        self._was_stopped = False
        self._thread = threading.Thread(target=self._run, name="kv-transfer", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def check(self) -> None:
        """Raise TransferError when the thread died: its traceback is in the log, and the engine must not go on."""
        if not self._was_stopped and not self._thread.is_alive():
            raise TransferError("the KV transfer thread died; its traceback is in the log")

    def stop(self, timeout_s: float) -> None:
        """End all connections, then the thread. Raises TransferError when it does not end in time."""
        if self._was_stopped:
            return
        self._was_stopped = True
        self._commands.put(self._request_stop)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise TransferError(f"the KV transfer thread did not end within {timeout_s} s")

    def _request_stop(self) -> None:
        self._stopping = True

    def _run(self) -> None:
        try:
            self._bind()
            self._serve()
            self._wind_down()
        finally:
            self._wake_loop()

    def _serve(self) -> None:
        next_tick = moved_at = 0.0
        while not self._stopping:
            commands = self._commands.drain()
            for command in commands:
                command()
            moved = self._side.turn() or bool(commands)
            now = time.monotonic()
            if now >= next_tick:
                self._side.tick(now)
                next_tick = now + _TICK_S
            if moved:
                moved_at = now
            elif now - moved_at >= self._spin_s or self._fabric.is_idle:
                self._fabric.sleep(max(0.0, next_tick - now))

    def _wind_down(self) -> None:
        self._fabric.close_listener()
        self._side.leave(time.monotonic())
        deadline = time.monotonic() + _FAREWELL_S
        while not self._fabric.is_idle and time.monotonic() < deadline:
            self._fabric.turn()
        self._fabric.close()
