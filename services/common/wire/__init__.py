"""Protobuf to domain types and back: the only place that touches protobuf messages of the sessions.

A message that cannot be read raises `WireError`, which names the field; nothing is guessed.
"""

from services.common.wire.errors import WireError
from services.common.wire.generation import (
    delta_from_proto,
    delta_to_proto,
    request_from_proto,
    request_to_proto,
    stop_from_proto,
    stop_to_proto,
    text_from_proto,
    text_to_proto,
)
from services.common.wire.master import (
    master_message_from_proto,
    master_message_to_proto,
    master_messages_from_proto,
    master_messages_to_protos,
)
from services.common.wire.reservation import (
    decode_message_from_proto,
    decode_message_to_proto,
    prefill_message_from_proto,
    prefill_message_to_proto,
)
from services.common.wire.sampling import sampling_from_proto, sampling_to_proto
from services.common.wire.worker import (
    worker_message_from_proto,
    worker_message_to_proto,
    worker_messages_from_proto,
    worker_messages_to_protos,
)

__all__ = [
    "WireError",
    "decode_message_from_proto",
    "decode_message_to_proto",
    "delta_from_proto",
    "delta_to_proto",
    "master_message_from_proto",
    "master_message_to_proto",
    "master_messages_from_proto",
    "master_messages_to_protos",
    "prefill_message_from_proto",
    "prefill_message_to_proto",
    "request_from_proto",
    "request_to_proto",
    "sampling_from_proto",
    "sampling_to_proto",
    "stop_from_proto",
    "stop_to_proto",
    "text_from_proto",
    "text_to_proto",
    "worker_message_from_proto",
    "worker_message_to_proto",
    "worker_messages_from_proto",
    "worker_messages_to_protos",
]
