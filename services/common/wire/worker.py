"""Worker -> master: `WorkerServiceSessionResponse`."""

from collections.abc import Iterator, Sequence

from services.common.messages import (
    CacheChanges,
    Deltas,
    Heartbeat,
    Limits,
    Load,
    ProvenPair,
    WorkerHello,
    WorkerMessage,
)
from services.common.wire.attempt_event import event_from_proto, event_to_proto
from services.common.wire.batches import in_groups
from services.common.wire.errors import WireError, enum_from_proto
from services.common.wire.frame import frame_from_proto, frame_to_proto
from services.common.wire.names import (
    ROLE_FROM_PROTO,
    ROLE_TO_PROTO,
    key_from_proto,
    key_to_proto,
    worker_ref_from_proto,
    worker_ref_to_proto,
)
from sluice.v1 import worker_pb2 as pb


def worker_messages_to_protos(
    messages: Sequence[WorkerMessage], *, in_batches: bool
) -> Iterator[pb.WorkerServiceSessionResponse]:
    """In their order; `in_batches`: as few as hold them all."""
    protos = map(worker_message_to_proto, messages)
    if len(messages) == 1 or not in_batches:
        yield from protos
        return
    for group in in_groups(protos):
        yield pb.WorkerServiceSessionResponse(batch=pb.SessionResponseBatch(messages=group))


def worker_messages_from_proto(proto: pb.WorkerServiceSessionResponse) -> list[WorkerMessage]:
    """What one message on the wire says. WireError as `worker_message_from_proto`."""
    if proto.WhichOneof("message") == "batch":
        return [worker_message_from_proto(one) for one in proto.batch.messages]
    return [worker_message_from_proto(proto)]


def worker_message_to_proto(message: WorkerMessage) -> pb.WorkerServiceSessionResponse:
    """Inverse of `worker_message_from_proto`."""
    match message:
        case Deltas():
            return pb.WorkerServiceSessionResponse(deltas=frame_to_proto(message))
        case Heartbeat():
            return pb.WorkerServiceSessionResponse(heartbeat=_heartbeat_to_proto(message))
        case CacheChanges(generation=generation, number=number, stored=stored, evicted=evicted):
            cache = pb.CacheAccount(generation=generation, number=number, stored=stored, evicted=evicted)
            return pb.WorkerServiceSessionResponse(cache=cache)
        case WorkerHello():
            return pb.WorkerServiceSessionResponse(hello=_hello_to_proto(message))
        case _:
            return pb.WorkerServiceSessionResponse(event=event_to_proto(message))


def worker_message_from_proto(proto: pb.WorkerServiceSessionResponse) -> WorkerMessage:
    """WireError when no known kind is set or a part of it is missing."""
    match proto.WhichOneof("message"):
        case "deltas":
            return frame_from_proto(proto.deltas)
        case "event":
            return event_from_proto(proto.event)
        case "heartbeat":
            return _heartbeat_from_proto(proto.heartbeat)
        case "cache":
            cache = proto.cache
            return CacheChanges(cache.generation, cache.number, list(cache.stored), list(cache.evicted))
        case "hello":
            return _hello_from_proto(proto.hello)
        case _:
            raise WireError("a session response of no known kind", param="message")


def _hello_to_proto(hello: WorkerHello) -> pb.WorkerHello:
    limits = hello.limits
    return pb.WorkerHello(
        protocol=hello.protocol,
        worker=worker_ref_to_proto(hello.worker),
        role=ROLE_TO_PROTO[hello.role],
        group=hello.group,
        model=hello.model,
        address=hello.address,
        limits=pb.WorkerLimits(
            num_slots=limits.num_slots,
            max_running_requests=limits.max_running_requests,
            max_context_tokens=limits.max_context_tokens,
            vocab_size=limits.vocab_size,
            eos_token_ids=limits.eos_token_ids,
            chunk_tokens=limits.chunk_tokens,
            kv_bytes_per_token=limits.kv_bytes_per_token,
        ),
        reads_batches=hello.reads_batches,
    )


def _hello_from_proto(proto: pb.WorkerHello) -> WorkerHello:
    limits = proto.limits
    return WorkerHello(
        protocol=proto.protocol,
        worker=worker_ref_from_proto(proto.worker),
        role=enum_from_proto(ROLE_FROM_PROTO, proto.role, "hello.role"),
        group=proto.group,
        model=proto.model,
        address=proto.address,
        limits=Limits(
            num_slots=limits.num_slots,
            max_running_requests=limits.max_running_requests,
            max_context_tokens=limits.max_context_tokens,
            vocab_size=limits.vocab_size,
            eos_token_ids=tuple(limits.eos_token_ids),
            chunk_tokens=limits.chunk_tokens,
            kv_bytes_per_token=limits.kv_bytes_per_token,
        ),
        reads_batches=proto.reads_batches,
    )


def _heartbeat_to_proto(heartbeat: Heartbeat) -> pb.WorkerHeartbeat:
    proven = [
        pb.ProvenPair(worker=worker_ref_to_proto(pair.worker), lane=pair.lane, gb_per_s=pair.gb_per_s)
        for pair in heartbeat.proven
    ]
    return pb.WorkerHeartbeat(
        load=_load_to_proto(heartbeat.load),
        engine_age_s=heartbeat.engine_age_s,
        ready=heartbeat.ready,
        draining=heartbeat.draining,
        proven=proven,
        held=[key_to_proto(key) for key in heartbeat.held],
        drain_left_s=heartbeat.drain_left_s,
    )


def _heartbeat_from_proto(proto: pb.WorkerHeartbeat) -> Heartbeat:
    proven = [ProvenPair(worker_ref_from_proto(pair.worker), pair.lane, pair.gb_per_s) for pair in proto.proven]
    held = [key_from_proto(key) for key in proto.held]
    load = _load_from_proto(proto.load)
    return Heartbeat(load, proto.engine_age_s, proto.ready, proto.draining, proven, held, proto.drain_left_s)


def _load_to_proto(load: Load) -> pb.WorkerLoad:
    return pb.WorkerLoad(**{name: getattr(load, name) for name in Load.__struct_fields__})


def _load_from_proto(proto: pb.WorkerLoad) -> Load:
    return Load(**{name: getattr(proto, name) for name in Load.__struct_fields__})
