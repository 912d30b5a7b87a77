"""The decode role: `DecodeReservations` with sessions from prefill workers around it."""

from prometheus_client import Counter

from services.common import ipc
from services.common.messages import PROTOCOL
from services.common.peer_messages import DecodeHello
from services.decode.peers import PrefillPeers
from services.decode.reservation_edge import ReservationServicer
from services.decode.reservations import DecodeReservations
from services.worker.parts import Context, Parts
from sluice.v1 import reservation_pb2_grpc


def build(context: Context) -> Parts:
    """Make the role's parts; `services.worker.app` calls it once the engine is ready."""
    core = DecodeReservations(context.open_log, context.new_id, context.ready.eos_token_ids, context.times)
    host, ports = context.identity.host, context.ready.transfer_ports
    peers = PrefillPeers(DecodeHello(PROTOCOL, context.ref, context.group, host, ports), core, context.service)
    reservation_pb2_grpc.add_ReservationServiceServicer_to_server(ReservationServicer(peers), context.server)
    assert context.metrics.decode is not None
    leases = _LeaseCount(core, context.metrics.decode.leases_expired)
    return Parts(core, peers, leases.on_engine_event, peers.close)


class _LeaseCount:
    """Feeds the counter of expired leases from the core's own count, whenever the engine says something."""

    def __init__(self, core: DecodeReservations, counter: Counter) -> None:
        self._core = core
        self._counter = counter
        self._told = 0

    def on_engine_event(self, _: ipc.Event) -> None:
        if self._core.num_leases_expired > self._told:
            self._counter.inc(self._core.num_leases_expired - self._told)
            self._told = self._core.num_leases_expired
