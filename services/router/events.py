"""What a Router is told of its engine. Plain values: the worker's service makes them of the engine's messages."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Admitted:
    """The engine took a proposal."""

    key: Hashable
    held_slots: int
    """Slots it added to those held; a prefix that others hold already is not among them."""
    cached_tokens: int = 0
    """Tokens of the prompt that need not be computed."""


@dataclass(frozen=True, slots=True)
class Deferred:
    """The engine has no room for a proposal; it waits again at its old place."""

    key: Hashable


@dataclass(frozen=True, slots=True)
class Granted:
    """A decode worker promised room for this prompt (PREFILL), waiting or let in."""

    key: Hashable


@dataclass(frozen=True, slots=True)
class Started:
    """Every choice decodes from now on: the prompt is done (LOCAL, RESUMED) or the KV has joined (RESERVATION)."""

    key: Hashable


@dataclass(frozen=True, slots=True)
class Finished:
    """One choice ended and its own slots are free."""

    key: Hashable
    choice: int
    num_output_tokens: int
    natural: bool
    """By EOS, a stop id or a stop string; not by a limit or an abort, which only say that it would have been longer."""


@dataclass(frozen=True, slots=True)
class Preempted:
    """One choice lost its slots.

    The caller queues it again, RESUMED and under a new key, before it returns to the event loop.
    """

    key: Hashable
    choice: int = 0


@dataclass(frozen=True, slots=True)
class Gone:
    """Nothing is left in the engine of this work, whatever became of it. Unknown keys are ignored."""

    key: Hashable


@dataclass(frozen=True, slots=True)
class Stepped:
    """A step ended."""

    step_s: float
    num_decode_rows: int
    num_prefill_tokens: int
    held_slots: int
    """Slots held or reserved in the whole pool, shared ones once."""
    computed: tuple[tuple[Hashable, int], ...] = ()
    """Prompts that had a chunk in it -> tokens of each that remain to be computed."""


@dataclass(frozen=True, slots=True)
class Idle:
    """The engine lives and has nothing to run."""

    held_slots: int


EngineEvent: TypeAlias = Admitted | Deferred | Granted | Started | Finished | Preempted | Gone | Stepped | Idle
