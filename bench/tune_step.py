"""Chooses a decode recipe on the card: field by field, each candidate inside the whole step it is meant for.

    python -m bench.tune_step [--rows 1 16 24 64 256] [--fields attention out]

A kernel alone in a chain of itself ranks otherwise than between its neighbours, whose ends it overlaps.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace

import torch

from bench import ceilings, decode_step
from bench.llama_shape import HEADS, HIDDEN, INNER, VOCAB, contexts, random_decoder, random_pool, rope_tables
from bench.precompile import compile_all
from kernels.decode_attention import AttentionTuning
from kernels.skinny_gemm import GemmShape
from kernels.streamed_gemm import StreamShape
from services.engine.backends.cuda.decode_step import DecodeBuffers, DecodeStep
from services.engine.backends.cuda.recipe import DecodeRecipe, Product, SplitDepth, recipe_for
from services.engine.models.layers import Attention, Block, Decoder, GatedMlp, Linear

S, G = StreamShape, GemmShape
CONTEXT = 1090
"""What `bench.engine`'s steps over prompts of 1024 tokens see on average."""
SHAPES: dict[int, dict[str, list[Product]]] = {
    16: {
        "qkv": [G(64, 16, 128, 1, 6), S(64, 16, 128, 1, 5), S(64, 16, 128, 1, 8), S(64, 16, 64, 1, 10),
                S(64, 16, 128, 2, 4), S(128, 16, 64, 2, 5)],
        "out": [G(32, 16, 256, 1, 5), S(64, 16, 128, 2, 3), S(64, 16, 128, 2, 5), S(64, 16, 64, 2, 8),
                S(64, 16, 128, 4, 3)],
        "gate_up": [G(64, 16, 128, 1, 3), S(64, 16, 128, 1, 3), S(64, 16, 64, 1, 4), S(64, 16, 64, 1, 6),
                    S(128, 16, 64, 1, 3), S(128, 16, 64, 1, 6)],
        "down": [G(64, 16, 128, 2, 6), S(64, 16, 128, 2, 3), S(64, 16, 128, 2, 5), S(64, 16, 64, 2, 10),
                 S(64, 16, 128, 4, 3)],
    },
    32: {
        "qkv": [G(64, 32, 128, 1, 4), S(64, 32, 128, 1, 6), S(64, 32, 128, 1, 8), S(64, 32, 128, 2, 4)],
        "out": [G(64, 32, 128, 2, 4), S(64, 32, 128, 2, 3), S(64, 32, 128, 2, 5), S(64, 32, 64, 2, 8)],
        "gate_up": [S(128, 32, 64, 1, 3), S(64, 32, 128, 1, 2), S(64, 32, 128, 1, 3), S(64, 32, 64, 1, 5)],
        "down": [G(64, 32, 128, 2, 4), G(64, 32, 128, 2, 6), S(64, 32, 128, 2, 3), S(64, 32, 128, 2, 5),
                 S(64, 32, 128, 4, 3)],
    },
    64: {
        "qkv": [G(64, 64, 128, 1, 4), S(64, 64, 128, 1, 3), S(64, 64, 64, 1, 6), S(128, 64, 64, 2, 4),
                S(128, 64, 64, 3, 3)],
        "out": [G(64, 64, 128, 2, 4), S(64, 64, 128, 2, 3), S(64, 64, 64, 2, 6), S(128, 64, 64, 4, 4)],
        "gate_up": [G(64, 64, 64, 1, 5), S(64, 64, 64, 1, 4), S(128, 64, 64, 1, 3), S(128, 64, 64, 1, 5),
                    S(64, 64, 128, 1, 2)],
        "down": [G(64, 64, 128, 2, 6), S(64, 64, 128, 2, 3), S(64, 64, 64, 2, 6), S(128, 64, 64, 4, 4),
                 S(64, 64, 128, 4, 3)],
    },
    256: {"out": [None, SplitDepth(2)], "down": [None, SplitDepth(2), SplitDepth(4)]},
}  # fmt: skip
ATTENTION = {
    16: [(64, 3, 4, 33, 2), (64, 3, 4, 33, 1), (32, 4, 4, 33, 2), (32, 4, 4, 33, 4), (128, 3, 4, 33, 8),
         (64, 4, 4, 264, 16), (32, 4, 4, 264, 32)],
    32: [(128, 3, 4, 33, 8), (64, 3, 4, 264, 16), (64, 4, 4, 264, 16), (32, 4, 4, 264, 32), (32, 5, 4, 264, 16),
         (128, 2, 4, 264, 8), (64, 3, 4, 66, 8), (32, 4, 4, 66, 8)],
    64: [(32, 4, 4, 132, 32), (32, 4, 4, 264, 32), (128, 2, 4, 264, 8), (64, 3, 4, 264, 16), (32, 3, 4, 264, 32),
         (32, 4, 2, 264, 32), (64, 4, 4, 264, 16)],
    256: [(32, 4, 1, 264, 32), (64, 3, 4, 264, 16), (32, 4, 4, 264, 32), (128, 2, 4, 264, 8), (32, 3, 4, 264, 32),
          (32, 4, 2, 264, 32), (32, 3, 2, 264, 32), (64, 2, 2, 264, 16), (64, 3, 2, 264, 16), (128, 2, 8, 264, 8),
          (16, 6, 2, 264, 64)],
}  # fmt: skip
"""Tokens a block, stages, warps, items aimed at, blocks of the smallest split."""


def variants(rows: int, base: DecodeRecipe, field: str) -> Iterator[DecodeRecipe]:
    group = next(group for group in ATTENTION if group >= min(rows, 256))
    if field == "attention":
        for block, stages, warps, target, least in ATTENTION[group]:
            yield replace(base, attention=AttentionTuning(stages, warps, 8), block_tokens=block, target_items=target,
                          min_split_blocks=least)  # fmt: skip
        return
    for shape in SHAPES.get(group, {}).get(field, []):
        yield replace(base, **{field: shape})  # type: ignore[arg-type] # the fields of products alone


def compile_step(candidate: tuple[int, DecodeRecipe], device: torch.device) -> None:
    """Compile one layer's kernels of a recipe."""
    rows, recipe = candidate

    def empty(n: int, k: int) -> Linear:
        return Linear(torch.empty(n, k, dtype=torch.bfloat16))

    norm = torch.empty(HIDDEN, dtype=torch.bfloat16)
    block = Block(norm, Attention(0, empty(HEADS.qkv_width, HIDDEN), empty(HIDDEN, HIDDEN)), norm,
                  GatedMlp(empty(2 * INNER, HIDDEN), empty(HIDDEN, INNER)))  # fmt: skip
    decoder = Decoder(empty(VOCAB, HIDDEN).weight, [block, block], norm, empty(HEADS.qkv_width, HIDDEN).weight, 1e-5)
    ctx = contexts([128] * rows, device, scattered=False)
    pool = torch.empty(2, 129, 16, 128, dtype=torch.bfloat16)
    recipe = replace(recipe, head=recipe.qkv)
    buffers = DecodeBuffers(decoder, HEADS, rows, HEADS.qkv_width)
    step = DecodeStep(decoder, HEADS, rope_tables(device), pool, buffers, rows, recipe)
    step(torch.zeros(rows, dtype=torch.int32), ctx.context_lens, ctx.slots)


def main() -> None:
    """Print each candidate's step time, best first, and the recipe that came out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 16, 24, 64, 256])
    parser.add_argument("--fields", nargs="*", default=["attention", "out", "down", "qkv", "gate_up"])
    args = parser.parse_args()
    fields = args.fields
    todo = []
    for rows in args.rows:
        base = recipe_for(rows, HEADS.num_kv_heads, torch.bfloat16, hopper=True)
        todo += [(rows, v) for field in fields for v in variants(rows, base, field)]
    compile_all(compile_step, todo)
    device = torch.device("cuda")
    print(ceilings.measure(device))
    decoder, rope = random_decoder(device), rope_tables(device)
    for rows in args.rows:
        pool = random_pool(contexts([CONTEXT] * rows, device, scattered=False).num_slots, device)
        best = recipe_for(rows, HEADS.num_kv_heads, torch.bfloat16, hopper=True)
        for field in fields:
            times: list[tuple[float, DecodeRecipe]] = []
            candidates = list(variants(rows, best, field))
            for recipe in candidates + candidates:  # in turns: a card that heats up slows all of them
                try:
                    ms, _ = decode_step.time_step(decoder, rope, rows, CONTEXT, pool, recipe, scattered=False)
                except Exception as error:  # noqa: BLE001 - too much shared memory, for one
                    print("fails:", field, getattr(recipe, field), str(error)[:80])
                else:
                    times.append((ms, recipe))
            if not times:
                continue
            results = sorted(((max(ms for ms, r in times if r is each), each) for each in candidates
                              if any(r is each for _, r in times)), key=lambda result: result[0])  # fmt: skip
            best = results[0][1]
            for slower, recipe in results:
                fast = min(ms for ms, r in times if r is recipe)
                cut = (
                    (recipe.block_tokens, recipe.target_items, recipe.min_split_blocks) if field == "attention" else ""
                )
                print(f"B={rows:<3} {field:9} {fast:.3f} {slower:.3f} ms {getattr(recipe, field)} {cut}", flush=True)
        print(f"B={rows} best {best}", flush=True)


if __name__ == "__main__":
    main()
