"""A fake engine process: real ipc over the real socket, tokens from `fake_token`, KV "moved" as JSON lines over TCP.

    python -m tests.fakes.engine [--step-s 0.001] [--num-slots 4096] [--chunk-tokens 256] [--load-s 0]

Started by `EngineClient` exactly like the real engine: its configuration comes on stdin.
"""

import argparse
import asyncio
import json
import os
import sys
import time
from typing import Any

import zmq
import zmq.asyncio

from services.common.ipc import (
    IPC_PROTOCOL,
    Alive,
    AttemptKey,
    CheckIntegrity,
    ConnectPeer,
    Counters,
    DropPeer,
    EngineReady,
    Event,
    Integrity,
    PeerLost,
    PeerProven,
    Place,
    PushDone,
    Shutdown,
    StepDone,
    TransferFailed,
    decode_commands,
    encode,
)
from tests.fakes.engine_state import FakeState, Job

KV_BYTES = 100
ALIVE_EVERY_S = 0.5


class FakeEngine:
    """One process's engine: `main` makes it and runs it until Shutdown."""

    def __init__(self, options: argparse.Namespace, start: dict[str, Any]) -> None:
        self._options = options
        self._state = FakeState(options.num_slots, options.chunk_tokens, options.defer_every)
        self._endpoint: str = start["endpoint"]
        self._parent = os.getppid()
        self._socket = zmq.asyncio.Context.instance().socket(zmq.PAIR)
        self._outbox: list[Event] = []
        self._peers: dict[str, asyncio.StreamWriter] = {}
        self._sent: set[tuple[int, Place]] = set()
        self._steps = 0
        self._wake = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> int:
        """Until Shutdown (0), or until the control process is gone (1)."""
        self._socket.connect(self._endpoint)
        server = await asyncio.start_server(self._serve_transfer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        await asyncio.sleep(self._options.load_s)
        self._emit(self._ready(port))
        commands = asyncio.create_task(self._take_commands())
        while not commands.done():
            if os.getppid() != self._parent:
                return 1
            self._wake.clear()
            self._flush()
            if not self._state.busy:
                await self._idle(commands)
                continue
            await asyncio.sleep(self._options.step_s)
            self._step()
        commands.result()
        return 0

    def _ready(self, port: int) -> EngineReady:
        fingerprint = self._options.fingerprint
        return EngineReady(
            IPC_PROTOCOL, fingerprint, "fake-layout", 1, self._options.num_slots, self._options.max_context_tokens,
            49152, (2,), self._options.chunk_tokens, (port,), "fake", self._options.kv_bytes, self._options.load_s,
        )  # fmt: skip

    async def _idle(self, commands: asyncio.Task[None]) -> None:
        wake = asyncio.create_task(self._wake.wait())
        done, _ = await asyncio.wait({wake, commands}, timeout=ALIVE_EVERY_S, return_when=asyncio.FIRST_COMPLETED)
        wake.cancel()
        if not done:
            self._emit(Alive(self._steps, 0.0, self._state.usage()))
            self._emit(Counters({"steps": self._steps, "preempted_sequences": self._state.num_preempted}))

    def _emit(self, *events: Event) -> None:
        self._outbox.extend(events)

    def _flush(self) -> None:
        if self._outbox:
            self._socket.send(encode(self._outbox), zmq.DONTWAIT)
            self._outbox = []

    async def _take_commands(self) -> None:
        while True:
            for command in decode_commands(await self._socket.recv()):
                match command:
                    case Shutdown():
                        return
                    case CheckIntegrity(token=token):
                        self._emit(Integrity(token, self._options.problem, self._state.usage(), len(self._state.jobs)))
                    case ConnectPeer():
                        self._spawn(self._connect(command))
                    case DropPeer(peer_id=peer_id) if peer_id in self._peers:
                        self._peers.pop(peer_id).close()
                    case _:
                        self._emit(*self._state.handle(command))
            self._after_commands()

    def _after_commands(self) -> None:
        self._emit(*self._state.joins())
        self._push()
        self._flush()
        self._wake.set()

    def _step(self) -> None:
        started = time.monotonic()
        before = self._state.num_prefilled
        outputs, events, prefilling = self._state.step()
        self._steps += 1
        self._emit(
            StepDone(
                self._steps, outputs, self._state.usage(), time.monotonic() - started + self._options.step_s,
                len(outputs), self._state.num_prefilled - before, prefilling,
            )
        )  # fmt: skip
        self._emit(*events)
        self._push()

    # ---------------------------------------------------------------------------------------------------- KV transfer

    def _spawn(self, work: Any) -> None:  # noqa: ANN401 - a coroutine
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _push(self) -> None:
        for job in self._state.pushes():
            if job.place is not None and (job.job_id, job.place) not in self._sent:
                self._sent.add((job.job_id, job.place))
                self._send_kv(job)
        self._sent = {sent for sent in self._sent if sent[0] in self._state.jobs}

    def _send_kv(self, job: Job) -> None:
        assert job.place is not None
        peer = self._peers.get(job.place.peer_id)
        if peer is None or peer.is_closing():
            self._emit(TransferFailed(job.job_id, "peer_lost", f"no transfer to {job.place.peer_id}"))
            return
        self._spawn(self._push_later(job.job_id, job.place, job.num_tokens, peer))

    async def _push_later(self, job_id: int, place: Place, num_tokens: int, peer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(self._options.push_s)
        job = self._state.jobs.get(job_id)
        if job is None or job.place != place or peer.is_closing():
            return
        peer.write(json.dumps({"request": place.key.request_id, "attempt": place.key.attempt}).encode() + b"\n")
        size = (num_tokens - place.skip_tokens) * KV_BYTES
        self._emit(PushDone(job_id, size, self._options.push_s + 1e-4, self._options.push_s))
        self._wake.set()

    async def _connect(self, peer: ConnectPeer) -> None:
        try:
            reader, writer = await asyncio.open_connection(peer.host, peer.ports[0])
            writer.write(b'{"proof": true}\n')
            await reader.readexactly(1)
        except (OSError, asyncio.IncompleteReadError) as error:
            self._lose(peer.peer_id, str(error))
            return
        self._peers[peer.peer_id] = writer
        self._emit(PeerProven(peer.peer_id, "tcp", 1.0))
        self._flush()
        await reader.read()  # ends when the peer is gone
        if self._peers.pop(peer.peer_id, None) is not None:
            self._lose(peer.peer_id, "connection closed")

    def _lose(self, peer_id: str, reason: str) -> None:
        self._emit(PeerLost(peer_id, reason))
        for job in self._state.jobs.values():
            if job.place is not None and job.place.peer_id == peer_id:
                self._emit(TransferFailed(job.job_id, "peer_lost", reason))
        self._flush()

    async def _serve_transfer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await _line(reader):
            message = json.loads(line)
            if "proof" in message:
                writer.write(b"!")
                continue
            self._state.receive(AttemptKey(message["request"], message["attempt"]))
            self._after_commands()
        writer.close()


async def _line(reader: asyncio.StreamReader) -> bytes:
    """The next line; empty at the end, whatever ended it."""
    try:
        return await reader.readline()
    except (ConnectionError, asyncio.CancelledError):
        return b""


def main(arguments: list[str]) -> int:
    """Run until Shutdown: 0; or until the control process is gone: 1."""
    engine = FakeEngine(parse(arguments), json.loads(sys.stdin.readline()))
    return asyncio.run(engine.run())


def parse(arguments: list[str]) -> argparse.Namespace:
    """The fake's own options."""
    parser = argparse.ArgumentParser()
    parser.add_argument("source", choices=["-"], help="the configuration comes on stdin, as with the real engine")
    parser.add_argument("--step-s", type=float, default=0.001)
    parser.add_argument("--push-s", type=float, default=0.0, help="how long KV is under way")
    parser.add_argument("--load-s", type=float, default=0.0)
    parser.add_argument("--num-slots", type=int, default=65536)
    parser.add_argument("--defer-every", type=int, default=0, help="defer each so many-th proposal without a reason")
    parser.add_argument("--chunk-tokens", type=int, default=256)
    parser.add_argument("--max-context-tokens", type=int, default=8192)
    parser.add_argument("--kv-bytes", type=int, default=KV_BYTES, help="what a token's KV is said to take")
    parser.add_argument("--fingerprint", default="fake-model")
    parser.add_argument("--problem", action="append", default=[], help="what its books are said to lack")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
