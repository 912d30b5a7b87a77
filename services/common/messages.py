"""What masters and workers say to each other on a `WorkerService.Session`, as domain types.

A session is one long-lived stream that a master opens to each worker. Inside one session messages arrive in order and
once; when it breaks, what was under way in either direction is lost, and the next session begins with the two hellos,
from which both sides resume (R7). All times are durations: clocks of two machines are never compared (R8).

`services.common.wire` turns these into protobuf and back. Between a prefill and a decode worker: `peer_messages`.
"""

import enum
from typing import TypeAlias

import msgspec

from services.common.ipc import AttemptKey
from services.common.prompt_logprobs import PromptLogprobs
from services.common.request import Delta, Request

PROTOCOL = 2
"""Raised on every incompatible change of the sessions; a hello of another number ends the session."""


class Role(enum.Enum):
    """Which halves of a request a worker takes."""

    PREFILL = "prefill"
    DECODE = "decode"
    MIXED = "mixed"
    """Both, in one pool, with no transfer."""


class RefusalReason(enum.Enum):
    """Why a worker does not take an attempt, or a decode worker not its second half. Nothing of it is left behind."""

    QUEUE_FULL = "queue_full"
    TOO_LARGE = "too_large"
    """It could not be admitted even when the worker is idle (R20)."""
    DRAINING = "draining"
    NOT_READY = "not_ready"
    STALE = "stale"
    """At or below a tombstone, or below an attempt that is known (R5)."""
    NO_MASTER = "no_master"
    """No live session to the master incarnation that the reservation names (R5)."""
    NO_PEER = "no_peer"
    """No session between the two workers, or the peer has another incarnation."""
    WRONG_GROUP = "wrong_group"
    REVOKED = "revoked"
    """Granted, then taken back before any byte arrived, to find slots (R18)."""
    TRANSFER = "transfer"
    """The KV could not be moved to this decode worker."""
    MISMATCH = "mismatch"
    """The two sides disagree on the number of tokens."""
    INVALID = "invalid"
    """The request itself cannot be carried out by anybody: its grammar does not compile."""


class FailureCause(enum.Enum):
    """Why a worker gave up an attempt that it had taken. The master may start another one (R12)."""

    ENGINE = "engine"
    UNKNOWN_ATTEMPT = "unknown_attempt"
    """The worker does not know an attempt that the master named."""
    LEASE_EXPIRED = "lease_expired"
    PEER_LOST = "peer_lost"
    TRANSFER = "transfer"
    SUPERSEDED = "superseded"
    DRAINING = "draining"


class MasterRef(msgspec.Struct, frozen=True):
    """One start of one master."""

    master_id: str
    incarnation: str


class WorkerRef(msgspec.Struct, frozen=True):
    """One start of one worker."""

    worker_id: str
    incarnation: str


class Peer(msgspec.Struct, frozen=True):
    """A decode worker as a prefill worker is told of it."""

    worker: WorkerRef
    address: str
    """host:port of its ReservationService."""


class LiveAttempt(msgspec.Struct, frozen=True):
    """An attempt that the master believes in, and how far it has the output."""

    key: AttemptKey
    next_index: dict[int, int]
    """Unfinished choice -> output position of the first token that the master lacks."""


# ----------------------------------------------------------------------------------------------------- master -> worker


class MasterHello(msgspec.Struct, frozen=True):
    """First on every session: the worker resends from `live`, ends what is not in it, reports what it does not know."""

    protocol: int
    master: MasterRef
    live: list[LiveAttempt]
    reads_columns: bool = False
    """It takes `Deltas` in columns; masters of before these do not say so."""
    reads_batches: bool = False
    """It takes several messages as one; so too in the worker's hello."""


class Submit(msgspec.Struct, frozen=True):
    """A new attempt. Repeating it is harmless: an attempt that is known or stale is not taken twice."""

    key: AttemptKey
    """`key.request_id` names the sequence group on the wire: the request's id, or one of its own for a choice that goes
    on alone after a retry (R11), so that attempt numbers of one name always rise."""
    request: Request
    choices: tuple[int, ...]
    output_ids: list[int]
    """Tokens the client's stream has already; empty unless `choices` is one."""
    decode: Peer | None
    """None: compute and decode here (mixed)."""
    age_s: float
    """Since the master accepted the request (R18: age is the request's, not the attempt's)."""
    score_prompt: bool = False
    """The master wants the prompt's log-probabilities and does not have them yet."""


class Redirect(msgspec.Struct, frozen=True):
    """Another decode worker for an attempt; its computed KV goes on under the new attempt number."""

    key: AttemptKey
    new_attempt: int
    decode: Peer


class Abort(msgspec.Struct, frozen=True):
    """Forget these attempts, in any state, with all they hold. Also said of an attempt that the master has in full."""

    keys: list[AttemptKey]


class Peers(msgspec.Struct, frozen=True):
    """All decode workers of the group, each time as a whole; prefill workers connect to them and prove them (R16)."""

    peers: list[Peer]


class Reconcile(msgspec.Struct, frozen=True):
    """Each second: what the master believes this worker holds. What it holds beyond it twice running, it ends (R8)."""

    live: list[LiveAttempt]


class CacheWanted(msgspec.Struct, frozen=True):
    """Some CacheChanges were lost: begin the account anew."""


MasterMessage: TypeAlias = MasterHello | Submit | Redirect | Abort | Peers | Reconcile | CacheWanted


# ----------------------------------------------------------------------------------------------------- worker -> master


class Limits(msgspec.Struct, frozen=True):
    """What a worker could admit when idle (R20)."""

    num_slots: int
    max_running_requests: int
    max_context_tokens: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    chunk_tokens: int
    kv_bytes_per_token: int = 0
    """What one token's KV takes on its way to another worker; 0: unknown."""


class WorkerHello(msgspec.Struct, frozen=True):
    """The worker's answer to a master's hello, before anything else."""

    protocol: int
    worker: WorkerRef
    role: Role
    group: str
    """Equal for workers that may be paired: hash of model fingerprint, layout and transfer protocol (R13)."""
    model: str
    """The name that clients ask for."""
    address: str
    """host:port of its ReservationService; empty on a worker without one."""
    limits: Limits
    reads_batches: bool = False


class Load(msgspec.Struct, frozen=True):
    """How full a worker is."""

    queued_requests: int = 0
    queued_tokens: int = 0
    """Prompt tokens that wait."""
    running_requests: int = 0
    max_queued_requests: int = 0
    """0: no bound."""
    held_slots: int = 0
    reserved_slots: int = 0
    evictable_slots: int = 0
    num_slots: int = 0
    admitted_peak_ratio: float = 0.0
    """Predicted peak of what is in, over the pool: <= 1."""
    demand_ratio: float = 0.0
    """The same with what waits: unbounded."""
    predicted_wait_s: float = 0.0
    """Until a request that arrives now is admitted."""
    tokens_per_s: float = 0.0
    """Prompt tokens a second lately on prefill, output tokens a second on decode; 0 when unknown."""


class ProvenPair(msgspec.Struct, frozen=True):
    """A decode worker to which a test page has crossed (R16)."""

    worker: WorkerRef
    lane: str
    gb_per_s: float


class Heartbeat(msgspec.Struct, frozen=True):
    """Each second on every session."""

    load: Load
    engine_age_s: float
    """Since the engine's last step or idle report."""
    ready: bool
    draining: bool
    proven: list[ProvenPair]
    held: list[AttemptKey]
    """Attempts of this master that the worker knows, in any state, ended but not yet forgotten ones included."""
    drain_left_s: float = 0.0
    """While draining: until the worker ends, whatever still decodes on it (R17)."""


class CacheChanges(msgspec.Struct, frozen=True):
    """Blocks of prompt (`services.common.prefix_blocks`) that the worker's prefix cache holds, or holds no more.

    Said with heartbeats, where there is something to say. The first of a generation (number 0) begins an account: what
    was known before is void. The others add to it in the order of their numbers; one whose generation or number is not
    the expected one shows that some were lost, and CacheWanted asks for a new generation. A session begins with one.
    """

    generation: int
    """Rises with each account that the worker begins."""
    number: int
    stored: list[int]
    evicted: list[int]


class AttemptDelta(msgspec.Struct, frozen=True, gc=False):
    """New output of one attempt."""

    key: AttemptKey
    delta: Delta


class Deltas(msgspec.Struct, frozen=True):
    """All new output for this master of one engine step, or of several when the stream was slow (R15)."""

    deltas: list[AttemptDelta]
    in_columns: bool = False
    """How it is written: so, it costs a third to read."""


class Queued(msgspec.Struct, frozen=True):
    """The attempt is in the worker's queue."""

    key: AttemptKey


class Prefilling(msgspec.Struct, frozen=True):
    """The attempt's prompt is being computed."""

    key: AttemptKey
    cached_tokens: int
    """Prompt tokens whose KV was there already: what usage reports (R6)."""


class Placed(msgspec.Struct, frozen=True):
    """The decode worker granted; said before the first byte is pushed."""

    key: AttemptKey
    decode: WorkerRef


class PromptScored(msgspec.Struct, frozen=True):
    """The prompt's log-probabilities, all of them; said before any output of an attempt with `score_prompt`."""

    key: AttemptKey
    logprobs: PromptLogprobs


class Joined(msgspec.Struct, frozen=True):
    """From the decode worker: the KV is there in full, these choices decode."""

    key: AttemptKey
    choices: tuple[int, ...]
    """Those that did not end with their first token."""
    cached_tokens: int
    """The prefill worker's figure."""


class Preempted(msgspec.Struct, frozen=True):
    """A choice lost its slots and waits to be computed again here; nothing for the master to do."""

    key: AttemptKey
    choice: int


class PlacementRefused(msgspec.Struct, frozen=True):
    """The decode worker does not take it. The prompt's KV stays; a Redirect or an Abort must follow."""

    key: AttemptKey
    reason: RefusalReason
    retry_after_s: float | None = None
    message: str = ""


class Refused(msgspec.Struct, frozen=True):
    """The worker does not take the attempt; nothing was computed."""

    key: AttemptKey
    reason: RefusalReason
    retry_after_s: float | None = None
    message: str = ""


class Failed(msgspec.Struct, frozen=True):
    """The worker gave the attempt up; nothing of it is left but what was sent."""

    key: AttemptKey
    cause: FailureCause
    message: str = ""


AttemptEvent: TypeAlias = (
    Queued | Prefilling | PromptScored | Placed | Joined | Preempted | PlacementRefused | Refused | Failed
)
WorkerMessage: TypeAlias = WorkerHello | Heartbeat | CacheChanges | Deltas | AttemptEvent
