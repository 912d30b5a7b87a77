"""Which kernel computes which product of a decode step, and how it is cut up, by the number of rows.

The entries were chosen by measurement on an H200 (`docs/performance.md`, `bench/tune_step.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch

from kernels.decode_attention import AttentionTuning
from kernels.skinny_gemm import GemmShape
from kernels.streamed_gemm import StreamShape


@dataclass(frozen=True, slots=True)
class SplitDepth:
    """cuBLAS over `parts` of the depth at once, added up in float32 by the norm behind: for `out` and `down`.

    Few output tiles leave most of a card idle; in parts of the depth there are as many more.
    """

    parts: int

    def pays(self, rows: int, weight: torch.Tensor) -> bool:
        """Whether the depth divides, and the tiles of all parts are on the card at once; `weight [width, depth]`."""
        width, depth = weight.shape
        tiles = -(-rows // 128) * -(-width // 128)
        return depth % (8 * self.parts) == 0 and tiles * self.parts <= PROGRAMS // 2


Product = GemmShape | StreamShape | SplitDepth | None
"""A portable Triton product, the Hopper one, cuBLAS in parts, or cuBLAS."""


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


_PLAIN = DecodeRecipe(None, None, None, None, None)
PROGRAMS = 264
"""Programs of decode attention that a card of 132 multiprocessors holds at once, at two each."""


def recipe_for(rows: int, num_kv_heads: int, dtype: torch.dtype, *, hopper: bool, num_ranks: int = 1) -> DecodeRecipe:
    """Return the measured choice for a step of `rows` rows.

    float32 goes through cuBLAS: the small-batch products are tensor-core kernels. Without Hopper's copy engine the
    portable product takes the place of the streamed one. A rank's products have as few outputs as there are more ranks:
    `qkv` and `gate_up` are cut finer then.
    """
    recipe = _attention(_PLAIN, rows, num_kv_heads)
    if dtype == torch.float32:  # twice the bytes of a token in shared memory
        return replace(recipe, attention=AttentionTuning(2, 4, 8), block_tokens=32)
    if rows > 64:
        return replace(recipe, out=SplitDepth(2), down=SplitDepth(2))
    block_b = max(16, 1 << (rows - 1).bit_length())
    chosen = _products(recipe, rows, block_b, num_ranks) if hopper else _portable(recipe, block_b)
    return chosen if num_ranks == 1 else _split(chosen, block_b, hopper=hopper)


def _attention(recipe: DecodeRecipe, rows: int, num_kv_heads: int) -> DecodeRecipe:
    """Cut contexts so that the card is full, but never finer than what a merge costs (about 2 us) is worth.

    Measured with 8 KV heads; a rank with fewer has as many programs fewer a context, and cuts contexts finer.
    """
    one_wave = -(-PROGRAMS // num_kv_heads)
    if rows < 16:
        return replace(recipe, attention=AttentionTuning(3, 4, 16), block_tokens=64, target_items=one_wave,
                       min_split_blocks=max(2, rows))  # fmt: skip
    if rows <= 32 and rows * num_kv_heads <= PROGRAMS // 2:  # one a multiprocessor; one more would run behind the rest
        return replace(recipe, attention=AttentionTuning(3, 4, 8), block_tokens=128, target_items=one_wave,
                       min_split_blocks=num_kv_heads)  # fmt: skip
    if rows <= 32:
        return replace(recipe, attention=AttentionTuning(5, 4, 8), block_tokens=32, target_items=8 * one_wave,
                       min_split_blocks=2 * num_kv_heads)  # fmt: skip
    if rows <= 64:
        return replace(recipe, attention=AttentionTuning(4, 1, 8), block_tokens=32, target_items=4 * one_wave,
                       min_split_blocks=4 * num_kv_heads)  # fmt: skip
    return replace(recipe, attention=AttentionTuning(4, 1, 8), block_tokens=32, target_items=8 * one_wave,
                   min_split_blocks=4 * num_kv_heads)  # fmt: skip


def _products(recipe: DecodeRecipe, rows: int, block_b: int, num_ranks: int) -> DecodeRecipe:
    if rows < 16 or (block_b <= 16 and num_ranks > 1):
        return replace(
            recipe,
            qkv=StreamShape(64, block_b, 128, 1, 5),
            out=StreamShape(64, block_b, 128, 2, 5),
            gate_up=StreamShape(64, block_b, 128, 1, 3),
            down=GemmShape(64, block_b, 128, 2, 6),
        )
    if block_b <= 16:
        return replace(
            recipe,
            qkv=StreamShape(64, block_b, 128, 1, 8),
            out=StreamShape(64, block_b, 128, 1, 8),
            gate_up=StreamShape(64, block_b, 128, 1, 3),
            down=StreamShape(64, block_b, 128, 2, 8),
        )
    if block_b <= 32:
        return replace(
            recipe,
            qkv=StreamShape(64, block_b, 128, 1, 6),
            out=StreamShape(64, block_b, 64, 2, 8),
            gate_up=StreamShape(64, block_b, 128, 1, 2),
            down=StreamShape(64, block_b, 128, 2, 5),
        )
    return replace(
        recipe,
        qkv=StreamShape(64, block_b, 128, 1, 6),
        out=StreamShape(64, block_b, 128, 2, 6),
        gate_up=StreamShape(128, block_b, 64, 1, 3),
        down=StreamShape(64, block_b, 128, 2, 6),
    )


def _portable(recipe: DecodeRecipe, block_b: int) -> DecodeRecipe:
    deep = block_b <= 16
    return replace(
        recipe,
        qkv=GemmShape(64, block_b, 128, 1, 6 if deep else 4),
        out=GemmShape(64, block_b, 128, 2, 6 if deep else 4),
        gate_up=GemmShape(64, block_b, 128 if deep else 64, 1, 3 if deep else 5),
        down=GemmShape(64, block_b, 128, 2, 6 if deep else 4),
    )


def _split(recipe: DecodeRecipe, block_b: int, *, hopper: bool) -> DecodeRecipe:
    """Half the tiles of a whole model would leave half the card idle."""
    qkv: Product = GemmShape(64, block_b, 128, 2, 4)
    if not hopper or block_b <= 16:
        return replace(recipe, qkv=qkv)
    if block_b > 32:
        qkv = StreamShape(64, block_b, 128, 2, 6)
    return replace(recipe, qkv=qkv, gate_up=StreamShape(64, block_b, 64, 1, 5))
