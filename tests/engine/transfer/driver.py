"""Drives a transfer in this process and its peer in another one, without sleeping."""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from services.common.ipc import AttemptKey
from services.engine.transfer.config import TransferConfig
from services.engine.transfer.events import PeerAddress, PeerProven, SenderEvent
from services.engine.transfer.pages import PagePool
from services.engine.transfer.sender import KvSender
from tests.engine.transfer.memory import page_memory

ROOT = Path(__file__).resolve().parents[3]
PAGE_BYTES = 256 * 1024
NUM_PAGES = 8
TIMEOUT_S = 90.0
GROUP = "one-group"


def key(number: int, attempt: int = 1) -> AttemptKey:
    return AttemptKey(f"{number:032x}", attempt)


def config(peer_id: str, incarnation: str, **changes: Any) -> TransferConfig:
    return TransferConfig(**{"peer_id": peer_id, "incarnation": incarnation, "group": GROUP, **changes})


class Peer:
    """A `peer_process`: commands go in, the events it tells come out, in order."""

    def __init__(self, role: str, incarnation: str, num_pages: int = NUM_PAGES, **changes: Any) -> None:
        self.incarnation = incarnation
        self.peer_id = f"a-{role}"
        settings = {
            "role": role,
            "num_pages": num_pages,
            "page_bytes": changes.pop("page_bytes", PAGE_BYTES),
            "device": changes.pop("device", "cpu"),
            "config": {"peer_id": self.peer_id, "incarnation": incarnation, "group": GROUP, **changes},
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.engine.transfer.peer_process", json.dumps(settings)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        self._unread = b""
        self.port: int = self.wait("up")["port"]

    @property
    def address(self) -> PeerAddress:
        return PeerAddress(self.peer_id, "127.0.0.1", self.port, self.incarnation, GROUP)

    def do(self, command: str, **arguments: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": command, **arguments}).encode() + b"\n")
        self.process.stdin.flush()

    def expect(self, attempt: AttemptKey) -> None:
        self.do("expect", key=[attempt.request_id, attempt.attempt])

    def wait(self, event: str) -> dict[str, Any]:
        """The next event of this name; those before it are dropped."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            told = self._next(deadline)
            if told["event"] == event:
                return told

    def report(self) -> dict[str, Any]:
        self.do("report")
        return self.wait("report")

    def wait_for_pages(self, count: int) -> None:
        """Until `count` pages are free there, however UCX takes to let go of them."""
        deadline = time.monotonic() + TIMEOUT_S
        while (report := self.report())["free"] != count:
            assert time.monotonic() < deadline, report
        assert report["problems"] == []

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def _next(self, deadline: float) -> dict[str, Any]:
        assert self.process.stdout is not None
        while b"\n" not in self._unread:
            left = deadline - time.monotonic()
            ready = left > 0 and select.select([self.process.stdout], [], [], left)[0]
            chunk = os.read(self.process.stdout.fileno(), 65536) if ready else b""
            if not chunk:
                raise TimeoutError("the peer process told nothing more")
            self._unread += chunk
        line, self._unread = self._unread.split(b"\n", 1)
        return dict(json.loads(line))


class Sender:
    """A KvSender in this process and the events it gave."""

    def __init__(self, incarnation: str = "sender-1", num_pages: int = NUM_PAGES, **changes: Any) -> None:
        self.memory = changes.pop("memory", None) or page_memory(changes.pop("device", "cpu"))
        self.pool = PagePool(self.memory, num_pages, changes.pop("page_bytes", PAGE_BYTES))
        peer_id = changes.pop("peer_id", "a-prefill")
        self.transfer = KvSender(config(peer_id, incarnation, **changes), self.pool)
        self.events: list[SenderEvent] = []

    def wait(self, is_enough: Callable[[list[SenderEvent]], bool], timeout_s: float = TIMEOUT_S) -> None:
        """Collect events until `is_enough(events)`."""
        deadline = time.monotonic() + timeout_s
        while not is_enough(self.events):
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"not enough: {self.events}")
            select.select([self.transfer.wake_fd], [], [], left)
            self.events += self.transfer.poll()

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def wait_for(self, kind: type[Any], count: int = 1, timeout_s: float = TIMEOUT_S) -> list[Any]:
        self.wait(lambda events: sum(isinstance(event, kind) for event in events) >= count, timeout_s)
        return self.of(kind)

    def push(self, peer: Peer, attempt: AttemptKey, start: int, seed: int, num_bytes: int | None = None) -> None:
        """Push one token's page of the seed's pattern, waiting for a free page if need be."""
        deadline = time.monotonic() + TIMEOUT_S
        while (page := self.pool.acquire()) is None:
            assert time.monotonic() < deadline, "no page came back"
            select.select([self.transfer.wake_fd], [], [], 0.05)
            self.events += self.transfer.poll()
        size = num_bytes or len(page.buffer)
        self.memory.fill(page.buffer[:size], seed)
        self.transfer.push(peer.peer_id, attempt, start, 1, page, size)

    def wait_for_pages(self) -> None:
        """Until every page is free, however UCX takes to let go of them."""
        deadline = time.monotonic() + TIMEOUT_S
        while self.pool.counts().free < len(self.pool):
            assert time.monotonic() < deadline, self.pool.counts()
            select.select([self.transfer.wake_fd], [], [], 0.02)
            self.events += self.transfer.poll()


def connected(receiver: Peer, **changes: Any) -> Sender:
    """A Sender whose pair with the receiver is proven."""
    sender = Sender(**changes)
    sender.transfer.connect(receiver.address)
    sender.wait_for(PeerProven)
    return sender


@contextmanager
def closing(*parts: Peer | Sender) -> Iterator[None]:
    """Close senders and kill peers at the end, whatever happened."""
    try:
        yield
    finally:
        for part in parts:
            if isinstance(part, Sender):
                part.transfer.close()
                assert part.pool.check_integrity() == []
            else:
                part.kill()
