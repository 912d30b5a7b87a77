"""What the master's protocol core asks of the dispatcher around it, in order."""

from typing import TypeAlias

import msgspec

from services.common.errors import SluiceError
from services.common.messages import MasterMessage, WorkerRef
from services.common.prompt_logprobs import PromptLogprobs
from services.common.request import Delta


class Send(msgspec.Struct, frozen=True):
    """Say something to a worker; dropped without a session to exactly this start of it."""

    worker: WorkerRef
    message: MasterMessage


class Deliver(msgspec.Struct, frozen=True, gc=False):
    """New output for the client: the next tokens of one choice."""

    request_id: str
    delta: Delta


class Cached(msgspec.Struct, frozen=True):
    """The prefill worker's figure for usage; said once."""

    request_id: str
    num_tokens: int


class Scored(msgspec.Struct, frozen=True):
    """The prompt's log-probabilities; said once, before any output."""

    request_id: str
    logprobs: PromptLogprobs


class End(msgspec.Struct, frozen=True):
    """The request is over: all choices have been delivered, or `error` says why not. The last word on it."""

    request_id: str
    error: SluiceError | None = None


Effect: TypeAlias = Send | Deliver | Cached | Scored | End
