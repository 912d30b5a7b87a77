"""What clients of the public gRPC service ask for, as domain types. `services.common.wire.gateway` reads them.

`None` means that the client said nothing and the gateway decides.
"""

import msgspec

from services.common.request import SamplingParams, StopParams, TextParams


class ChatTurn(msgspec.Struct, frozen=True):
    """One message of a conversation."""

    role: str
    content: str
    name: str = ""


class CallOptions(msgspec.Struct, frozen=True):
    """Limits and labels of a generation."""

    client_request_id: str = ""
    num_choices: int = 1
    priority: int = 0
    queue_budget_s: float | None = None
    deadline_s: float | None = None


class GenerationCall(msgspec.Struct, frozen=True):
    """A call of Generate or Chat."""

    model: str | None
    input: str | list[int] | list[ChatTurn]
    """Text, token ids, or a conversation (Chat); ids and turns are never empty."""
    sampling: SamplingParams
    seed: int | None
    stop: StopParams
    """`max_new_tokens` is 1 where the client gave none."""
    max_new_tokens: int | None
    text: TextParams
    options: CallOptions
    template_kwargs_json: str = ""


class CountCall(msgspec.Struct, frozen=True):
    """A call of CountTokens."""

    model: str | None
    input: str | list[ChatTurn]


class UsageReport(msgspec.Struct, frozen=True):
    """What a finished request took."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


class ModelCard(msgspec.Struct, frozen=True):
    """A served model."""

    name: str
    max_context_tokens: int
    vocab_size: int


class WorkerCard(msgspec.Struct, frozen=True):
    """A worker as a master sees it."""

    worker_id: str
    role: str
    model: str
    ready: bool
    draining: bool
    running_requests: int
    queued_requests: int
    demand_ratio: float
    admitted_peak_ratio: float = 0.0
    held_slots: int = 0
    num_slots: int = 0
