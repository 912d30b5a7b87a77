"""The role `mixed`: both halves of a request in one pool, with no other worker."""

from services.worker.parts import Context, Parts
from services.worker.protocol.local import LocalAttempts
from services.worker.service import NoPeers


def build(context: Context) -> Parts:
    """Make the role's parts; `services.worker.app` calls it once the engine is ready."""
    return Parts(LocalAttempts(context.open_log, context.new_id, context.ready.eos_token_ids, context.times), NoPeers())
