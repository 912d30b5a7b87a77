"""A process that pushes pages to a decode engine at a given rate, and computes nothing."""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import NamedTuple

from bench.random_engine import key_of
from bench.transfer_pair import SWITCH_S, memory
from services.common.ipc import AttemptKey
from services.engine.transfer.config import TransferConfig
from services.engine.transfer.events import PeerAddress, PeerLost, PeerProven, Pushed, PushOutcome
from services.engine.transfer.heads import HeadRange
from services.engine.transfer.pages import PagePool
from services.engine.transfer.sender import KvSender


class Traffic(NamedTuple):
    """An order: push at this rate, 0 for as fast as it goes, until None comes."""

    gb_per_s: float


class Target(NamedTuple):
    """A decode engine, and attempts whose slots it has reserved."""

    port: int
    group: str
    heads: HeadRange
    page_bytes: int
    token_bytes: int
    job_ids: tuple[int, ...]
    attempt_tokens: int

    def ranges(self) -> Iterator[tuple[AttemptKey, int, int]]:
        """(attempt, first token, tokens) of one page after the other, for ever."""
        page_tokens = self.page_bytes // self.token_bytes
        while True:
            for job_id in self.job_ids:
                for start in range(0, self.attempt_tokens, page_tokens):
                    yield key_of(job_id), start, min(page_tokens, self.attempt_tokens - start)


def send_traffic(pipe: Connection, device: str, num_pages: int, target: Target) -> None:
    """Connect, say the lane on `pipe`, then obey it: a Traffic, None, and the achieved GB/s goes back."""
    sys.setswitchinterval(SWITCH_S)
    pool = PagePool(memory(device), num_pages, target.page_bytes)
    sender = KvSender(TransferConfig("prefill", "p", target.group, heads=target.heads), pool)
    sender.connect(PeerAddress("decode", "127.0.0.1", target.port, "e", target.group, target.heads))
    pipe.send(_proven(sender).lane)
    ranges = target.ranges()
    while True:
        traffic: Traffic = pipe.recv()
        pipe.send(_push(pipe, sender, pool, target, ranges, traffic.gb_per_s))


def _proven(sender: KvSender) -> PeerProven:
    while True:
        select.select([sender.wake_fd], [], [], 10)
        for event in sender.poll():
            if isinstance(event, PeerProven):
                return event
            raise SystemExit(f"the pair was not proven: {event}")


def _push(
    pipe: Connection, sender: KvSender, pool: PagePool, target: Target,
    ranges: Iterator[tuple[AttemptKey, int, int]], gb_per_s: float,
) -> float:  # fmt: skip
    """Push until something comes on `pipe`, which is taken; GB/s that landed."""
    started = due = time.perf_counter()
    landed = in_flight = 0
    while in_flight or not pipe.poll():
        now = time.perf_counter()
        is_over = pipe.poll()
        page = pool.acquire() if now >= due and not is_over else None
        if page is not None:
            key, start, count = next(ranges)
            num_bytes = count * target.token_bytes
            sender.push("decode", key, start, count, page, num_bytes)
            in_flight += 1
            due = max(due, now - 1e-3) + (num_bytes / gb_per_s / 1e9 if gb_per_s else 0.0)
        else:
            select.select([sender.wake_fd, pipe.fileno()], [], [], 1.0 if is_over or now >= due else due - now)
        for event in sender.poll():
            if isinstance(event, PeerLost) or (isinstance(event, Pushed) and event.outcome is not PushOutcome.LANDED):
                raise SystemExit(f"the traffic failed: {event}")
            if isinstance(event, Pushed):
                in_flight -= 1
                landed += event.num_bytes
    pipe.recv()
    return landed / (time.perf_counter() - started) / 1e9
