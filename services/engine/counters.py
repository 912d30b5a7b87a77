"""Totals since start, which the control process feeds to Prometheus."""

from dataclasses import asdict, dataclass


@dataclass(slots=True)
class EngineCounters:
    """Owned by the loop. Every field is a total; names are the keys of `ipc.Counters`."""

    steps: float = 0
    step_seconds: float = 0.0
    decode_rows: float = 0
    """Sum over steps; divided by `steps` it is the mean batch."""
    prefill_tokens: float = 0
    output_tokens: float = 0
    prefix_hit_tokens: float = 0
    prefix_query_tokens: float = 0
    """Tokens that admissions looked up in the prefix cache."""
    evicted_tokens: float = 0
    preemptions: float = 0
    revocations: float = 0
    deferrals: float = 0
    pushes: float = 0
    pushed_bytes: float = 0
    failed_pushes: float = 0
    received_bytes: float = 0
    joins: float = 0
    failed_arrivals: float = 0
    tokens_past_end: float = 0
    """Computed for a sequence that had ended: the price of handling results late."""

    def values(self) -> dict[str, float]:
        """Name -> total."""
        return asdict(self)
