"""What a Router is asked to let in, and the limits it keeps."""

from __future__ import annotations

import enum
import math
from collections.abc import Hashable
from dataclasses import dataclass, field

from services.router.output_length import LengthConfig
from services.router.quantile_control import QuantileConfig


class WorkKind(enum.Enum):
    """What letting it in means for the pool."""

    PREFILL = "prefill"
    """Compute a prompt and hold its KV until it is handed over: holds, never grows here."""
    RESERVATION = "reservation"
    """KV on its way here: holds from the grant, grows once it has joined."""
    LOCAL = "local"
    """Compute a prompt and decode here: holds, grows once the prompt is done."""
    RESUMED = "resumed"
    """Like LOCAL, for a sequence that was preempted here: goes first, and nothing else is let in while it waits."""


@dataclass(frozen=True, slots=True)
class QueuedWork:
    """One prompt with its choices, or one preempted sequence, that wants in. Times are of the Router's clock."""

    key: Hashable
    """Never used twice in a Router's life."""
    kind: WorkKind
    arrival_s: float
    """When the *request* arrived, whatever attempt this is (R18)."""
    prompt_tokens: int
    max_new_tokens: int
    """Limit on output tokens of each choice, those produced already included."""
    produced_tokens: int = 0
    """Output tokens that exist already; their KV is needed like the prompt's."""
    min_new_tokens: int = 0
    """Output tokens that are certain to come; equals max_new_tokens when EOS is ignored."""
    num_choices: int = 1
    priority: int = 0
    """Lower goes first."""
    queue_deadline_s: float = math.inf
    """It is given up if it is not let in by then."""
    evidence_key: str = ""
    """Whose output lengths are evidence for this one: the caller's; the priority's where empty."""
    shared_tokens: int = 0
    """Tokens of the prompt known to be held by running work, which it would use too."""

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "produced_tokens", "min_new_tokens", "shared_tokens"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: expected >= 0, got {getattr(self, name)}")
        for name in ("prompt_tokens", "num_choices"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected >= 1, got {getattr(self, name)}")
        if self.produced_tokens and self.num_choices != 1:
            raise ValueError(f"num_choices: expected 1 where output exists already, got {self.num_choices}")

    @property
    def context_tokens(self) -> int:
        """Tokens whose KV is needed before the next one can be sampled."""
        return self.prompt_tokens + self.produced_tokens

    @property
    def grows(self) -> bool:
        """Whether it decodes here."""
        return self.kind is not WorkKind.PREFILL

    @property
    def compute_tokens(self) -> int:
        """Tokens this worker computes before it decodes or hands over, a cached prefix not yet taken off."""
        return 0 if self.kind is WorkKind.RESERVATION else self.context_tokens


_AT_LEAST_ONE = (
    "capacity_slots", "max_running", "chunk_tokens", "lookahead_steps", "extent_slots", "max_waiting", "scan_limit",
    "refresh_steps",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """Limits of one worker, all known at its start."""

    capacity_slots: int
    """Slots of the pool."""
    max_running: int = 256
    """Sequences that decode or compute at once."""
    chunk_tokens: int = 2048
    """The most of one prompt that one step computes."""
    step_budget_tokens: int = 2048
    """Prompt tokens one step computes in all; at least chunk_tokens, or long prompts would never start."""
    lookahead_steps: int = 2
    """Steps of prompts to have in the engine: with 1 it would idle from a step's end until the next plan has reached
    it."""
    extent_slots: int = 32
    """How many slots a growing sequence gets at a time: it occupies up to one less than this beyond its tokens."""
    max_waiting: int = 2048
    """Queue bound; beyond it work is refused at once."""
    ungranted_share: float = 0.5
    """Share of the pool that prompts without a decode worker's grant may fill (R4)."""
    max_bypasses: int = 64
    """How many may be let in before one that does not fit; then nothing younger is (R20)."""
    max_bypass_s: float = 5.0
    """The same bound in time, from when it first did not fit."""
    scan_limit: int = 8
    """How many that do not fit one plan looks past."""
    priority_step_s: float = 30.0
    """One level of priority is worth this much age, so that no level starves."""
    shed_confidence: float = 0.5
    """Work is refused, or given up while it waits, when this share of its predicted wait would miss its deadline.
    The prediction is right on the mean and not for each, and who is refused wrongly is lost: in simulated long-prompt
    chat near its knee 91% were served in time with no early refusal, 92% by half the prediction, 88% by all of it."""
    join_steps: int = 8
    """Steps assumed between being let in and decoding, until some were seen."""
    refresh_steps: int = 16
    """Decode steps between two rebuilds of the length tables and of all predictions."""
    lengths: LengthConfig = field(default_factory=LengthConfig)
    quantile: QuantileConfig = field(default_factory=QuantileConfig)

    def __post_init__(self) -> None:
        if self.step_budget_tokens < self.chunk_tokens:
            raise ValueError(
                f"step_budget_tokens: expected >= chunk_tokens ({self.chunk_tokens}), got {self.step_budget_tokens}"
            )
        for name in _AT_LEAST_ONE:
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected >= 1, got {getattr(self, name)}")
        if not 0 < self.ungranted_share <= 1:
            raise ValueError(f"ungranted_share: expected above 0 and at most 1, got {self.ungranted_share}")

    def held_slots(self, work: QueuedWork) -> int:
        """What the work is counted with before the engine has answered."""
        return work.context_tokens - min(work.shared_tokens, work.context_tokens) + self._slack_slots(work)

    def admitted_slots(self, work: QueuedWork, told_slots: int) -> int:
        """What the work is counted with once the engine has told what it occupies.

        Tokens plus slack bound what it occupies at any later step. What was told beyond its tokens is room to grow into
        that it has already, and part of the slack.
        """
        return max(told_slots, min(told_slots, work.context_tokens) + self._slack_slots(work))

    def most_slots(self, work: QueuedWork) -> int:
        """What it occupies if every choice runs to its limit."""
        to_come = (work.max_new_tokens - work.produced_tokens) * work.num_choices if work.grows else 0
        return work.context_tokens + max(to_come, 0) + self._slack_slots(work)

    def _slack_slots(self, work: QueuedWork) -> int:
        """What growing in extents may occupy beyond the tokens."""
        return (self.extent_slots - 1) * work.num_choices if work.grows else 0
