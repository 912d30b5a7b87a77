"""The decode role: `DecodeReservations` with sessions from prefill workers around it."""

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
    return Parts(core, peers, close=peers.close)
