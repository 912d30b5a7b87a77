"""What a request costs the gateway on its session to a worker alone: the same messages, through the same link.

    python -m bench.gateway_load.session_alone [--requests 2000] [--lanes 8] [--rate 100]

Between these figures and those of `bench.gateway` lies everything else: HTTP, template, tokenizer, choice, events. What
is in them is gRPC, protobuf and the event loop.
"""

import argparse
import asyncio
import sys
import time

import uvloop

from services.cli.demo_model import fetch_demo_model
from services.common.ipc import AttemptKey
from services.common.messages import (
    PROTOCOL,
    Abort,
    AttemptDelta,
    Deltas,
    MasterHello,
    MasterRef,
    Submit,
    WorkerHello,
    WorkerMessage,
    WorkerRef,
)
from services.common.request import Request, SamplingParams, StopParams
from services.pd_master.worker_link import WorkerLink

PROMPT_IDS = list(range(100, 224))
"""As many as `bench.gateway` sends."""


class Master:
    """Submits, and aborts what has ended, as a master does; nothing else."""

    def __init__(self, port: int) -> None:
        self.link = WorkerLink(f"127.0.0.1:{port}", self, 60.0)
        self.is_up = asyncio.Event()
        self._number = 0
        self._ended: dict[AttemptKey, asyncio.Future[None]] = {}

    async def request(self) -> None:
        """One request of one token to its end."""
        self._number += 1
        key = AttemptKey(f"{self._number:032x}", 1)
        request = Request(key.request_id, "bench", PROMPT_IDS, SamplingParams(temperature=0.7, seed=1), StopParams(1))
        ended = self._ended[key] = asyncio.get_running_loop().create_future()
        self.link.say(Submit(key, request, (0,), [], None, 0.0))
        await ended
        self.link.say(Abort([key]))

    def hello_for(self, worker: WorkerRef | None) -> MasterHello:  # noqa: ARG002 - the protocol's
        """Of this version."""
        return MasterHello(PROTOCOL, MasterRef("bench", "1"), [], reads_columns=True, reads_batches=True)

    def link_up(self, link: WorkerLink, hello: WorkerHello) -> None:  # noqa: ARG002
        """Requests may come."""
        self.is_up.set()

    def link_said(self, worker: WorkerRef, message: WorkerMessage) -> None:  # noqa: ARG002
        """Deltas end requests."""
        if isinstance(message, Deltas):
            for one in message.deltas:
                self._end(one)

    def _end(self, one: AttemptDelta) -> None:
        if one.delta.finish is not None:
            self._ended.pop(one.key).set_result(None)

    def link_down(self, link: WorkerLink, worker: WorkerRef) -> None:
        """The measurement is over."""

    def link_refused(self, worker: WorkerRef) -> None:
        """The measurement is over."""


async def in_lanes(master: Master, count: int, lanes: int) -> None:
    """So many requests, one after another in each lane."""

    async def lane() -> None:
        for _ in range(count // lanes):
            await master.request()

    await asyncio.gather(*(lane() for _ in range(lanes)))


async def at_rate(master: Master, count: int, rate: float) -> None:
    """So many requests, evenly."""
    loop = asyncio.get_running_loop()
    began = loop.time()

    async def one(number: int) -> None:
        await asyncio.sleep(began + number / rate - loop.time())
        await master.request()

    await asyncio.gather(*(one(number) for number in range(count)))


async def run(options: argparse.Namespace) -> None:
    """Both figures."""
    folder = await asyncio.to_thread(fetch_demo_model)
    command = (sys.executable, "-m", "bench.gateway_load.fake_worker", str(folder), str(options.step_s))
    worker = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert worker.stdout is not None
    master = Master(int(await worker.stdout.readline()))
    link = asyncio.create_task(master.link.run())
    await asyncio.wait_for(master.is_up.wait(), 60)
    await in_lanes(master, 200, options.lanes)
    for name, work in (
        (f"{options.lanes} at a time", in_lanes(master, options.requests, options.lanes)),
        (f"{options.rate:g} a second", at_rate(master, options.requests, options.rate)),
    ):
        cpu_s = time.process_time()
        await work
        print(f"{name:20} {1e6 * (time.process_time() - cpu_s) / options.requests:8.1f} us of CPU a request")
    link.cancel()
    worker.kill()
    await worker.wait()


def main() -> None:
    """Print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--lanes", type=int, default=8)
    parser.add_argument("--rate", type=float, default=100.0)
    parser.add_argument("--step-s", type=float, default=0.01, help="of the worker")
    uvloop.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
