# ruff: noqa: ARG002 - the arguments are grpc's
"""A mixed worker that computes nothing: it speaks the session protocol and makes one token a step for every request.

Run as a process: `python -m bench.gateway_load.fake_worker MODEL_FOLDER STEP_S`; it prints its port.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import uvloop

from services.common import rpc
from services.common.identity import new_incarnation
from services.common.ipc import AttemptKey
from services.common.messages import (
    PROTOCOL,
    Abort,
    AttemptDelta,
    Deltas,
    Heartbeat,
    Limits,
    Load,
    MasterHello,
    MasterMessage,
    Prefilling,
    Queued,
    Role,
    Submit,
    WorkerHello,
    WorkerMessage,
    WorkerRef,
)
from services.common.request import Delta, Finish, FinishReason
from services.common.wire import master_messages_from_proto, worker_messages_to_protos
from services.worker.outbox import Outbox
from services.worker.stream import converse, read_hello
from sluice.v1 import worker_pb2 as pb
from sluice.v1 import worker_pb2_grpc

TOKEN, TEXT = 1000, " sluice"
LIMITS = Limits(1 << 30, 1 << 20, 32768, 49152, (2,), 1024)
FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")


class Sequence:
    """One running request."""

    def __init__(self, submit: Submit) -> None:
        self.key: AttemptKey = submit.key
        self.limit = submit.request.stop.max_new_tokens
        self.num_tokens = len(submit.output_ids)

    def step(self) -> Delta:
        """Its next token."""
        at = self.num_tokens
        self.num_tokens += 1
        finish = Finish(FinishReason.LENGTH, self.num_tokens) if self.num_tokens == self.limit else None
        return Delta(0, at, [TOKEN], TEXT, None, finish, (len(TEXT),))


class FakeWorker(worker_pb2_grpc.WorkerServiceServicer):
    """One per process. A master at a time."""

    def __init__(self, folder: Path, step_s: float) -> None:
        self._folder = folder
        self._step_s = step_s
        self._ref = WorkerRef("bench", new_incarnation())
        self._running: dict[AttemptKey, Sequence] = {}
        self._done: set[AttemptKey] = set()
        self._out: Outbox[WorkerMessage] = Outbox("the master")
        self._in_columns = False

    async def Session(  # noqa: N802 - the proto's name
        self,
        request_iterator: AsyncIterator[pb.WorkerServiceSessionRequest],
        context: object,
    ) -> AsyncIterator[pb.WorkerServiceSessionResponse]:
        """The worker's side of a session."""
        incoming = _messages(request_iterator)
        hello = await read_hello(incoming, MasterHello)
        self._in_columns = hello.reads_columns
        self._out = Outbox("the master")
        own = WorkerHello(PROTOCOL, self._ref, Role.MIXED, "bench", "bench", "", LIMITS, reads_batches=True)
        self._out.say(own)
        tasks = [asyncio.create_task(work) for work in (self._beat(), self._steps())]
        try:
            async with aclosing(converse(incoming, self._out, self._take)) as batches:
                async for batch in batches:
                    for proto in worker_messages_to_protos(batch, in_batches=hello.reads_batches):
                        yield proto
        finally:
            for task in tasks:
                task.cancel()

    async def GetTokenizer(  # noqa: N802
        self,
        request: pb.GetTokenizerRequest,
        context: object,
    ) -> AsyncIterator[pb.GetTokenizerResponse]:
        """The model folder's text files."""
        for name in FILES:
            path = self._folder / name
            if path.is_file():
                yield pb.GetTokenizerResponse(name=name, chunk=path.read_bytes())

    def _take(self, message: MasterMessage) -> None:
        if isinstance(message, Submit):
            self._out.say(Queued(message.key), Prefilling(message.key, 0))
            self._running[message.key] = Sequence(message)
        elif isinstance(message, Abort):
            for key in message.keys:
                self._running.pop(key, None)
                self._done.discard(key)

    async def _beat(self) -> None:
        while True:
            held = [*self._running, *self._done]
            load = Load(running_requests=len(self._running), num_slots=LIMITS.num_slots, tokens_per_s=1e6)
            beat = Heartbeat(load, 0.0, ready=True, draining=False, proven=[], held=held)
            self._out.say(beat)
            await asyncio.sleep(1.0)

    async def _steps(self) -> None:
        while True:
            started = time.monotonic()
            frame = []
            for key, sequence in list(self._running.items()):
                delta = sequence.step()
                frame.append(AttemptDelta(key, delta))
                if delta.finish is not None:
                    self._done.add(key)
                    del self._running[key]
            if frame:
                self._out.say(Deltas(frame, self._in_columns))
            await asyncio.sleep(max(0.0, started + self._step_s - time.monotonic()))


async def _messages(protos: AsyncIterator[pb.WorkerServiceSessionRequest]) -> AsyncIterator[MasterMessage]:
    async for proto in protos:
        for message in master_messages_from_proto(proto):
            yield message


async def main(folder: Path, step_s: float) -> None:
    """Serve until killed."""
    server = rpc.server()
    worker_pb2_grpc.add_WorkerServiceServicer_to_server(FakeWorker(folder, step_s), server)
    port = rpc.bind(server, "127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(main(Path(sys.argv[1]), float(sys.argv[2])))
