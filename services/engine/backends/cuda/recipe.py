"""Which kernel computes which product of a decode step, and how it is cut up, by the number of rows.

The entries were chosen by measurement on an H200 (`docs/performance.md`); None means cuBLAS.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kernels.decode_attention import AttentionTuning
from kernels.skinny_gemm import GemmShape
from kernels.streamed_gemm import StreamShape

Product = GemmShape | StreamShape | None
"""A portable Triton product, the Hopper one, or cuBLAS."""


@dataclass(frozen=True, slots=True)
class DecodeRecipe:
    """One step's choices. A product without a shape runs through cuBLAS, with its norm and activation beside it."""

    qkv: Product
    out: Product
    gate_up: Product
    down: Product
    head: Product
    attention: AttentionTuning = field(default_factory=AttentionTuning)
    block_tokens: int = 64
    target_items: int = 256
    min_split_blocks: int = 1
    pdl: bool = True


def recipe_for(rows: int) -> DecodeRecipe:
    """Return the measured choice for a step of `rows` rows."""
    if rows <= 16:
        return DecodeRecipe(
            qkv=GemmShape(64, 16, 128, 1, 6, 4),
            out=GemmShape(32, 16, 256, 1, 5, 4),
            gate_up=GemmShape(64, 16, 128, 1, 4 if rows == 1 else 3, 4),
            down=GemmShape(64, 16, 128, 2, 6, 4),
            head=None,
            attention=AttentionTuning(3, 4, 8),
            block_tokens=64,
            target_items=8,
        )
    if rows <= 64:
        return DecodeRecipe(
            qkv=GemmShape(64, 64, 128, 1, 4, 4),
            out=GemmShape(64, 64, 128, 2, 4, 4),
            gate_up=GemmShape(64, 64, 64, 1, 5, 4),
            down=GemmShape(64, 64, 128, 2, 6, 4),
            head=None,
            attention=AttentionTuning(4, 4, 8),
            block_tokens=32,
            target_items=32,
        )
    return DecodeRecipe(None, None, None, None, None, AttentionTuning(3, 4, 8), 64, 256)
