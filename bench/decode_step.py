"""Whole decode steps of the Llama-3.1-8B shape as CUDA graphs, ids fed back on the device, beside their floor and bar.

python -m bench.decode_step [--rows 1 16 64 256] [--json PATH]
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import torch

from bench import ceilings
from bench.llama_shape import HEADS, LAYERS, VOCAB, contexts, random_decoder, random_pool, rope_tables
from bench.timing import captured, replay_ms
from kernels.argmax import ArgmaxScratch, argmax
from kernels.layout import Rope
from services.engine.backends.cuda.decode_step import DecodeBuffers, DecodeStep
from services.engine.backends.cuda.recipe import DecodeRecipe, recipe_for
from services.engine.models.layers import Decoder, GatedMlp

BARS_MS = {(1, 1024): 4.2, (16, 1024): 4.9, (64, 1024): 6.8, (64, 8000): 20.5, (256, 1024): 16.0}
READ_TB_S = 4.45


def floor_ms(rows: int, context: int, decoder: Decoder) -> float:
    """Return the time to read all weights and the context's KV once, at the card's read bandwidth."""
    weights = sum(
        x.numel() * 2
        for b in decoder.blocks
        if isinstance(b.mlp, GatedMlp)
        for x in (b.attention.qkv.weight, b.attention.out.weight, b.mlp.gate_up.weight, b.mlp.down.weight)
    )
    weights += decoder.head.numel() * 2
    kv = rows * context * len(decoder.blocks) * 2 * HEADS.num_kv_heads * HEADS.head_dim * 2
    return (weights + kv) / READ_TB_S / 1e9


def time_step(  # noqa: PLR0913 - a step's parts
    decoder: Decoder, rope: Rope, rows: int, context: int, pool: torch.Tensor, recipe: DecodeRecipe,
    *, scattered: bool = True, profile: bool = False,
) -> tuple[float, torch.Tensor]:  # fmt: skip
    """Return milliseconds a step (forward, greedy argmax, its ids the next step's input) and the last step's logits."""
    device = pool.device
    ctx = contexts([context] * rows, device, scattered=scattered)
    step = DecodeStep(decoder, HEADS, rope, pool, DecodeBuffers(decoder, HEADS, rows, VOCAB), rows, recipe)
    ids = torch.zeros(rows, dtype=torch.int32, device=device)
    scratch = ArgmaxScratch.allocate(rows, device)

    def launches() -> None:
        logits = step(ids, ctx.context_lens, ctx.slots)
        argmax(logits, ids, scratch, pdl=recipe.pdl)

    logits = step.logits
    graph = captured(launches)
    ms = replay_ms(graph)
    if profile:
        kernel_times(graph, ms)
    return ms, logits.clone()


def kernel_times(graph: torch.cuda.CUDAGraph, ms: float) -> None:
    """Print where a replay's time goes: by kernel, how often it runs and how long."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as run:
        for _ in range(3):
            graph.replay()
        torch.cuda.synchronize()
    total = 0.0
    for row in sorted(run.key_averages(), key=lambda r: -r.device_time_total):
        total += row.device_time_total / 3e3
        print(f"    {row.count // 3:4} x {row.device_time_total / row.count:8.2f} us  {row.key[:90]}")
    print(f"    kernels {total:.3f} ms of {ms:.3f} ms", flush=True)


def variants(rows: int, recipe: DecodeRecipe) -> list[tuple[str, DecodeRecipe]]:
    """Return the recipe and what it is set beside."""
    return [
        ("as shipped", recipe),
        ("no dependent launch", replace(recipe, pdl=False)),
        ("portable products", recipe_for(rows, HEADS.num_kv_heads, torch.bfloat16, hopper=False)),
        ("cuBLAS", replace(recipe, qkv=None, out=None, gate_up=None, down=None, head=None)),
    ]


def main() -> None:
    """Print the table; write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 16, 64, 256])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--profile", action="store_true", help="print the time of each kernel")
    args = parser.parse_args()
    device = torch.device("cuda")
    torch.manual_seed(0)
    print(ceilings.measure(device))
    decoder, rope = random_decoder(device), rope_tables(device)
    results = []
    for (rows, context), bar in BARS_MS.items():
        if rows not in args.rows:
            continue
        pool = random_pool(contexts([context] * rows, device, scattered=False).num_slots, device)
        recipe = recipe_for(rows, HEADS.num_kv_heads, torch.bfloat16, hopper=True)
        first = None
        for name, variant in variants(rows, recipe):
            ms, logits = time_step(decoder, rope, rows, context, pool, variant, profile=args.profile)
            first = logits if first is None else first
            off = (first - logits).float().norm() / first.float().norm()
            floor = floor_ms(rows, context, decoder)
            results.append({"rows": rows, "context": context, "variant": name, "ms": ms, "floor_ms": floor,
                            "bar_ms": bar})  # fmt: skip
            print(f"B={rows:<4} ctx {context:<5} {ms:7.3f} ms  floor {floor:6.2f}  bar {bar:5.1f}  "
                  f"{100 * floor / ms:5.1f}% of floor  {name} (off by {off:.0e})", flush=True)  # fmt: skip
        del pool
    if args.json:
        args.json.write_text(json.dumps({"layers": LAYERS, "results": results}, indent=1))


if __name__ == "__main__":
    main()
