"""Two processes with transfer pages each, and three ways to move bytes from one to the other."""

from __future__ import annotations

import os
import select
import sys
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext

from bench.transfer_copy import Copier
from bench.transfer_probe import Probe, Report
from bench.transfer_raw import RawReceiver, RawSender
from services.common.ipc import AttemptKey
from services.engine.transfer.config import TransferConfig
from services.engine.transfer.events import (
    PeerAddress,
    PeerLost,
    PeerProven,
    Pushed,
    PushOutcome,
    Received,
    SenderEvent,
)
from services.engine.transfer.page_memory import HostMemory, PageMemory
from services.engine.transfer.pages import Page, PagePool
from services.engine.transfer.receiver import KvReceiver
from services.engine.transfer.sender import KvSender

MIB = 1 << 20
KEY = AttemptKey("0" * 32, 1)
SWITCH_S = 1e-4
"""The interpreter's switch interval, as the engine process has it."""


@dataclass(frozen=True, slots=True)
class Case:
    """Messages to move."""

    mib: float
    depth: int
    num_messages: int

    @property
    def num_bytes(self) -> int:
        """Of one message."""
        return int(self.mib * MIB)

    def gb_per_s(self, seconds: float) -> float:
        """The rate of all of them in so long."""
        return self.num_messages * self.num_bytes / seconds / 1e9


@dataclass(frozen=True, slots=True)
class PairOptions:
    """Devices ("cpu" or e.g. "cuda:0") and pages of both processes."""

    device: str
    peer_device: str
    num_pages: int
    credit: int
    page_bytes: int
    pace: dict[str, float]
    """`spin_s` and `naps_s` of TransferConfig, where not its own."""
    may_map: bool = True
    """Of TransferConfig."""
    cores: tuple[int, int] | None = None
    """One for each process, so that they never take turns on one; None: as the system likes."""
    is_probed: bool = False
    """Whether both processes stamp their calls (`Pair.reports`)."""

    def config(self, peer_id: str, incarnation: str, **more: int) -> TransferConfig:
        """Of one side."""
        return TransferConfig(peer_id, incarnation, "bench", may_map=self.may_map, **self.pace, **more)  # type: ignore[arg-type]

    def pin(self, side: int) -> None:
        """Keep this process, with threads to come, on its core; `side`: 0 sends, 1 receives."""
        if self.cores is not None:
            os.sched_setaffinity(0, {self.cores[side]})


def memory(device: str) -> PageMemory:
    """Host memory for "cpu", else that CUDA device's."""
    if device == "cpu":
        return HostMemory()
    from services.engine.transfer.device_memory import DeviceMemory

    return DeviceMemory(device)


def serve(pipe: Connection, options: PairOptions) -> None:
    """The receiving process: a raw receive for every Case that comes, KV pushes meanwhile, until None comes."""
    sys.setswitchinterval(SWITCH_S)
    options.pin(1)
    probe = Probe() if options.is_probed else None
    pool = PagePool(memory(options.peer_device), options.num_pages, options.page_bytes)
    receiver = KvReceiver(options.config("decode", "d", credit=options.credit), pool)
    raw = RawReceiver()
    receiver.expect(KEY)
    pipe.send((receiver.port, raw.port))
    poller = select.poll()
    poller.register(pipe.fileno(), select.POLLIN)
    poller.register(receiver.wake_fd, select.POLLIN)
    while True:
        if any(fd == pipe.fileno() for fd, _ in poller.poll()):
            case: Case | str | None = pipe.recv()
            if case is None:
                break
            if isinstance(case, str):
                pipe.send(probe.take() if probe is not None else None)
                continue
            pages = take(pool, options.num_pages)
            raw.receive([page.buffer[: case.num_bytes] for page in pages], case.depth, case.num_messages, pipe)
            give_back(pages)
        for event in receiver.poll():
            if isinstance(event, Received):
                event.page.release()
    receiver.close()


def take(pool: PagePool, count: int) -> list[Page]:
    """`count` pages of a pool that has them."""
    return [page for page in (pool.acquire() for _ in range(count)) if page is not None]


def give_back(pages: list[Page]) -> None:
    """Release them."""
    for page in pages:
        page.release()


def _landed(event: SenderEvent) -> bool:
    """Whether it is the end of a push. Raises SystemExit for one whose bytes are not with the peer."""
    if not isinstance(event, Pushed):
        return False
    if event.outcome is not PushOutcome.LANDED:
        raise SystemExit(f"a push did not land: {event}")
    return True


class Pair:
    """The sending process's half, and the life of the other."""

    def __init__(self, options: PairOptions, context: SpawnContext) -> None:
        """Start the receiving process."""
        sys.setswitchinterval(SWITCH_S)
        options.pin(0)
        self._probe = Probe() if options.is_probed else None
        self._options = options
        self._pipe, far_end = context.Pipe()
        self._child = context.Process(target=serve, args=(far_end, options), daemon=True)
        self._child.start()
        self._pool = PagePool(memory(options.device), options.num_pages, options.page_bytes)
        self._copier = Copier(self._pool.scratch, options.peer_device)
        self._kv_port, self._raw_port = self._pipe.recv()
        self._raw: RawSender | None = None
        self._sender: KvSender | None = None

    def connect(self, depth: int) -> PeerProven:
        """Pushes go with `depth` payloads in flight from now on."""
        self._raw = None
        if self._sender is not None:
            self._sender.close()
        self._sender = KvSender(self._options.config("prefill", f"p-{depth}", depth=depth), self._pool)
        self._sender.connect(PeerAddress("decode", "127.0.0.1", self._kv_port, "d", "bench"))
        proven = next(event for event in self._events(self._sender) if isinstance(event, PeerProven))
        # Not before: its peer answers only inside `raw`, and a connection that waits slows the other worker's down.
        self._raw = RawSender("127.0.0.1", self._raw_port)
        return proven

    def copy(self, case: Case) -> float:
        """GB/s of plain copies."""
        return case.gb_per_s(self._copier.copy(case.num_bytes, case.num_messages))

    def raw(self, case: Case) -> float:
        """GB/s of UCXX alone."""
        self._pipe.send(case)
        self._pipe.recv()  # its receives are posted
        pages = take(self._pool, self._options.num_pages)
        assert self._raw is not None
        seconds = self._raw.send([page.buffer[: case.num_bytes] for page in pages], case.depth, case.num_messages)
        give_back(pages)
        return case.gb_per_s(seconds)

    def kv(self, case: Case) -> float:
        """GB/s of pushes, from the first to the last answer. Ends the run where one of them did not land."""
        assert self._sender is not None
        started = time.perf_counter()
        sent = answered = 0
        while answered < case.num_messages:
            while sent < case.num_messages and (page := self._pool.acquire()) is not None:
                self._sender.push("decode", KEY, sent, 1, page, case.num_bytes)
                sent += 1
            answered += sum(_landed(event) for event in self._events(self._sender))
        return case.gb_per_s(time.perf_counter() - started)

    def reports(self) -> tuple[Report, Report]:
        """What the sending and the receiving process have stamped since the last call; only where they are probed."""
        assert self._probe is not None
        self._pipe.send("report")
        return self._probe.take(), self._pipe.recv()

    def close(self) -> None:
        """End both processes' transfers."""
        self._pipe.send(None)
        if self._sender is not None:
            self._sender.close()
        self._child.join(10)
        if self._probe is not None:
            self._probe.remove()

    def _events(self, sender: KvSender) -> list[SenderEvent]:
        select.select([sender.wake_fd], [], [], 10)
        events = sender.poll()
        lost = [event for event in events if isinstance(event, PeerLost)]
        if lost or not events:
            raise SystemExit(f"the transfer failed: {lost or 'nothing happened for 10 s'}")
        return events
