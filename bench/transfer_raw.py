"""Tagged sends and receives by UCXX's synchronous API in a busy loop: the ceiling `bench.transfer` compares with."""

from __future__ import annotations

import itertools
import time
from multiprocessing.connection import Connection
from typing import Any

import ucxx._lib.libucxx as ucx
from ucxx._lib.arr import Array

from services.engine.transfer.fabric import UCX_DEFAULTS, unless_in_environment
from services.engine.transfer.page_memory import Buffer

_TAG = ucx.UCXXTag(7)


def make_worker() -> Any:  # noqa: ANN401 # UCXX carries no types
    """With the transfer's settings."""
    context = ucx.UCXContext(
        unless_in_environment(UCX_DEFAULTS), (ucx.Feature.TAG, ucx.Feature.WAKEUP, ucx.Feature.STREAM)
    )
    return ucx.UCXWorker(context, enable_delayed_submission=False, enable_python_future=False)


class RawReceiver:
    """Listens for RawSenders, and answers the newest."""

    def __init__(self) -> None:
        self._worker = make_worker()
        self._endpoints: list[Any] = []
        self._listener = ucx.UCXListener.create(self._worker, 0, self._endpoints.append, deliver_endpoint=True)
        self.port = int(self._listener.port)

    def receive(self, buffers: list[Buffer], depth: int, num_messages: int, pipe: Connection) -> None:
        """Take `num_messages` into one buffer after the other, `depth` receives posted at a time; says on `pipe` when
        the first are."""
        arrays = itertools.cycle([Array(buffer) for buffer in buffers])
        posted = [self._worker.tag_recv(next(arrays), _TAG) for _ in range(depth)]
        pipe.send("posted")
        left_to_post = num_messages - depth
        finished = 0
        while finished < num_messages:
            self._worker.progress()
            for index, request in enumerate(posted):
                if request is None or not request.completed:
                    continue
                request.check_error()
                finished += 1
                posted[index] = self._worker.tag_recv(next(arrays), _TAG) if left_to_post > 0 else None
                left_to_post -= 1
        acknowledged = self._endpoints[-1].tag_send(Array(bytes(8)), _TAG)
        while not acknowledged.completed:
            self._worker.progress()


class RawSender:
    """Connects to a RawReceiver."""

    def __init__(self, host: str, port: int) -> None:
        self._worker = make_worker()
        self._endpoint = ucx.UCXEndpoint.create(self._worker, host, port, True)

    def send(self, buffers: list[Buffer], depth: int, num_messages: int) -> float:
        """Send `num_messages` from one buffer after the other, `depth` at a time; returns seconds until the receiver
        has them all."""
        arrays = itertools.cycle([Array(buffer) for buffer in buffers])
        acknowledgement = Array(bytearray(8))
        acknowledged = self._worker.tag_recv(acknowledgement, _TAG)
        started = time.perf_counter()
        flying: list[Any] = [None] * depth
        left = num_messages
        while not acknowledged.completed:
            for index, request in enumerate(flying):
                if left and (request is None or request.completed):
                    flying[index] = self._endpoint.tag_send(next(arrays), _TAG)
                    left -= 1
            self._worker.progress()
        return time.perf_counter() - started
