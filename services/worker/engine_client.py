"""The control process's end of the seam: starts the engine, sends commands, hands out events, notices its end.

    starting --EngineReady--> up --stop()--> stopping --exit 0--> gone
        any of them --exit, overflow or nonsense on the socket--> EngineLostError

An engine of several ranks is as many processes; commands and events go to and from rank 0. Whatever goes wrong here,
with any of them, is fatal to the worker: nothing is retried, all are ended, `run` raises and the worker ends non-zero.
"""

import asyncio
import logging
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
    CheckIntegrity,
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
from services.common.options import EXIT_USAGE
from services.worker.rank_processes import RankEnd, RankProcesses

log = logging.getLogger(__name__)

HIGH_WATER_MARK = 10_000
"""Frames in flight one way. An engine that drains commands between steps never has this many waiting (R15)."""
ENGINE_COMMAND = (sys.executable, "-m", "services.engine.main", "-")
_EXIT_GRACE_S = 10.0
_DYING_S = 0.5
"""How long the end of a process may take to be told."""
_AUDIT = -1
"""Token of this client's own CheckIntegrity."""


class EngineLostError(RuntimeError):
    """The engine ended, or the channel to it broke; the worker cannot go on."""

    is_refusal = False
    """It refused its options, and its log says which."""


def _ended(end: RankEnd) -> EngineLostError:
    error = EngineLostError(f"{end.name} ended with status {end.status}")
    error.is_refusal = end.status == EXIT_USAGE
    return error


class EngineClient:
    """Owns the engine's processes and its socket. Used by the worker's services, all on the one event loop."""

    def __init__(self, *, command: tuple[str, ...] = ENGINE_COMMAND) -> None:
        self._command = command
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._socket = zmq.asyncio.Context.instance().socket(zmq.PAIR)
        self._processes = RankProcesses()
        self._outbox: list[Command] = []
        self._stopping = False
        self._heard_at = time.monotonic()
        self._busy_s = 0.0
        self._is_cut_off = False
        """A command could not be sent: no other is."""
        self._audit: asyncio.Future[Integrity] | None = None
        self.ready: EngineReady | None = None
        self.usage = Usage(0, 0, 0, 0, 0)
        self.step = 0

    async def start(self, config: dict[str, Any], num_ranks: int = 1) -> None:
        """Start a process for each rank; the engine is up when `run` has dispatched its EngineReady.

        config: the engine's settings as JSON values (`services.worker.engine_config`); the endpoint is added here, and
        each rank's place.
        """
        self._folder = tempfile.TemporaryDirectory(prefix="sluice-")
        address = f"ipc://{Path(self._folder.name) / 'engine.sock'}"
        for option in (zmq.SNDHWM, zmq.RCVHWM):
            self._socket.setsockopt(option, HIGH_WATER_MARK)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(address)
        whole = {**config, "endpoint": address}
        places = [{"rank": rank, "num_ranks": num_ranks, "rendezvous": self._folder.name} for rank in range(num_ranks)]
        await self._processes.start(self._command, [whole | place for place in places] if num_ranks > 1 else [whole])
        self._heard_at = time.monotonic()

    @property
    def silent_s(self) -> float:
        """Seconds since the engine's last sign of life: it gives one each second, in a long step too."""
        return time.monotonic() - self._heard_at

    @property
    def age_s(self) -> float:
        """Seconds since the engine's last sign of life, or the age of the step it is in, whichever is more."""
        return max(self.silent_s, self._busy_s)

    @property
    def pids(self) -> list[int]:
        """Process ids of the ranks that run."""
        return self._processes.pids

    def send(self, *commands: Command) -> None:
        """Publish commands without waiting; those of one turn of the loop travel in one frame, in order."""
        if not self._outbox:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outbox.extend(commands)

    def _flush(self) -> None:
        frame, self._outbox = encode(self._outbox), []
        if self._socket.closed or not self.pids or self._is_cut_off:
            return
        # With DONTWAIT the future is done at once: a full socket is an error here instead of a queue without end.
        sent = cast("asyncio.Future[object]", self._socket.send(frame, zmq.DONTWAIT))
        if isinstance(sent.exception(), zmq.Again):  # an engine that was killed closes its socket before it has ended
            self._is_cut_off = True
            asyncio.get_running_loop().call_later(_DYING_S, self._give_up)

    def _give_up(self) -> None:
        """It takes no commands, and one was lost. Where it has ended, `run` says how."""
        if not self._processes.is_one_gone():
            log.critical("the engine takes no commands: %d frames wait, or it never connected", HIGH_WATER_MARK)
            self.kill()

    async def run(self, dispatch: Callable[[Event], None]) -> None:
        """Hand every event to `dispatch`, in order, until `stop`. Raises EngineLostError if the engine ends before."""
        exited = asyncio.create_task(self._processes.first_end())
        events = asyncio.create_task(self._receive(dispatch))
        try:
            await asyncio.wait({exited, events}, return_when=asyncio.FIRST_COMPLETED)
            if not self._stopping:
                if events.done():
                    events.result()
                raise _ended(await exited)
        except EngineLostError:
            self.kill()  # ranks that are left would wait for the one that is gone
            raise
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
            case Integrity(usage=usage, token=token):
                self.usage = usage
                if token == _AUDIT and self._audit is not None and not self._audit.done():
                    self._audit.set_result(event)
            case EngineReady():
                if event.ipc_protocol != IPC_PROTOCOL:
                    raise EngineLostError(f"engine speaks ipc {event.ipc_protocol}, this process {IPC_PROTOCOL}")
                self.ready = event

    async def audit(self) -> list[str]:
        """What of its slots, rows and pages the engine cannot account for. Waits for its next turn: give it a
        deadline."""
        self._audit = asyncio.get_running_loop().create_future()
        self.send(CheckIntegrity(_AUDIT))
        return (await self._audit).problems

    async def stop(self) -> int:
        """Ask the engine to end, then make it. Returns its exit status, the first of its ranks' that is not 0."""
        self._stopping = True
        if self.ready is None:
            self.kill()  # it is loading and hears nothing yet
        else:
            self.send(Shutdown())
        try:
            return await asyncio.wait_for(self._processes.all_ended(), _EXIT_GRACE_S)
        except TimeoutError:
            log.error("the engine ignored Shutdown for %.0f s; killing it", _EXIT_GRACE_S)  # noqa: TRY400
            self.kill()
            return await self._processes.all_ended()
        finally:
            self._close()

    def kill(self) -> None:
        """End the engine at once; `run` raises."""
        self._processes.kill()

    def _close(self) -> None:
        self._socket.close()
        if self._folder is not None:
            self._folder.cleanup()
