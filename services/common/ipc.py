"""The seam between a worker's control process and its engine process (rank 0): messages and a channel.

msgspec MessagePack over one ZMQ PAIR socket on `ipc://`: `Command`s one way, `Event`s the other. The engine drains
commands between steps and never waits for ipc (R15); a full socket ends the process.

Identity. A *job* is one attempt of one request on this worker: a prompt computed here, or a prompt whose KV arrives. A
job has one or more *sequences*, named `(job_id, choice)`. Job ids are never reused within an engine's life. On the KV
transfer a job is named by its `AttemptKey`, because both workers know that.

Who moves a job:
  prefill: Admit(hand_over) -> Admitted | Deferred; Place -> pushes start; StepDone carries token 0 of each choice;
           Release (the decode worker joined) or Abort frees it.
  decode:  Reserve -> Reserved | Deferred; KV arrives; Join -> Joined, then StepDone for every step; ends by
           StepDone.finish, Finish (the control process saw a stop string) or Abort. Preempted(job, choice) returns one
           to the control process, which resumes it by Admit with its output ids. Revoked(job) takes back a reservation
           that has no bytes yet.
  mixed:   Admit(hand_over=False) computes and decodes in one pool.
"""

import struct
from typing import TypeAlias

import msgspec

from services.common.prompt_logprobs import PromptLogprobs
from services.common.request import GrammarSpec, SamplingParams
from services.common.step_outputs import SequenceOutput as SequenceOutput
from services.common.step_outputs import TokenColumns as TokenColumns

IPC_PROTOCOL = 3
"""Raised on every incompatible change; both ends of a pod start from one image: a difference is a broken deployment."""


class AttemptKey(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`(request_id, attempt)`, which names one try of a request on one pair of workers everywhere."""

    request_id: str
    attempt: int


class EngineStop(msgspec.Struct, frozen=True, omit_defaults=True):
    """The stop conditions the engine applies itself (R10)."""

    max_new_tokens: int
    min_new_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    """Includes the model's EOS ids unless the request ignores EOS."""


# ------------------------------------------------------------------------------------------ control process -> engine


class Admit(msgspec.Struct, frozen=True, tag="admit"):
    """Compute a prompt here. Answered by Admitted or Deferred, nothing in between (R19)."""

    job_id: int
    key: AttemptKey
    prompt_ids: bytes
    """int32, little-endian (`pack_ids`)."""
    sampling: SamplingParams
    stop: EngineStop
    arrival: float
    """Age rank of the *request*, its arrival on any monotonic scale of this worker: the latest is preempted first."""
    output_ids: bytes = b""
    """Ids that it has produced already, int32, only with one choice: computed like prompt, counted as output (R9)."""
    choices: tuple[int, ...] = (0,)
    """Choice numbers to sample; the noise of each is a function of (seed, choice, position)."""
    hand_over: bool = False
    """True: sample one token per choice, then hold the KV for Release. False: go on decoding here."""
    resumes: int | None = None
    """The job whose sequence this resumes after Preempted: its KV may have been kept in host memory."""


class Place(msgspec.Struct, frozen=True, tag="place"):
    """The decode worker granted: push KV of tokens [skip_tokens, end) of this job to a connected peer, as computed."""

    job_id: int
    peer_id: str
    key: AttemptKey
    """The attempt on this pair; differs from Admit's when the master named another decode worker."""
    skip_tokens: int
    """Prefix the peer already holds."""


class Reserve(msgspec.Struct, frozen=True, tag="reserve"):
    """Pin the cached prefix and allocate slots for KV that is on its way. Answered by Reserved or Deferred."""

    job_id: int
    key: AttemptKey
    token_ids: bytes
    """Prompt plus output ids so far, int32: all the tokens whose KV must be here before decoding."""
    arrival: float
    grammar: GrammarSpec | None = None
    """Join's grammar, so that it is compiled while the KV travels."""


class Join(msgspec.Struct, frozen=True, tag="join"):
    """All KV has been announced: when every byte is here and verified, answer Joined and decode each choice."""

    job_id: int
    first_tokens: dict[int, int]
    """choice -> the token the prefill worker sampled; it is the first input of the decode."""
    num_prompt_tokens: int
    """Where output starts in Reserve.token_ids: the ids after it count as output already produced."""
    sampling: SamplingParams
    stop: EngineStop


class Finish(msgspec.Struct, frozen=True, tag="finish"):
    """The control process ended one sequence at `num_output_tokens` (a stop string); later tokens are dropped."""

    job_id: int
    choice: int
    num_output_tokens: int


class Release(msgspec.Struct, frozen=True, tag="release"):
    """The KV of this job has joined elsewhere: give its slots back (they may stay as cached prefix)."""

    job_id: int


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """End a job in any state; idempotent, unknown ids are ignored. Answered by Ended once nothing of it is left.

    It also drops what host memory keeps of the job's preempted sequences: nobody will resume them.
    """

    job_id: int


class ConnectPeer(msgspec.Struct, frozen=True, tag="connect_peer"):
    """Connect this prefill engine's KV transfer to a decode engine and prove the pair (R16)."""

    peer_id: str
    """The decode worker's id; unique per incarnation."""
    host: str
    ports: tuple[int, ...]
    """One transfer listener per rank."""
    incarnation: str
    group: str


class DropPeer(msgspec.Struct, frozen=True, tag="drop_peer"):
    """Close the transfer to a peer; pushes in flight fail with TransferFailed."""

    peer_id: str


class CheckIntegrity(msgspec.Struct, frozen=True, tag="check_integrity"):
    """Answer with Integrity: every slot, page and reference accounted for."""

    token: int


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown"):
    """End the engine process with status 0."""


Command: TypeAlias = (
    Admit | Place | Reserve | Join | Finish | Release | Abort | ConnectPeer | DropPeer | CheckIntegrity | Shutdown
)


# ------------------------------------------------------------------------------------------ engine -> control process


class EngineReady(msgspec.Struct, frozen=True, tag="ready"):
    """Sent once, when the model is loaded and the pool exists."""

    ipc_protocol: int
    model_fingerprint: str
    layout: str
    """Hash of dtype, layers, KV heads, head_dim: equal layouts may exchange KV (R13), whatever their ranks."""
    transfer_protocol: int
    num_slots: int
    max_context_tokens: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    chunk_tokens: int
    transfer_ports: tuple[int, ...]
    """Where this engine's ranks listen for KV; empty on engines that only send."""
    backend: str
    kv_bytes_per_token: int
    load_s: float


class Usage(msgspec.Struct, frozen=True, array_like=True):
    """Slots by state; they sum to the pool. Pages by state."""

    num_slots: int
    free_slots: int
    held_slots: int
    """Owned by running sequences and prompts being computed, shared ones counted once."""
    reserved_slots: int
    """Promised to KV that has not joined yet."""
    evictable_slots: int
    """Cached prefix that nobody references."""
    pages_free: int = 0
    pages_in_use: int = 0
    pages_quarantined: int = 0
    host_pages_free: int = 0
    """Pages of host memory for the KV of preempted sequences."""
    host_pages_in_use: int = 0


class Admitted(msgspec.Struct, frozen=True, tag="admitted"):
    """The job is in the engine."""

    job_id: int
    cached_tokens: int
    """Prompt tokens whose KV was here already."""
    held_slots: int
    """Slots this admission added to the held ones, cached prefix it was the first to pin included."""


class Reserved(msgspec.Struct, frozen=True, tag="reserved"):
    """Slots are promised."""

    job_id: int
    cached_tokens: int
    held_slots: int


class Deferred(msgspec.Struct, frozen=True, tag="deferred"):
    """No room, no side effect: propose again later (R19)."""

    job_id: int
    free_slots: int


class GrammarRefused(msgspec.Struct, frozen=True, tag="grammar_refused"):
    """The job's grammar cannot be compiled: Ended follows, and no other worker would do better."""

    job_id: int
    message: str
    """What is wrong with it, for the client."""


class Revoked(msgspec.Struct, frozen=True, tag="revoked"):
    """A reservation without bytes was taken back to find slots (R18)."""

    job_id: int


class Preempted(msgspec.Struct, frozen=True, tag="preempted"):
    """A sequence lost its slots; resume it with Admit. Its outputs up to the last StepDone stand."""

    job_id: int
    choice: int


class Joined(msgspec.Struct, frozen=True, tag="joined"):
    """Every byte of the job's KV is in its slots and verified; its choices decode from the next step."""

    job_id: int


class StepDone(msgspec.Struct, frozen=True, tag="step"):
    """One step's results, all sequences together, and how the engine stands after it."""

    step: int
    others: list[SequenceOutput]
    """Of the sequences that are not in `tokens`."""
    usage: Usage
    step_s: float
    num_decode_rows: int
    num_prefill_tokens: int
    prefilling: list[tuple[int, int]] = []
    """(job_id, prompt tokens computed so far) of the jobs that had a chunk in this step."""
    prompt_logprobs: list[tuple[int, PromptLogprobs]] = []
    """(job_id, of this step's chunk) of the jobs that ask for them; in order within a job, from position 1 on."""
    tokens: TokenColumns = TokenColumns()

    @property
    def outputs(self) -> list[SequenceOutput]:
        """Of every sequence that got a token or ended."""
        return [*self.tokens.outputs(), *self.others]


class Alive(msgspec.Struct, frozen=True, tag="alive"):
    """At least once a second while nothing else is sent. `busy_s` is the age of the step that runs, 0 when idle."""

    step: int
    busy_s: float
    usage: Usage


class PushDone(msgspec.Struct, frozen=True, tag="push_done"):
    """All KV of the job has left for the peer (it still must join)."""

    job_id: int
    num_bytes: int
    seconds: float
    exposed_s: float
    """Time from the end of prefill compute to the last byte sent."""


class TransferFailed(msgspec.Struct, frozen=True, tag="transfer_failed"):
    """The KV of this job cannot be moved on this attempt; its computed KV is still held on a prefill engine."""

    job_id: int
    kind: str
    """One of TRANSFER_FAILURE_KINDS."""
    message: str


TRANSFER_FAILURE_KINDS = ("peer_lost", "deadline", "verification", "refused", "internal")


class PeerProven(msgspec.Struct, frozen=True, tag="peer_proven"):
    """A test page crossed to this peer; it may be selected now."""

    peer_id: str
    lane: str
    gb_per_s: float


class PeerLost(msgspec.Struct, frozen=True, tag="peer_lost"):
    """The transfer to or from this peer is gone; its jobs get TransferFailed."""

    peer_id: str
    reason: str


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """Nothing is left of the job: its slots and pages are back. The last word on a job id."""

    job_id: int


class Integrity(msgspec.Struct, frozen=True, tag="integrity"):
    """Answer to CheckIntegrity; `problems` is empty when all is accounted for."""

    token: int
    problems: list[str]
    usage: Usage
    num_jobs: int


class CacheChanged(msgspec.Struct, frozen=True, tag="cache_changed"):
    """Blocks of prompt (`services.common.prefix_blocks`) that the prefix cache holds, or holds no more, since the last
    such event; disjoint. At most once a turn of the loop."""

    stored: list[int]
    evicted: list[int]


class Counters(msgspec.Struct, frozen=True, tag="counters"):
    """Totals since start, once a second: the control process feeds them to Prometheus."""

    values: dict[str, float]


Event: TypeAlias = (
    EngineReady | Admitted | Reserved | Deferred | GrammarRefused | Revoked | Preempted | Joined | StepDone | Alive
    | PushDone | TransferFailed | PeerProven | PeerLost | Ended | Integrity | CacheChanged | Counters
)  # fmt: skip

_encoder = msgspec.msgpack.Encoder()
_command_decoder = msgspec.msgpack.Decoder(list[Command])
_event_decoder = msgspec.msgpack.Decoder(list[Event])


def encode(messages: list[Command] | list[Event]) -> bytes:
    """One frame of messages in order."""
    return _encoder.encode(messages)


def decode_commands(frame: bytes) -> list[Command]:
    """Inverse of `encode`; raises msgspec.ValidationError on anything else."""
    return _command_decoder.decode(frame)


def decode_events(frame: bytes) -> list[Event]:
    """Inverse of `encode`; raises msgspec.ValidationError on anything else."""
    return _event_decoder.decode(frame)


def pack_ids(ids: list[int]) -> bytes:
    """Token ids as int32, little-endian."""
    return struct.pack(f"<{len(ids)}i", *ids)


def unpack_ids(packed: bytes) -> list[int]:
    """Inverse of `pack_ids`."""
    return list(struct.unpack(f"<{len(packed) // 4}i", packed))
