"""Keys, references and enums that all sessions share."""

import re

from services.common.ipc import AttemptKey
from services.common.messages import FailureCause, LiveAttempt, MasterRef, Peer, RefusalReason, Role, WorkerRef
from services.common.wire.errors import WireError, require
from sluice.v1 import worker_pb2

_ID = re.compile("[0-9a-f]{32}")
_REFUSALS = {reason: worker_pb2.RefusalReason.Value(f"REFUSAL_REASON_{reason.name}") for reason in RefusalReason}
_CAUSES = {cause: worker_pb2.FailureCause.Value(f"FAILURE_CAUSE_{cause.name}") for cause in FailureCause}
_ROLES = {role: worker_pb2.WorkerRole.Value(f"WORKER_ROLE_{role.name}") for role in Role}

REFUSAL_TO_PROTO = _REFUSALS
CAUSE_TO_PROTO = _CAUSES
ROLE_TO_PROTO = _ROLES
REFUSAL_FROM_PROTO = {int(number): reason for reason, number in _REFUSALS.items()}
CAUSE_FROM_PROTO = {int(number): cause for cause, number in _CAUSES.items()}
ROLE_FROM_PROTO = {int(number): role for role, number in _ROLES.items()}


def key_to_proto(key: AttemptKey) -> worker_pb2.AttemptKey:
    """Inverse of `key_from_proto`."""
    return worker_pb2.AttemptKey(request_id=key.request_id, attempt=key.attempt)


def key_from_proto(proto: worker_pb2.AttemptKey) -> AttemptKey:
    """WireError when a part is missing or no id: attempts count from 1, and payloads carry an id's 16 bytes."""
    if not _ID.fullmatch(proto.request_id):
        raise WireError(f"key.request_id is not 32 hexadecimal digits: {proto.request_id!r}", param="key.request_id")
    require(proto.attempt > 0, "key.attempt")
    return AttemptKey(proto.request_id, proto.attempt)


def worker_ref_to_proto(ref: WorkerRef) -> worker_pb2.WorkerRef:
    """Inverse of `worker_ref_from_proto`."""
    return worker_pb2.WorkerRef(worker_id=ref.worker_id, incarnation=ref.incarnation)


def worker_ref_from_proto(proto: worker_pb2.WorkerRef) -> WorkerRef:
    """WireError when a part is missing."""
    require(bool(proto.worker_id), "worker.worker_id")
    require(bool(proto.incarnation), "worker.incarnation")
    return WorkerRef(proto.worker_id, proto.incarnation)


def master_ref_to_proto(ref: MasterRef) -> worker_pb2.MasterRef:
    """Inverse of `master_ref_from_proto`."""
    return worker_pb2.MasterRef(master_id=ref.master_id, incarnation=ref.incarnation)


def master_ref_from_proto(proto: worker_pb2.MasterRef) -> MasterRef:
    """WireError when a part is missing."""
    require(bool(proto.master_id), "master.master_id")
    require(bool(proto.incarnation), "master.incarnation")
    return MasterRef(proto.master_id, proto.incarnation)


def peer_to_proto(peer: Peer) -> worker_pb2.Peer:
    """Inverse of `peer_from_proto`."""
    return worker_pb2.Peer(worker=worker_ref_to_proto(peer.worker), address=peer.address)


def peer_from_proto(proto: worker_pb2.Peer) -> Peer:
    """WireError when a part is missing."""
    require(bool(proto.address), "peer.address")
    return Peer(worker_ref_from_proto(proto.worker), proto.address)


def live_to_proto(live: LiveAttempt) -> worker_pb2.LiveAttempt:
    """Inverse of `live_from_proto`."""
    return worker_pb2.LiveAttempt(key=key_to_proto(live.key), next_index=live.next_index)


def live_from_proto(proto: worker_pb2.LiveAttempt) -> LiveAttempt:
    """An attempt and how far its output has come."""
    return LiveAttempt(key_from_proto(proto.key), dict(proto.next_index))
