"""Totals since start that only the engine knows; the control process feeds them to Prometheus as they are.

What it can count itself from events (steps, rows, prompt tokens, preemptions, deferrals) is not here.
"""

from dataclasses import asdict, dataclass


@dataclass(slots=True)
class EngineCounters:
    """Owned by the loop. Every field is a total; names are the keys of `ipc.Counters`."""

    output_tokens: float = 0
    prefix_hit_tokens: float = 0
    prefix_query_tokens: float = 0
    """Tokens that admissions looked up in the prefix cache."""
    evicted_tokens: float = 0
    revocations: float = 0
    kept_sequences: float = 0
    """Preempted with their KV copied to the host cache."""
    kept_tokens: float = 0
    host_cache_full: float = 0
    """Preempted sequences for which the host cache had no room: they are computed again."""
    restored_sequences: float = 0
    """Resumed from the host cache."""
    restored_tokens: float = 0
    tokens_past_end: float = 0
    """Computed for a sequence that had ended: the price of handling results late."""
    pushes: float = 0
    pushed_bytes: float = 0
    failed_pushes: float = 0
    received_bytes: float = 0
    joins: float = 0
    failed_arrivals: float = 0

    def values(self) -> dict[str, float]:
        """Name -> total."""
        return asdict(self)
