"""What the fake engine "generates": a pure function of prompt and output position, so any attempt continues another."""

import zlib

from services.common.ipc import pack_ids

FIRST_ID, NUM_IDS = 1_000, 30_000
"""Ids of ordinary words in the demo model's vocabulary."""


def fake_token(prompt_ids: list[int], position: int, choice: int = 0) -> int:
    """The id at an output position."""
    return FIRST_ID + zlib.crc32(pack_ids([position, choice]), zlib.crc32(pack_ids(prompt_ids))) % NUM_IDS


def fake_output(prompt_ids: list[int], num_tokens: int, choice: int = 0) -> list[int]:
    """The first ids of the output."""
    return [fake_token(prompt_ids, position, choice) for position in range(num_tokens)]
