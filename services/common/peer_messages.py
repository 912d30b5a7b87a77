"""What a prefill and a decode worker say to each other on a `ReservationService.Session`, as domain types.

One session per pair, opened by the prefill worker; in order inside one session, lost at its break, as with masters
(`messages`). The KV itself goes another way, engine to engine.

    prefill                       decode
      Reserve  ------------------>          slots asked for, queued by the request's age
               <------------------ Granted | Denied
      (engine pushes KV)
      Handover ------------------>          all tokens are announced
               <------------------ JoinConfirmed | HandoverFailed
      Cancel   ------------------>          at any time; ends all but a joined attempt
               <------------------ Revoked  at any time before the first byte
      Held     <----------------->          each second, both ways (R8)
"""

from typing import TypeAlias

import msgspec

from services.common.ipc import AttemptKey
from services.common.messages import MasterRef, RefusalReason, WorkerRef
from services.common.request import Request, TokenLogprob


class PrefillHello(msgspec.Struct, frozen=True):
    """First on every session, from the prefill worker."""

    protocol: int
    worker: WorkerRef
    group: str


class Reserve(msgspec.Struct, frozen=True):
    """Ask for slots for the prompt and the output so far. Idempotent; at most one is unanswered per attempt (R5)."""

    key: AttemptKey
    master: MasterRef
    request: Request
    choices: tuple[int, ...]
    output_ids: list[int]
    age_s: float
    """Since the master accepted the request."""


class FirstToken(msgspec.Struct, frozen=True):
    """What the prefill worker sampled for one choice that goes on."""

    choice: int
    token_id: int
    logprob: TokenLogprob | None = None


class Handover(msgspec.Struct, frozen=True):
    """Compute is done: decode these choices once the KV of `num_tokens` tokens is there. Idempotent."""

    key: AttemptKey
    first: list[FirstToken]
    """At output position `len(output_ids)` of the Reserve; at least one."""
    num_tokens: int
    """Prompt plus output so far: must equal what was reserved."""
    cached_tokens: int
    """The prefill worker's prefix hit, for usage."""


class Cancel(msgspec.Struct, frozen=True):
    """Give the reservation back. Unknown attempts leave a tombstone; a joined attempt stays (its master ends it)."""

    key: AttemptKey


class Held(msgspec.Struct, frozen=True):
    """What the sender believes in for this pair. What the other holds beyond it twice in a row, it gives back."""

    keys: list[AttemptKey]


class DecodeHello(msgspec.Struct, frozen=True):
    """The decode worker's answer to a hello."""

    protocol: int
    worker: WorkerRef
    group: str
    transfer_host: str
    transfer_ports: tuple[int, ...]
    """One KV listener per rank."""


class Granted(msgspec.Struct, frozen=True):
    """Slots are promised."""

    key: AttemptKey
    cached_tokens: int
    """Leading tokens whose KV the decode worker already holds: push only the rest."""


class Denied(msgspec.Struct, frozen=True):
    """A definite refusal: nothing is held for this attempt and never will be."""

    key: AttemptKey
    reason: RefusalReason
    retry_after_s: float | None = None
    message: str = ""


class Revoked(msgspec.Struct, frozen=True):
    """A grant taken back to find slots, before any byte arrived (R18)."""

    key: AttemptKey


class JoinConfirmed(msgspec.Struct, frozen=True):
    """The KV is there, verified and decoding: the prefill worker may free its own."""

    key: AttemptKey


class HandoverFailed(msgspec.Struct, frozen=True):
    """The reservation is gone after its grant: transfer failed, lease ran out, master ended it, token counts differ."""

    key: AttemptKey
    reason: RefusalReason
    message: str = ""


PrefillMessage: TypeAlias = PrefillHello | Reserve | Handover | Cancel | Held
DecodeMessage: TypeAlias = DecodeHello | Granted | Denied | Revoked | JoinConfirmed | HandoverFailed | Held
