"""What a role adds to a worker: its protocol core and its way to other workers."""

from collections.abc import Callable
from dataclasses import dataclass

import grpc.aio

from services.common import ipc, rpc
from services.common.ipc import EngineReady
from services.common.messages import WorkerRef
from services.common.metrics import WorkerMetrics
from services.worker.engine_client import EngineClient
from services.worker.identity import WorkerIdentity
from services.worker.protocol.attempt import OpenLog
from services.worker.protocol.times import Times
from services.worker.service import Core, PeerPort, WorkerService


@dataclass(frozen=True, slots=True)
class Context:
    """What is known once the engine is ready."""

    identity: WorkerIdentity
    group: str
    ready: EngineReady
    engine: EngineClient
    service: WorkerService
    metrics: WorkerMetrics
    server: grpc.aio.Server
    """Not started yet: a role may add its services."""
    open_log: OpenLog
    new_id: Callable[[], int]
    times: Times
    dial: rpc.Dial
    """To other workers."""

    @property
    def ref(self) -> WorkerRef:
        """This start of this worker."""
        return self.identity.ref


def _ignore(_: ipc.Event) -> None:
    return None


def _nothing() -> None:
    return None


@dataclass(frozen=True, slots=True)
class Parts:
    """What a role gives back."""

    core: Core
    peers: PeerPort
    on_engine_event: Callable[[ipc.Event], None] = _ignore
    """Every event of the engine, after the jobs have had it."""
    close: Callable[[], None] = _nothing
    """End what the role keeps open."""


BuildRole = Callable[[Context], Parts]
