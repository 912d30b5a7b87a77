"""Stamps around the calls of a transfer, put there from outside: where a page's time goes, on each thread.

`Probe` wraps methods of the transfer's own classes, in this process. Each call is stamped with `perf_counter_ns`, one
clock for all processes of a machine, and with its thread's processor time; what stamped calls inside it took is taken
off. A call that waits (for the interpreter, for a wake) has more wall than processor time, one that works or spins for
a lock has both. The stamps themselves cost a few us a page.
"""

from __future__ import annotations

import functools
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

from services.engine.transfer.channel import Channel
from services.engine.transfer.fabric import Fabric
from services.engine.transfer.link import Link
from services.engine.transfer.mailbox import Mailbox
from services.engine.transfer.outbound import OutboundQueue
from services.engine.transfer.receive_channel import ReceiveChannel
from services.engine.transfer.receiver import KvReceiver
from services.engine.transfer.send_channel import SendChannel
from services.engine.transfer.sender import KvSender
from services.engine.transfer.transfer_thread import TransferThread

Seq = Callable[..., int]
_WITH_TAG: Seq = lambda _link, _page, _num_bytes, tag, _on_done: tag & 0xFFFFFFFF  # noqa: E731
_WITH_INBOUND: Seq = lambda _link, _page, _start, _num_bytes, on_done: on_done.args[0].seq  # noqa: E731
_WITH_SEQ: Seq = lambda _owner, message, *_: message.seq  # noqa: E731

STAGES = ("announced", "heard", "posted", "sending", "arrived", "sent", "settled", "answered")
"""Moments of a payload, in the order of the protocol; `sending` may come before `posted`, `sent` before `arrived`."""


class Cost(NamedTuple):
    """All calls of one kind on one thread."""

    thread: str
    name: str
    num_calls: int
    wall_us: float
    cpu_us: float


class Report(NamedTuple):
    """What one process has stamped since it was last asked."""

    moments: list[tuple[str, int, int]]
    """(stage, seq, ns)"""
    costs: list[Cost]


class Probe:
    """Made once in a process, before its transfer starts; any thread's calls are stamped."""

    def __init__(self) -> None:
        self._moments: list[tuple[str, int, int]] = []
        self._costs: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
        self._open = threading.local()
        self._originals: list[tuple[type, str, Any]] = []
        self._wrap(TransferThread, "_pause", "pause")
        self._wrap(Fabric, "turn", "progress, collect")
        self._wrap(Fabric, "messages", "read frames")
        self._wrap(Fabric, "_post_control", "post frame")
        self._wrap(Fabric, "sleep", "sleep")
        self._wrap(Link, "say", "send frame")
        self._wrap(Channel, "flush", "flush")
        self._wrap(SendChannel, "_on_taken", "on taken")
        self._wrap(Mailbox, "put", "wake")
        self._wrap(OutboundQueue, "_announce", "announce", end=("announced", _WITH_SEQ))
        self._wrap(Link, "send_page", "send page", begin=("sending", _WITH_TAG))
        self._wrap(OutboundQueue, "_on_sent", "on sent", begin=("sent", _WITH_SEQ))
        self._wrap(OutboundQueue, "answered", "on answer")
        self._wrap(OutboundQueue, "_report", "on answer", begin=("answered", _WITH_SEQ))
        self._wrap(ReceiveChannel, "_on_announce", "on announce", begin=("heard", _WITH_SEQ))
        self._wrap(Link, "receive_page", "post receive", end=("posted", _WITH_TAG))
        self._wrap(Link, "read_page", "start read", end=("posted", _WITH_INBOUND))
        self._wrap(ReceiveChannel, "_on_received", "on received", begin=("arrived", _WITH_SEQ))
        self._wrap(ReceiveChannel, "_settle", "settle", end=("settled", _WITH_SEQ))
        self._wrap(KvSender, "push", "push")
        self._wrap(KvSender, "poll", "poll")
        self._wrap(KvReceiver, "poll", "poll")

    def take(self) -> Report:
        """Everything since the last call."""
        report = Report(list(self._moments), [_cost(key, spent) for key, spent in self._costs.items()])
        self._moments.clear()
        self._costs.clear()
        return report

    def remove(self) -> None:
        """Calls are as they were."""
        for owner, method, original in self._originals:
            setattr(owner, method, original)

    def _wrap(
        self, owner: type, method: str, name: str, begin: tuple[str, Seq] | None = None,
        end: tuple[str, Seq] | None = None,
    ) -> None:  # fmt: skip
        original = getattr(owner, method)

        @functools.wraps(original)
        def stamped(*args: Any, **options: Any) -> Any:  # noqa: ANN401 # whatever it wraps
            outer: list[int] | None = getattr(self._open, "inner", None)
            inner = self._open.inner = [0, 0]
            cpu, wall = time.thread_time_ns(), time.perf_counter_ns()
            try:
                return original(*args, **options)
            finally:
                done, used = time.perf_counter_ns(), time.thread_time_ns() - cpu
                self._open.inner = outer
                if outer is not None:
                    outer[0] += done - wall
                    outer[1] += used
                spent = self._costs[threading.current_thread().name, name]
                for index, more in enumerate((1, done - wall - inner[0], used - inner[1])):
                    spent[index] += more
                for stage, at in ((begin, wall), (end, done)):
                    if stage is not None:
                        self._moments.append((stage[0], stage[1](*args), at))

        self._originals.append((owner, method, original))
        setattr(owner, method, stamped)


def _cost(key: tuple[str, str], spent: list[int]) -> Cost:
    return Cost(*key, spent[0], spent[1] / 1e3, spent[2] / 1e3)
