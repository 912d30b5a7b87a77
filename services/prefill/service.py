"""The prefill role: `PrefillHandoff` with sessions and transfers to decode workers around it."""

from services.prefill.handoff import PrefillHandoff
from services.prefill.observe import ReservationTimes
from services.prefill.peers import DecodePeers
from services.worker.parts import Context, Parts


def build(context: Context) -> Parts:
    """Make the role's parts; `services.worker.app` calls it once the engine is ready."""
    metrics = context.metrics
    assert metrics.transfer is not None
    assert metrics.prefill is not None
    core = PrefillHandoff(context.open_log, context.new_id, context.ready.eos_token_ids, context.times)
    times = ReservationTimes(metrics.prefill)
    peers = DecodePeers(context, core, metrics.transfer, times)
    return Parts(core, peers, peers.on_engine_event, peers.close)
