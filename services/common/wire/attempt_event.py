"""What became of an attempt: `AttemptEvent`."""

from services.common.messages import (
    AttemptEvent,
    Failed,
    Joined,
    Placed,
    PlacementRefused,
    Preempted,
    Prefilling,
    PromptScored,
    Queued,
    Refused,
)
from services.common.wire.errors import WireError, enum_from_proto
from services.common.wire.generation import prompt_logprobs_from_proto, prompt_logprobs_to_proto
from services.common.wire.names import (
    CAUSE_FROM_PROTO,
    CAUSE_TO_PROTO,
    REFUSAL_FROM_PROTO,
    REFUSAL_TO_PROTO,
    key_from_proto,
    key_to_proto,
    worker_ref_from_proto,
    worker_ref_to_proto,
)
from sluice.v1 import worker_pb2 as pb


def event_to_proto(event: AttemptEvent) -> pb.AttemptEvent:
    """Inverse of `event_from_proto`."""
    proto = pb.AttemptEvent(key=key_to_proto(event.key))
    match event:
        case Queued():
            proto.queued.SetInParent()
        case Prefilling(cached_tokens=cached):
            proto.prefilling.CopyFrom(pb.AttemptPrefilling(cached_tokens=cached))
        case Placed(decode=decode):
            proto.placed.CopyFrom(pb.AttemptPlaced(decode=worker_ref_to_proto(decode)))
        case Joined(choices=choices, cached_tokens=cached):
            proto.joined.CopyFrom(pb.AttemptJoined(choices=choices, cached_tokens=cached))
        case PromptScored(logprobs=logprobs):
            proto.prompt_scored.CopyFrom(pb.AttemptPromptScored(logprobs=prompt_logprobs_to_proto(logprobs)))
        case Preempted(choice=choice):
            proto.preempted.CopyFrom(pb.AttemptPreempted(choice=choice))
        case Failed(cause=cause, message=text):
            proto.failed.CopyFrom(pb.AttemptFailed(cause=CAUSE_TO_PROTO[cause], message=text))
        case Refused(reason=reason, retry_after_s=after, message=text):
            refused = pb.AttemptRefused(reason=REFUSAL_TO_PROTO[reason], retry_after_s=after, message=text)
            proto.refused.CopyFrom(refused)
        case PlacementRefused(reason=reason, retry_after_s=after, message=text):
            placement = pb.AttemptPlacementRefused(reason=REFUSAL_TO_PROTO[reason], retry_after_s=after, message=text)
            proto.placement_refused.CopyFrom(placement)
    return proto


def event_from_proto(proto: pb.AttemptEvent) -> AttemptEvent:  # noqa: PLR0911 - one return a kind
    """WireError when no known kind is set or a part of it is missing."""
    key = key_from_proto(proto.key)
    match proto.WhichOneof("event"):
        case "queued":
            return Queued(key)
        case "prefilling":
            return Prefilling(key, proto.prefilling.cached_tokens)
        case "placed":
            return Placed(key, worker_ref_from_proto(proto.placed.decode))
        case "joined":
            return Joined(key, tuple(proto.joined.choices), proto.joined.cached_tokens)
        case "prompt_scored":
            return PromptScored(key, prompt_logprobs_from_proto(proto.prompt_scored.logprobs))
        case "preempted":
            return Preempted(key, proto.preempted.choice)
        case "failed":
            cause = enum_from_proto(CAUSE_FROM_PROTO, proto.failed.cause, "failed.cause")
            return Failed(key, cause, proto.failed.message)
        case "refused" | "placement_refused" as which:
            return _refusal_from_proto(proto, which)
        case _:
            raise WireError("an attempt event of no known kind", param="event")


def _refusal_from_proto(proto: pb.AttemptEvent, which: str) -> Refused | PlacementRefused:
    refusal = proto.refused if which == "refused" else proto.placement_refused
    reason = enum_from_proto(REFUSAL_FROM_PROTO, refusal.reason, f"{which}.reason")
    after = refusal.retry_after_s if refusal.HasField("retry_after_s") else None
    kind = Refused if which == "refused" else PlacementRefused
    return kind(key_from_proto(proto.key), reason, after, refusal.message)
