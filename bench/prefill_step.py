"""Whole prefills of the Llama-3.1-8B shape, greedy first token included, beside their floor and bar.

python -m bench.prefill_step [--profile]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch

from bench import ceilings
from bench.llama_shape import HEADS, contexts, random_decoder, random_pool, rope_tables
from bench.timing import call_ms
from kernels.prefill_attention import PrefillTuning, prefill_tiles
from services.engine.backends.cuda.prefill_step import PrefillBatch, PrefillStep

BARS = {(8, 1024): 46_000, (1, 8192): 40_000}
FLOORS = {(8, 1024): 55_000, (1, 8192): 49_500}
WAYS = (
    ("cuDNN, gate_up with its activation", "cuDNN", True),
    ("cuDNN, gate_up and activation apart", "cuDNN", False),
    ("Triton, gate_up with its activation", "Triton", True),
)
TUNING = PrefillTuning(128, 64, 3, 8)


def whole_prompts(prompts: int, length: int, device: torch.device) -> tuple[PrefillBatch, int]:
    """Return a batch of `prompts` whole prompts over scattered slots, and the number of slots."""
    ctx = contexts([length] * prompts, device, scattered=True)
    lens = [length] * prompts

    def ints(values: object) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    last = [(row, length - 1) for row in range(prompts)]
    batch = PrefillBatch(
        ids=torch.randint(0, 128_000, (prompts * length,), device=device, dtype=torch.int32),
        positions=torch.arange(length, device=device, dtype=torch.int32).repeat(prompts),
        slots=ctx.slots.table[:, :length].reshape(-1).contiguous(),
        query_start=ints([length * i for i in range(prompts + 1)]), context_lens=ctx.context_lens,
        tiles=ints(prefill_tiles(lens, lens, TUNING.block_queries)), last_tiles=ints(last), table=ctx.slots,
        logits_tokens=torch.tensor([length * (i + 1) - 1 for i in range(prompts)], device=device),
        whole=(prompts, length),
    )  # fmt: skip
    return batch, ctx.num_slots


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", action="store_true", help="print the time of each kernel")
    args = parser.parse_args()
    device = torch.device("cuda")
    torch.manual_seed(0)
    print(ceilings.measure(device))
    decoder, rope = random_decoder(device), rope_tables(device)
    for (prompts, length), bar in BARS.items():
        batch, num_slots = whole_prompts(prompts, length, device)
        pool = random_pool(num_slots, device)
        logits = {}
        for name, attention, one_kernel in WAYS:
            step = PrefillStep(decoder, HEADS, rope, pool, TUNING, one_kernel=one_kernel)
            if attention == "cuDNN":
                step.plan([(prompts, length)])
            ms = call_ms(lambda: step(batch).argmax(-1), calls=4, rounds=5)  # noqa: B023
            logits[name] = step(batch).float()
            rate = prompts * length / ms * 1e3
            print(f"prefill {prompts} x {length} {name:40} {ms:8.2f} ms {rate:8.0f} tok/s  bar {bar}  "
                  f"floor {FLOORS[prompts, length]}", flush=True)  # fmt: skip
            if args.profile:
                profile(lambda: step(batch))  # noqa: B023
        first = next(iter(logits.values()))
        far = [f"{(each - first).norm() / first.norm():.1e}" for each in logits.values()]
        print(f"    the logits' relative differences from the first: {', '.join(far)}", flush=True)


def profile(call: Callable[[], object]) -> None:
    """Print where the time goes, by kernel."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as run:
        call()
        torch.cuda.synchronize()
    for row in sorted(run.key_averages(), key=lambda r: -r.device_time_total)[:12]:
        if row.device_time_total:
            each, total = row.device_time_total / row.count, row.device_time_total / 1e3
            print(f"    {row.count:4} x {each:8.2f} us = {total:7.2f} ms  {row.key[:80]}")


if __name__ == "__main__":
    main()
