"""What became of one request."""

from __future__ import annotations

from dataclasses import dataclass

from bench.simulate.trace import Arrival


@dataclass(slots=True, eq=False)
class Story:
    """Written as the simulation goes; times are the timeline's, None where it did not come so far."""

    number: int
    arrival: Arrival
    max_new_tokens: int
    predicted_prefill_s: float = 0.0
    """What the prefill worker's Router expected it to wait when it came."""
    admitted_s: float | None = None
    """Its prompt was let in."""
    reserved_s: float | None = None
    """A decode worker was asked, and expected it to wait `predicted_grant_s`."""
    predicted_grant_s: float = 0.0
    granted_s: float | None = None
    computed_s: float | None = None
    first_token_s: float | None = None
    finished_s: float | None = None
    refused: str = ""
    """Why it was turned away."""
    num_preemptions: int = 0
    cached_tokens: int = 0

    @property
    def output_tokens(self) -> int:
        """How many it really gets."""
        return min(self.arrival.output_tokens, self.max_new_tokens)

    @property
    def ttft_s(self) -> float | None:
        """Arrival to first token."""
        return None if self.first_token_s is None else self.first_token_s - self.arrival.at_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time between its tokens; 0 for a single one."""
        if self.finished_s is None or self.first_token_s is None:
            return None
        return (self.finished_s - self.first_token_s) / max(self.output_tokens - 1, 1)

    def meets(self, ttft_s: float, tpot_s: float) -> bool:
        """Whether it finished within both bounds."""
        own_ttft_s, own_tpot_s = self.ttft_s, self.tpot_s
        return own_ttft_s is not None and own_tpot_s is not None and own_ttft_s <= ttft_s and own_tpot_s <= tpot_s
