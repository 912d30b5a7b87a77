"""Jobs and their sequences: what the engine knows of one attempt of one request (the identity is explained in ipc).

Admit     RESTORING ── what the host cache kept is back in its slots ──> PREFILLING
          PREFILLING ── last chunk launched ──┬─ hand_over ──> HOLDING ── Release, all finished ──> gone
                                              └─ else ───────> DECODING ── last sequence ends ────> gone
Reserve   RESERVED ── Join ──> JOINING ── all bytes in their slots ──> DECODING
          RESERVED without bytes ── Revoked ──> gone
any       Abort ──> ENDING while a transfer page of it is on its way, else gone

RESTORING, PREFILLING, RESERVED and JOINING hold slots in `Job.holding`; HOLDING too, for pushes to read; in DECODING
each sequence has its own holding. A sequence is gone when it finished, was finished, aborted or preempted; results of
steps that were already in flight are dropped. `Ended` is sent when a job is gone.
"""

from dataclasses import dataclass, field
from enum import Enum, auto

from services.common.ipc import AttemptKey, EngineStop
from services.common.request import SamplingParams
from services.engine.arrays import Ints
from services.engine.kv_cache import Holding
from services.engine.ticket import Ticket


class JobState(Enum):
    """See the module's life cycle."""

    RESTORING = auto()
    PREFILLING = auto()
    HOLDING = auto()
    RESERVED = auto()
    JOINING = auto()
    DECODING = auto()
    ENDING = auto()


@dataclass(slots=True, eq=False)
class Sequence:
    """One choice of a job."""

    job: "Job"
    choice: int
    outputs: list[int]
    """Output ids known to the host, those of earlier attempts included."""
    row: int | None = None
    """None in hand-over: nothing is decoded."""
    holding: Holding | None = None
    """None while the job holds the slots."""
    gone: bool = False
    sampler_state: object | None = None
    """The sampler's own; None once the sequence is gone."""

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens known to the host."""
        return self.job.num_prompt_tokens + len(self.outputs)


@dataclass(slots=True, eq=False)
class Job:
    """One attempt of one request in this engine."""

    job_id: int
    key: AttemptKey
    arrival: float
    tokens: Ints
    """Prompt and the output ids given with it: what has to be computed or to arrive before decoding."""
    num_prompt_tokens: int
    state: JobState
    holding: Holding | None
    cached_tokens: int
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop: EngineStop = field(default_factory=lambda: EngineStop(max_new_tokens=1))
    stop_token_ids: frozenset[int] = frozenset()
    hand_over: bool = False
    choices: tuple[int, ...] = (0,)
    row: int | None = None
    """Row of the prompt while it is computed."""
    num_computed: int = 0
    """Leading tokens whose KV is in its slots or is being written by a launched step."""
    max_outputs: int = 0
    """max_new_tokens, less where the context ends."""
    sequences: dict[int, Sequence] = field(default_factory=dict)
    num_pages_moving: int = 0
    """Transfer pages with KV of this job that are not back yet."""
    has_bytes: bool = False
    """A reservation some of whose KV has come: it is not revoked any more."""
    grammar: Ticket | None = None
    """What each choice's output must match, compiled or on its way."""

    @property
    def may_sample(self) -> bool:
        """Whether nothing that sampling needs is on its way."""
        return self.grammar is None or self.grammar.is_ready

    @property
    def is_over(self) -> bool:
        """Whether it has ended, or only waits for transfer pages to come back."""
        return self.state is JobState.ENDING

    @property
    def holds_computed(self) -> bool:
        """Whether its own holding has the KV of its `num_computed` first tokens."""
        state = self.state  # a set of enum members would be hashed member by member, in Python
        return state is JobState.RESTORING or state is JobState.PREFILLING or state is JobState.HOLDING

    @property
    def num_given_outputs(self) -> int:
        """Output ids that came with the command."""
        return len(self.tokens) - self.num_prompt_tokens

    def given_outputs(self) -> list[int]:
        """The output ids that came with the command."""
        ids: list[int] = self.tokens[self.num_prompt_tokens :].tolist()
        return ids
