"""Chooses a decode recipe on the card: field by field, each candidate inside the whole step it is meant for.

    python -m bench.tune_step [--rows 1 16 64]

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
from services.engine.backends.cuda.recipe import DecodeRecipe, recipe_for
from services.engine.models.layers import Attention, Block, Decoder, GatedMlp, Linear

S, G = StreamShape, GemmShape
SHAPES = {
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
    64: {
        "qkv": [G(64, 64, 128, 1, 4), S(64, 64, 128, 1, 3), S(64, 64, 64, 1, 6), S(128, 64, 64, 2, 4),
                S(128, 64, 64, 3, 3)],
        "out": [G(64, 64, 128, 2, 4), S(64, 64, 128, 2, 3), S(64, 64, 64, 2, 6), S(128, 64, 64, 4, 4)],
        "gate_up": [G(64, 64, 64, 1, 5), S(64, 64, 64, 1, 4), S(128, 64, 64, 1, 3), S(128, 64, 64, 1, 5),
                    S(64, 64, 128, 1, 2)],
        "down": [G(64, 64, 128, 2, 6), S(64, 64, 128, 2, 3), S(64, 64, 64, 2, 6), S(128, 64, 64, 4, 4),
                 S(64, 64, 128, 4, 3)],
    },
}  # fmt: skip
ATTENTION = [(128, 3, 4, 16), (64, 3, 4, 8), (32, 4, 4, 32), (64, 3, 4, 32), (32, 4, 4, 64)]


def variants(rows: int, base: DecodeRecipe, field: str) -> Iterator[DecodeRecipe]:
    group = 16 if rows <= 16 else 64
    if field == "attention":
        for block, stages, warps, target in ATTENTION:
            yield replace(base, attention=AttentionTuning(stages, warps, 8), block_tokens=block, target_items=target,
                          min_split_blocks=1)  # fmt: skip
        return
    for shape in SHAPES[group][field]:
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
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 16, 64])
    args = parser.parse_args()
    fields = ["out", "down", "qkv", "gate_up", "attention"]
    todo = []
    for rows in args.rows:
        base = recipe_for(rows, HEADS.num_kv_heads, torch.bfloat16, hopper=True)
        todo += [(rows, v) for field in fields for v in variants(rows, base, field)]
    compile_all(compile_step, todo)
    device = torch.device("cuda")
    print(ceilings.measure(device))
    decoder, rope = random_decoder(device), rope_tables(device)
    for rows in args.rows:
        pool = random_pool(contexts([1024] * rows, device, scattered=False).num_slots, device)
        best = recipe_for(rows, HEADS.num_kv_heads, torch.bfloat16, hopper=True)
        for field in fields:
            results = []
            for recipe in variants(rows, best, field):
                try:
                    results.append((decode_step.time_step(decoder, rope, rows, 1024, pool, recipe)[0], recipe))
                except Exception as error:  # noqa: BLE001 - too much shared memory, for one
                    print("fails:", field, getattr(recipe, field), str(error)[:80])
            results.sort(key=lambda r: r[0])
            best = results[0][1]
            for ms, recipe in results:
                cut = (recipe.block_tokens, recipe.target_items) if field == "attention" else ""
                print(f"B={rows:<3} {field:9} {ms:.3f} ms {getattr(recipe, field)} {cut}", flush=True)
        print(f"B={rows} best {results[0][0]:.3f} ms: {best}", flush=True)


if __name__ == "__main__":
    main()
