"""A KV sender or receiver in a process of its own, driven by JSON lines: `python -m ...peer_process '{"role": ...}'`.

Commands arrive on stdin, one JSON object a line with the method's name as "do"; what happens leaves on stdout.
"""

import json
import os
import select
import sys
from collections.abc import Iterator
from typing import Any

from services.common.ipc import AttemptKey
from services.engine.transfer.config import TransferConfig
from services.engine.transfer.events import (
    Damaged,
    PeerAddress,
    PeerLost,
    PeerProven,
    Pushed,
    Received,
    ReceiverEvent,
    SenderEvent,
)
from services.engine.transfer.heads import HeadRange
from services.engine.transfer.pages import PagePool
from services.engine.transfer.receiver import KvReceiver
from services.engine.transfer.sender import KvSender
from tests.engine.transfer.memory import page_memory


def tell(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


class ReceiverProcess:
    def __init__(self, config: TransferConfig, pool: PagePool) -> None:
        self.pool = pool
        self.transfer = KvReceiver(config, pool)
        self._is_holding = False
        self._held: list[Received] = []
        tell(event="up", port=self.transfer.port)

    def do(self, command: dict[str, Any]) -> None:
        match command["do"]:
            case "expect":
                self.transfer.expect(AttemptKey(*command["key"]))
            case "forget":
                self.transfer.forget(AttemptKey(*command["key"]))
            case "hold":
                self._is_holding = command["on"]
                for event in [] if self._is_holding else self._held:
                    event.page.release()
                self._held = []

    def handle(self, event: ReceiverEvent | SenderEvent) -> None:
        match event:
            case Received():
                crc = self.pool.memory.checksum(event.page.buffer[: event.num_bytes])
                tell(event="received", key=list(_key(event.key)), start=event.token_start, crc=crc)
                if self._is_holding:
                    self._held.append(event)
                else:
                    event.page.release()
            case Damaged():
                tell(event="damaged", key=list(_key(event.key)))
            case PeerProven() | PeerLost():
                tell_peer(event)


class SenderProcess:
    def __init__(self, config: TransferConfig, pool: PagePool) -> None:
        self.pool = pool
        self.transfer = KvSender(config, pool)
        tell(event="up", port=0)

    def do(self, command: dict[str, Any]) -> None:
        match command["do"]:
            case "connect":
                address = command["address"]
                self.transfer.connect(PeerAddress(**{**address, "heads": HeadRange(*address["heads"])}))
            case "push":
                page = self.pool.acquire()
                assert page is not None
                self.pool.memory.fill(page.buffer, command["seed"])
                key = AttemptKey(*command["key"])
                self.transfer.push(command["peer_id"], key, command["start"], 1, page, len(page.buffer))

    def handle(self, event: ReceiverEvent | SenderEvent) -> None:
        match event:
            case Pushed():
                tell(event="pushed", outcome=event.outcome.value, start=event.token_start)
            case PeerProven() | PeerLost():
                tell_peer(event)


def tell_peer(event: PeerProven | PeerLost) -> None:
    if isinstance(event, PeerProven):
        tell(event="proven", peer=event.peer_id, lane=event.lane)
    else:
        tell(event="lost", peer=event.peer_id, incarnation=event.incarnation, reason=event.reason.value)


def _key(key: AttemptKey) -> tuple[str, int]:
    return key.request_id, key.attempt


def commands() -> Iterator[dict[str, Any]]:
    """What has arrived on stdin; ends the process's loop (StopIteration) when stdin is closed."""
    rest = b""
    while chunk := os.read(sys.stdin.fileno(), 65536):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield json.loads(line)
        yield {"do": "nothing"}


def report(side: ReceiverProcess | SenderProcess) -> None:
    counts, stats = side.pool.counts(), side.transfer.stats
    problems = side.pool.check_integrity()
    pages = [counts.free, counts.held, counts.moving, counts.quarantined]
    tell(event="report", free=counts.free, pages=pages, problems=problems, num_bytes=stats.num_bytes, lost=stats.lost)


def run(side: ReceiverProcess | SenderProcess) -> None:
    poller = select.poll()
    poller.register(sys.stdin.fileno(), select.POLLIN)
    poller.register(side.transfer.wake_fd, select.POLLIN)
    arriving = commands()
    while True:
        ready = {fd for fd, _ in poller.poll()}
        while sys.stdin.fileno() in ready:
            command = next(arriving, {"do": "close"})
            if command["do"] == "close":
                return
            if command["do"] == "nothing":
                break
            if command["do"] == "report":
                report(side)
            else:
                side.do(command)
        for event in side.transfer.poll():
            side.handle(event)


def main() -> None:
    settings = json.loads(sys.argv[1])
    pool = PagePool(page_memory(settings["device"]), settings["num_pages"], settings["page_bytes"])
    config = TransferConfig(**settings["config"])
    side = ReceiverProcess(config, pool) if settings["role"] == "receiver" else SenderProcess(config, pool)
    run(side)
    side.transfer.close()
    for event in side.transfer._events.drain():
        side.handle(event)
    tell(event="closed", free=pool.counts().free, problems=pool.check_integrity())


if __name__ == "__main__":
    main()
