"""The control process's end of the seam: starts the engine, sends commands, hands out events, notices its end.

    starting --EngineReady--> up --stop()--> stopping --exit 0--> gone
        any of them --exit, overflow or nonsense on the socket--> EngineLostError

Whatever goes wrong here is fatal to the worker: nothing is retried, `run` raises and the worker ends non-zero.
"""

import asyncio
import contextlib
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import zmq
import zmq.asyncio

from services.common.ipc import (
    IPC_PROTOCOL,
    Alive,
    Command,
    EngineReady,
    Event,
    Integrity,
    Shutdown,
    StepDone,
    Usage,
    decode_events,
    encode,
)

log = logging.getLogger(__name__)

HIGH_WATER_MARK = 10_000
"""Frames in flight one way. An engine that drains commands between steps never has this many waiting (R15)."""
ENGINE_COMMAND = (sys.executable, "-m", "services.engine.main", "-")
_EXIT_GRACE_S = 10.0


class EngineLostError(RuntimeError):
    """The engine ended, or the channel to it broke; the worker cannot go on."""


class EngineClient:
    """Owns the engine process and its socket. Used by the worker's services; all calls come from the one event loop."""

    def __init__(self, *, command: tuple[str, ...] = ENGINE_COMMAND) -> None:
        self._command = command
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._socket = zmq.asyncio.Context.instance().socket(zmq.PAIR)
        self._process: asyncio.subprocess.Process | None = None
        self._outbox: list[Command] = []
        self._stopping = False
        self._heard_at = time.monotonic()
        self._busy_s = 0.0
        self.ready: EngineReady | None = None
        self.usage = Usage(0, 0, 0, 0, 0)
        self.step = 0

    async def start(self, config: dict[str, Any]) -> None:
        """Start the process; it is up when `run` has dispatched its EngineReady.

        config: the engine's settings as JSON values (`services.worker.engine_config`); the endpoint is added here.
        """
        self._folder = tempfile.TemporaryDirectory(prefix="sluice-")
        address = f"ipc://{Path(self._folder.name) / 'engine.sock'}"
        for option in (zmq.SNDHWM, zmq.RCVHWM):
            self._socket.setsockopt(option, HIGH_WATER_MARK)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(address)
        self._process = await asyncio.create_subprocess_exec(*self._command, stdin=asyncio.subprocess.PIPE)
        assert self._process.stdin is not None
        # One line on stdin, since others can read argv. The pipe stays open: its end tells the engine that we are gone.
        self._process.stdin.write(msgspec.json.encode({**config, "endpoint": address}) + b"\n")
        self._heard_at = time.monotonic()
        log.info("engine started, pid %s", self._process.pid)

    @property
    def silent_s(self) -> float:
        """Seconds since the engine's last sign of life: it gives one each second, in a long step too."""
        return time.monotonic() - self._heard_at

    @property
    def age_s(self) -> float:
        """Seconds since the engine's last sign of life, or the age of the step it is in, whichever is more."""
        return max(self.silent_s, self._busy_s)

    @property
    def pid(self) -> int | None:
        """The engine's process id while it runs."""
        running = self._process is not None and self._process.returncode is None
        return self._process.pid if running and self._process is not None else None

    def send(self, *commands: Command) -> None:
        """Publish commands without waiting; those of one turn of the loop travel in one frame, in order."""
        if not self._outbox:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outbox.extend(commands)

    def _flush(self) -> None:
        frame, self._outbox = encode(self._outbox), []
        if self._socket.closed or self.pid is None:
            return
        # With DONTWAIT the future is done at once: a full socket is an error here instead of a queue without end.
        sent = cast("asyncio.Future[object]", self._socket.send(frame, zmq.DONTWAIT))
        if isinstance(sent.exception(), zmq.Again):
            log.critical("the engine takes no commands: %d frames wait, or it never connected", HIGH_WATER_MARK)
            self.kill()

    async def run(self, dispatch: Callable[[Event], None]) -> None:
        """Hand every event to `dispatch`, in order, until `stop`. Raises EngineLostError if the engine ends before."""
        assert self._process is not None
        exited = asyncio.create_task(self._process.wait())
        events = asyncio.create_task(self._receive(dispatch))
        try:
            await asyncio.wait({exited, events}, return_when=asyncio.FIRST_COMPLETED)
            if events.done():
                events.result()
            if not self._stopping:
                raise EngineLostError(f"the engine ended with status {await exited}")
        finally:
            events.cancel()
            exited.cancel()
            await asyncio.gather(events, exited, return_exceptions=True)

    async def _receive(self, dispatch: Callable[[Event], None]) -> None:
        while True:
            frame = await self._socket.recv()
            self._heard_at = time.monotonic()
            try:
                events = decode_events(frame)
            except msgspec.MsgspecError as error:
                raise EngineLostError(f"the engine sent what is no event: {error}") from error
            for event in events:
                self._note(event)
                dispatch(event)

    def _note(self, event: Event) -> None:
        match event:
            case StepDone(usage=usage, step=step):
                self.usage, self.step, self._busy_s = usage, step, 0.0
            case Alive(usage=usage, step=step, busy_s=busy_s):
                self.usage, self.step, self._busy_s = usage, step, busy_s
            case Integrity(usage=usage):
                self.usage = usage
            case EngineReady():
                if event.ipc_protocol != IPC_PROTOCOL:
                    raise EngineLostError(f"engine speaks ipc {event.ipc_protocol}, this process {IPC_PROTOCOL}")
                self.ready = event

    async def stop(self) -> int:
        """Ask the engine to end, then make it. Returns its exit status."""
        self._stopping = True
        if self._process is None:
            self._close()
            return 0
        if self.ready is None:
            self.kill()  # it is loading and hears nothing yet
        else:
            self.send(Shutdown())
        try:
            return await asyncio.wait_for(self._process.wait(), _EXIT_GRACE_S)
        except TimeoutError:
            log.error("the engine ignored Shutdown for %.0f s; killing it", _EXIT_GRACE_S)  # noqa: TRY400
            self.kill()
            return await self._process.wait()
        finally:
            self._close()

    def kill(self) -> None:
        """End the engine at once; `run` raises."""
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, 9)

    def _close(self) -> None:
        self._socket.close()
        if self._folder is not None:
            self._folder.cleanup()
