"""A small master for tests of workers: real sessions over real sockets, every message kept, nothing retried."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import TypeVar

import grpc.aio

from services.common import rpc
from services.common.ipc import AttemptKey
from services.common.messages import (
    PROTOCOL,
    Abort,
    AttemptEvent,
    CacheChanges,
    Deltas,
    Heartbeat,
    LiveAttempt,
    MasterHello,
    MasterMessage,
    MasterRef,
    Peer,
    Peers,
    Reconcile,
    Submit,
    WorkerHello,
)
from services.common.request import Delta, Request, SamplingParams, StopParams
from services.common.wire import master_message_to_proto, worker_message_from_proto
from sluice.v1 import worker_pb2 as pb
from sluice.v1 import worker_pb2_grpc

TIMEOUT_S = 90.0
E = TypeVar("E")


def make_request(prompt: list[int], max_new_tokens: int, *stops: str, n: int = 1, seed: int = 0) -> Request:
    """A greedy request with a fresh id."""
    stop = StopParams(max_new_tokens, stop_strings=stops)
    sampling = SamplingParams(temperature=0.0, seed=seed)
    return Request(secrets.token_hex(16), "demo", prompt, sampling, stop, num_choices=n)


@dataclass
class Seen:
    """What workers said of one request name: events in order, deltas by choice."""

    events: list[AttemptEvent] = field(default_factory=list)
    tokens: dict[int, list[int]] = field(default_factory=dict)
    text: dict[int, str] = field(default_factory=dict)
    finished: dict[int, Delta] = field(default_factory=dict)

    def take(self, delta: Delta) -> None:
        """Deliver by index; drop what is known (R6)."""
        tokens = self.tokens.setdefault(delta.choice, [])
        assert delta.first_index <= len(tokens), f"a gap: {len(tokens)} known, delta from {delta.first_index}"
        skip = len(tokens) - delta.first_index
        if skip < len(delta.token_ids) or (delta.finish is not None and delta.choice not in self.finished):
            tokens += delta.token_ids[skip:]
            known = sum(delta.text_lengths[:skip])
            self.text[delta.choice] = self.text.get(delta.choice, "") + delta.text[known:]
        if delta.finish is not None:
            self.finished[delta.choice] = delta


class Link:
    """One session to one worker; closed by cancelling."""

    def __init__(self, master: "FakeMaster", address: str) -> None:
        self.master = master
        self.address = address
        self.hello: WorkerHello | None = None
        self.heartbeat: Heartbeat | None = None
        self.error: grpc.aio.AioRpcError | None = None
        self._outbox: asyncio.Queue[MasterMessage | None] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    def say(self, message: MasterMessage) -> None:
        """Send a message."""
        self._outbox.put_nowait(message)

    async def open(self, live: list[LiveAttempt] | None = None) -> "Link":
        """Connect and wait for the worker's hello."""
        self.say(MasterHello(PROTOCOL, self.master.ref, live or []))
        self._task = asyncio.create_task(self._run())
        await self.master.until(lambda: self.heartbeat is not None or self.error is not None)
        return self

    async def close(self) -> None:
        """Break the stream, as a dying master does."""
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        async with rpc.channel(self.address) as channel:
            try:
                async for message in worker_pb2_grpc.WorkerServiceStub(channel).Session(self._requests()):
                    self.master.heard(self, message)
            except grpc.aio.AioRpcError as error:
                self.error = error
                self.master.wake()

    async def _requests(self) -> AsyncIterator[pb.WorkerServiceSessionRequest]:
        while (message := await self._outbox.get()) is not None:
            yield master_message_to_proto(message)


class FakeMaster:
    """Sessions to any number of workers."""

    def __init__(self, master_id: str = "test-master") -> None:
        self.ref = MasterRef(master_id, secrets.token_hex(8))
        self.links: dict[str, Link] = {}
        self.seen: dict[str, Seen] = {}
        self.live: dict[AttemptKey, LiveAttempt] = {}
        self._changed = asyncio.Event()

    async def connect(self, *addresses: str) -> None:
        """Open a session to each worker."""
        for address in addresses:
            self.links[address] = await Link(self, address).open()

    async def close(self) -> None:
        """Break every session."""
        for link in self.links.values():
            await link.close()

    async def pair(self, prefill: str, *decodes: str) -> None:
        """Name the decode workers to a prefill worker and wait until all pairs are proven."""
        self.links[prefill].say(Peers([self.peer(decode) for decode in decodes]))
        wanted = {self.peer(decode).worker for decode in decodes}

        def proven() -> bool:
            heartbeat = self.links[prefill].heartbeat
            return heartbeat is not None and {pair.worker for pair in heartbeat.proven} == wanted

        await self.until(proven)

    def peer(self, address: str) -> Peer:
        """A decode worker as it introduced itself."""
        hello = self.links[address].hello
        assert hello is not None
        return Peer(hello.worker, hello.address)

    def last_heartbeat(self, address: str) -> Heartbeat:
        """What a worker last said of itself."""
        heartbeat = self.links[address].heartbeat
        assert heartbeat is not None
        return heartbeat

    def submit(
        self, request: Request, worker: str, decode: str | None, attempt: int = 1, output_ids: list[int] | None = None
    ) -> AttemptKey:
        """Start an attempt."""
        key = AttemptKey(request.request_id, attempt)
        self.seen.setdefault(request.request_id, Seen())
        choices = tuple(range(request.num_choices))
        for address in filter(None, (worker, decode)):
            self.live[key] = LiveAttempt(key, dict.fromkeys(choices, 0))
            assert address in self.links
        target = None if decode is None else self.peer(decode)
        self.links[worker].say(Submit(key, request, choices, output_ids or [], target, 0.0))
        return key

    def abort(self, key: AttemptKey) -> None:
        """End an attempt everywhere."""
        self.live.pop(key, None)
        for link in self.links.values():
            link.say(Abort([key]))

    def reconcile(self) -> None:
        """Say what is believed, once, to every worker."""
        for link in self.links.values():
            link.say(Reconcile(list(self.live.values())))

    def heard(self, link: Link, proto: pb.WorkerServiceSessionResponse) -> None:
        """A worker said something."""
        message = worker_message_from_proto(proto)
        match message:
            case WorkerHello():
                link.hello = message
            case Heartbeat():
                link.heartbeat = message
            case CacheChanges():
                pass
            case Deltas(deltas=deltas):
                for one in deltas:
                    self.seen.setdefault(one.key.request_id, Seen()).take(one.delta)
            case _:
                self.seen.setdefault(message.key.request_id, Seen()).events.append(message)
        self.wake()

    def wake(self) -> None:
        """Have `until` look again."""
        self._changed.set()

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until something heard makes the condition true."""
        async with asyncio.timeout(TIMEOUT_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def finished(self, request: Request) -> Seen:
        """Wait until every choice has ended; thank the workers."""
        seen = self.seen[request.request_id]
        await self.until(lambda: len(seen.finished) == request.num_choices)
        for key in [key for key in self.live if key.request_id == request.request_id]:
            self.abort(key)
        return seen

    async def event(self, request: Request, kind: type[E]) -> E:
        """Wait for an event of an attempt."""
        seen = self.seen[request.request_id]
        await self.until(lambda: any(isinstance(event, kind) for event in seen.events))
        return next(event for event in seen.events if isinstance(event, kind))


@contextlib.asynccontextmanager
async def master(*addresses: str, master_id: str = "test-master") -> AsyncIterator[FakeMaster]:
    """A connected master, closed at the end."""
    one = FakeMaster(master_id)
    try:
        await one.connect(*addresses)
        yield one
    finally:
        await one.close()
