"""Prefill <-> decode: `ReservationServiceSessionRequest` and `...Response`."""

from services.common.peer_messages import (
    Cancel,
    DecodeHello,
    DecodeMessage,
    Denied,
    FirstToken,
    Granted,
    Handover,
    HandoverFailed,
    Held,
    JoinConfirmed,
    PrefillHello,
    PrefillMessage,
    Reserve,
    Revoked,
)
from services.common.wire.errors import WireError, enum_from_proto, require
from services.common.wire.generation import logprob_from_proto, logprob_to_proto, request_from_proto, request_to_proto
from services.common.wire.names import (
    REFUSAL_FROM_PROTO,
    REFUSAL_TO_PROTO,
    key_from_proto,
    key_to_proto,
    master_ref_from_proto,
    master_ref_to_proto,
    worker_ref_from_proto,
    worker_ref_to_proto,
)
from sluice.v1 import reservation_pb2 as pb


def prefill_message_to_proto(message: PrefillMessage) -> pb.ReservationServiceSessionRequest:
    """Inverse of `prefill_message_from_proto`."""
    match message:
        case Reserve():
            return pb.ReservationServiceSessionRequest(reserve=_reserve_to_proto(message))
        case Handover():
            return pb.ReservationServiceSessionRequest(handover=_handover_to_proto(message))
        case Cancel(key=key):
            return pb.ReservationServiceSessionRequest(cancel=pb.Cancel(key=key_to_proto(key)))
        case Held():
            return pb.ReservationServiceSessionRequest(held=_held_to_proto(message))
        case PrefillHello(protocol=protocol, worker=worker, group=group):
            hello = pb.PrefillHello(protocol=protocol, worker=worker_ref_to_proto(worker), group=group)
            return pb.ReservationServiceSessionRequest(hello=hello)


def prefill_message_from_proto(proto: pb.ReservationServiceSessionRequest) -> PrefillMessage:
    """WireError when no known kind is set or a part of it is missing."""
    match proto.WhichOneof("message"):
        case "reserve":
            return _reserve_from_proto(proto.reserve)
        case "handover":
            return _handover_from_proto(proto.handover)
        case "cancel":
            return Cancel(key_from_proto(proto.cancel.key))
        case "held":
            return _held_from_proto(proto.held)
        case "hello":
            return PrefillHello(proto.hello.protocol, worker_ref_from_proto(proto.hello.worker), proto.hello.group)
        case _:
            raise WireError("a reservation request of no known kind", param="message")


def decode_message_to_proto(  # noqa: PLR0911 - one return a kind
    message: DecodeMessage,
) -> pb.ReservationServiceSessionResponse:
    """Inverse of `decode_message_from_proto`."""
    response = pb.ReservationServiceSessionResponse
    match message:
        case Granted(key=key, cached_tokens=cached):
            return response(granted=pb.Granted(key=key_to_proto(key), cached_tokens=cached))
        case Denied(key=key, reason=reason, retry_after_s=after, message=text):
            denied = pb.Denied(
                key=key_to_proto(key), reason=REFUSAL_TO_PROTO[reason], retry_after_s=after, message=text
            )
            return response(denied=denied)
        case Revoked(key=key):
            return response(revoked=pb.Revoked(key=key_to_proto(key)))
        case JoinConfirmed(key=key):
            return response(joined=pb.JoinConfirmed(key=key_to_proto(key)))
        case HandoverFailed(key=key, reason=reason, message=text):
            failed = pb.HandoverFailed(key=key_to_proto(key), reason=REFUSAL_TO_PROTO[reason], message=text)
            return response(failed=failed)
        case Held():
            return response(held=_held_to_proto(message))
        case DecodeHello():
            return response(hello=_hello_to_proto(message))


def decode_message_from_proto(  # noqa: PLR0911 - one return a kind
    proto: pb.ReservationServiceSessionResponse,
) -> DecodeMessage:
    """WireError when no known kind is set or a part of it is missing."""
    match proto.WhichOneof("message"):
        case "granted":
            return Granted(key_from_proto(proto.granted.key), proto.granted.cached_tokens)
        case "denied":
            reason = enum_from_proto(REFUSAL_FROM_PROTO, proto.denied.reason, "denied.reason")
            after = proto.denied.retry_after_s if proto.denied.HasField("retry_after_s") else None
            return Denied(key_from_proto(proto.denied.key), reason, after, proto.denied.message)
        case "revoked":
            return Revoked(key_from_proto(proto.revoked.key))
        case "joined":
            return JoinConfirmed(key_from_proto(proto.joined.key))
        case "failed":
            reason = enum_from_proto(REFUSAL_FROM_PROTO, proto.failed.reason, "failed.reason")
            return HandoverFailed(key_from_proto(proto.failed.key), reason, proto.failed.message)
        case "held":
            return _held_from_proto(proto.held)
        case "hello":
            return _hello_from_proto(proto.hello)
        case _:
            raise WireError("a reservation response of no known kind", param="message")


def _reserve_to_proto(reserve: Reserve) -> pb.Reserve:
    return pb.Reserve(
        key=key_to_proto(reserve.key),
        master=master_ref_to_proto(reserve.master),
        request=request_to_proto(reserve.request),
        choices=reserve.choices,
        output_ids=reserve.output_ids,
        age_s=reserve.age_s,
    )


def _reserve_from_proto(proto: pb.Reserve) -> Reserve:
    require(len(proto.choices) > 0, "reserve.choices")
    return Reserve(
        key=key_from_proto(proto.key),
        master=master_ref_from_proto(proto.master),
        request=request_from_proto(proto.request),
        choices=tuple(proto.choices),
        output_ids=list(proto.output_ids),
        age_s=proto.age_s,
    )


def _handover_to_proto(handover: Handover) -> pb.Handover:
    first = [
        pb.FirstToken(
            choice=one.choice,
            token_id=one.token_id,
            logprob=None if one.logprob is None else logprob_to_proto(one.logprob),
        )
        for one in handover.first
    ]
    return pb.Handover(
        key=key_to_proto(handover.key),
        first=first,
        num_tokens=handover.num_tokens,
        cached_tokens=handover.cached_tokens,
    )


def _handover_from_proto(proto: pb.Handover) -> Handover:
    require(len(proto.first) > 0, "handover.first")
    first = [
        FirstToken(one.choice, one.token_id, logprob_from_proto(one.logprob) if one.HasField("logprob") else None)
        for one in proto.first
    ]
    return Handover(key_from_proto(proto.key), first, proto.num_tokens, proto.cached_tokens)


def _held_to_proto(held: Held) -> pb.HeldAttempts:
    return pb.HeldAttempts(keys=[key_to_proto(key) for key in held.keys])


def _held_from_proto(proto: pb.HeldAttempts) -> Held:
    return Held([key_from_proto(key) for key in proto.keys])


def _hello_to_proto(hello: DecodeHello) -> pb.DecodeHello:
    return pb.DecodeHello(
        protocol=hello.protocol,
        worker=worker_ref_to_proto(hello.worker),
        group=hello.group,
        transfer_host=hello.transfer_host,
        transfer_ports=hello.transfer_ports,
    )


def _hello_from_proto(proto: pb.DecodeHello) -> DecodeHello:
    return DecodeHello(
        proto.protocol,
        worker_ref_from_proto(proto.worker),
        proto.group,
        proto.transfer_host,
        tuple(proto.transfer_ports),
    )
