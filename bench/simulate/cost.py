"""What an engine's steps cost, from a small JSON file: a fit of measured figures, with their source in it.

A decode step takes `step_s + row_s * rows + context_token_s * context tokens of all rows`; a prompt's chunk of n tokens
behind c computed ones takes `n * prefill_token_s + n * (c + n / 2) * prefill_pair_s`. A step with both takes the sum,
one of a prefill worker `prefill_step_s` more.
Where workers share a machine, a prompt's chunk takes `1 + beside_decode` times as long beside a decode worker's steps.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from services.engine.config import PUSH_TAIL_TOKENS

FOLDER = Path(__file__).parent / "costs"


def num_steps(prompt_tokens: int) -> int:
    """Of a prompt that is alone, where a step could take all of it: its last tokens are a chunk of their own, so that
    what is before them is sent while they are computed."""
    return 2 if prompt_tokens > PUSH_TAIL_TOKENS else 1


@dataclass(frozen=True, slots=True)
class Costs:
    """Coefficients; times in seconds."""

    source: str
    """Where the figures come from."""
    step_s: float
    row_s: float
    context_token_s: float
    prefill_token_s: float
    prefill_pair_s: float
    """For each pair of a new token and one that it attends to."""
    kv_token_bytes: int
    transfer_gb_per_s: float
    transfer_latency_s: float
    pool_slots: int
    prefill_step_s: float = 0.0
    """What a step of chunks takes beside them. No step of a prefill worker is shorter than `step_s` either."""
    beside_decode: float = 0.0
    """How much longer a prompt's chunk takes while a decode worker steps: 0 on machines of their own."""

    def decode_s(self, num_rows: int, context_tokens: int) -> float:
        """One token for every row."""
        return self.step_s + self.row_s * num_rows + self.context_token_s * context_tokens

    def prompt_s(self, num_tokens: int) -> float:
        """A whole prompt, alone on an idle prefill worker that computes it in one step but for its tail."""
        return self.prefill_step_s * num_steps(num_tokens) + self.chunk_s(num_tokens, 0)

    def chunk_s(self, num_tokens: int, behind: int) -> float:
        """A part of a prompt, of which `behind` tokens are computed already."""
        return num_tokens * (self.prefill_token_s + (behind + num_tokens / 2) * self.prefill_pair_s)

    def slowed_s(self, decode_busy_s: float) -> float:
        """What a prompt's chunk has lost to a decode worker that stepped for so long of it."""
        return decode_busy_s * self.beside_decode / (1 + self.beside_decode)

    def transfer_s(self, num_tokens: int) -> float:
        """KV of so many tokens from one worker to another."""
        return self.transfer_latency_s + num_tokens * self.kv_token_bytes / (self.transfer_gb_per_s * 1e9)


def load_costs(name: str) -> Costs:
    """Of a name in `costs/`, or of a file. Raises ValueError naming what is missing or unknown."""
    path = Path(name) if name.endswith(".json") else FOLDER / f"{name}.json"
    fields = json.loads(path.read_text())
    try:
        return Costs(**fields)
    except TypeError as error:
        raise ValueError(f"{path}: {error}") from error
