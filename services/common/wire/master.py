"""Master -> worker: `WorkerServiceSessionRequest`."""

from collections.abc import Iterator, Sequence

from services.common.messages import Abort, CacheWanted, MasterHello, MasterMessage, Peers, Reconcile, Redirect, Submit
from services.common.wire.batches import in_groups
from services.common.wire.errors import WireError, require
from services.common.wire.generation import request_from_proto, request_to_proto
from services.common.wire.names import (
    key_from_proto,
    key_to_proto,
    live_from_proto,
    live_to_proto,
    master_ref_from_proto,
    master_ref_to_proto,
    peer_from_proto,
    peer_to_proto,
)
from sluice.v1 import worker_pb2 as pb


def master_messages_to_protos(
    messages: Sequence[MasterMessage], *, in_batches: bool
) -> Iterator[pb.WorkerServiceSessionRequest]:
    """In their order; `in_batches`: as few as hold them all."""
    protos = map(master_message_to_proto, messages)
    if len(messages) == 1 or not in_batches:
        yield from protos
        return
    for group in in_groups(protos):
        yield pb.WorkerServiceSessionRequest(batch=pb.SessionRequestBatch(messages=group))


def master_messages_from_proto(proto: pb.WorkerServiceSessionRequest) -> list[MasterMessage]:
    """What one message on the wire says. WireError as `master_message_from_proto`."""
    if proto.WhichOneof("message") == "batch":
        return [master_message_from_proto(one) for one in proto.batch.messages]
    return [master_message_from_proto(proto)]


def master_message_to_proto(message: MasterMessage) -> pb.WorkerServiceSessionRequest:
    """Inverse of `master_message_from_proto`."""
    match message:
        case Peers(peers=peers):
            return pb.WorkerServiceSessionRequest(peers=pb.PeerList(peers=[peer_to_proto(peer) for peer in peers]))
        case CacheWanted():
            return pb.WorkerServiceSessionRequest(cache_wanted=pb.CacheAccountWanted())
        case MasterHello():
            return pb.WorkerServiceSessionRequest(hello=_hello_to_proto(message))
        case _:
            return _attempts_to_proto(message)


def _hello_to_proto(hello: MasterHello) -> pb.MasterHello:
    return pb.MasterHello(
        protocol=hello.protocol,
        master=master_ref_to_proto(hello.master),
        live=[live_to_proto(one) for one in hello.live],
        reads_columns=hello.reads_columns,
        reads_batches=hello.reads_batches,
    )


def _attempts_to_proto(message: Submit | Abort | Redirect | Reconcile) -> pb.WorkerServiceSessionRequest:
    match message:
        case Submit():
            return pb.WorkerServiceSessionRequest(submit=_submit_to_proto(message))
        case Abort(keys=keys):
            return pb.WorkerServiceSessionRequest(abort=pb.AbortAttempts(keys=[key_to_proto(key) for key in keys]))
        case Redirect(key=key, new_attempt=attempt, decode=peer):
            redirect = pb.RedirectAttempt(key=key_to_proto(key), new_attempt=attempt, decode=peer_to_proto(peer))
            return pb.WorkerServiceSessionRequest(redirect=redirect)
        case Reconcile(live=live):
            reconcile = pb.ReconcileAttempts(live=[live_to_proto(one) for one in live])
            return pb.WorkerServiceSessionRequest(reconcile=reconcile)


def master_message_from_proto(proto: pb.WorkerServiceSessionRequest) -> MasterMessage:
    """WireError when no known kind is set or a part of it is missing."""
    match proto.WhichOneof("message"):
        case "peers":
            return Peers([peer_from_proto(peer) for peer in proto.peers.peers])
        case "cache_wanted":
            return CacheWanted()
        case "hello":
            hello = proto.hello
            live = [live_from_proto(one) for one in hello.live]
            master = master_ref_from_proto(hello.master)
            return MasterHello(hello.protocol, master, live, hello.reads_columns, hello.reads_batches)
        case _:
            return _attempts_from_proto(proto)


def _attempts_from_proto(proto: pb.WorkerServiceSessionRequest) -> Submit | Abort | Redirect | Reconcile:
    match proto.WhichOneof("message"):
        case "submit":
            return _submit_from_proto(proto.submit)
        case "abort":
            return Abort([key_from_proto(key) for key in proto.abort.keys])
        case "redirect":
            redirect = proto.redirect
            require(redirect.new_attempt > redirect.key.attempt, "redirect.new_attempt")
            return Redirect(key_from_proto(redirect.key), redirect.new_attempt, peer_from_proto(redirect.decode))
        case "reconcile":
            return Reconcile([live_from_proto(one) for one in proto.reconcile.live])
        case _:
            raise WireError("a session request of no known kind", param="message")


def _submit_to_proto(submit: Submit) -> pb.SubmitAttempt:
    return pb.SubmitAttempt(
        key=key_to_proto(submit.key),
        request=request_to_proto(submit.request),
        choices=submit.choices,
        output_ids=submit.output_ids,
        decode=None if submit.decode is None else peer_to_proto(submit.decode),
        age_s=submit.age_s,
        score_prompt=submit.score_prompt,
    )


def _submit_from_proto(proto: pb.SubmitAttempt) -> Submit:
    require(len(proto.choices) > 0, "submit.choices")
    return Submit(
        key=key_from_proto(proto.key),
        request=request_from_proto(proto.request),
        choices=tuple(proto.choices),
        output_ids=list(proto.output_ids),
        decode=peer_from_proto(proto.decode) if proto.HasField("decode") else None,
        age_s=proto.age_s,
        score_prompt=proto.score_prompt,
    )
