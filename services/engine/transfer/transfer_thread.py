"""The thread that owns all of UCX: takes the loop's commands, lets UCX work, ticks, sleeps."""

import ctypes
import logging
import threading
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

from services.engine.transfer.config import TransferConfig
from services.engine.transfer.events import TransferError
from services.engine.transfer.fabric import Fabric
from services.engine.transfer.mailbox import Mailbox
from services.engine.transfer.page_memory import PageMemory

log = logging.getLogger(__name__)

_TICK_S = 0.05
"""How often deadlines and dead endpoints are looked at; also the longest sleep, in case UCX's wake-up is lost."""
_LOOK_S = 2e-4
"""How often a page that the device still writes is looked at: a small part of what any step takes."""
_NAP_S = 2e-5
"""Between two looks soon after something happened: less than a page takes, and the interpreter is the loop's."""
_DEVICE_NAPS_S = 1e-3
_PR_SET_TIMERSLACK = 29
_FAREWELL_S = 0.1
"""How long BYEs may take to leave."""


class Pace(NamedTuple):
    """How long the thread stays awake after anything happened."""

    naps_s: float
    """It looks every _NAP_S."""
    spin_s: float
    """Where it takes no naps: it looks without a pause."""


def pace_of(config: TransferConfig, memory: PageMemory) -> Pace:
    """The configured pace, or what suits the memory."""
    return Pace(config.naps_s if config.naps_s is not None else _DEVICE_NAPS_S * memory.on_device, config.spin_s)


class Side(Protocol):
    """The sender's or the receiver's half, all of it on the transfer thread."""

    def turn(self) -> bool:
        """Let the fabric work and handle what it brings; whether there was anything."""
        ...

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for something that wakes no thread: then it wants a turn every _LOOK_S."""
        ...

    def tick(self, now: float) -> None:
        """Look at deadlines; called every _TICK_S."""
        ...

    def leave(self, now: float) -> None:
        """Say goodbye to every peer and close its link."""
        ...

    def tell(self) -> None:
        """Hand what has come about to the loop."""
        ...


class TransferThread:
    """Runs one side on one fabric until `stop`. Made, started and stopped by the engine's loop thread."""

    def __init__(
        self,
        fabric: Fabric,
        side: Side,
        commands: Mailbox[Callable[[], None]],
        pace: Pace,
        bind: Callable[[], None],
        wake_loop: Callable[[], None],
    ) -> None:
        """`bind` (`PageMemory.bind_thread`) is called first on the thread, `wake_loop` when it ends, so that a loop
        asleep on its events finds out by `check`."""
        self._fabric = fabric
        self._side = side
        self._commands = commands
        self._pace = pace
        self._bind = bind
        self._wake_loop = wake_loop
        self._stopping = False
        self._was_stopped = False
        self._thread = threading.Thread(target=self._run, name="kv-transfer", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def is_current(self) -> bool:
        """Whether it is the thread that asks."""
        return threading.current_thread() is self._thread

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
        fine_sleeps()
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
            now = time.monotonic()
            if now >= next_tick:
                self._side.tick(now)
                next_tick = now + _TICK_S
            moved = self._side.turn()
            self._side.tell()
            if moved or commands:
                moved_at = now
            else:
                self._pause(now - moved_at, next_tick - now)

    def _pause(self, idle_s: float, tick_in_s: float) -> None:
        """Nothing has happened for `idle_s`."""
        if idle_s < self._pace.naps_s:
            time.sleep(_NAP_S)
        elif self._side.is_waiting:
            time.sleep(_LOOK_S)
        elif idle_s >= self._pace.spin_s:
            self._fabric.sleep(max(0.0, tick_in_s))

    def _wind_down(self) -> None:
        self._fabric.close_listener()
        self._side.leave(time.monotonic())
        deadline = time.monotonic() + _FAREWELL_S
        while not self._fabric.is_idle and time.monotonic() < deadline:
            self._fabric.turn()
        self._fabric.close()
        self._side.tell()


def fine_sleeps() -> None:
    """Let this thread's sleeps end when they are due: Linux adds 50 us to each unless it is told otherwise."""
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1000)  # ns
