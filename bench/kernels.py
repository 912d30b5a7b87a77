"""Each kernel beside its own floor: bytes over the read or copy bandwidth, or FLOPs over the matmul rate, of this run.

python -m bench.kernels [--json PATH]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch

from bench import ceilings
from bench.llama_shape import HEADS, HIDDEN, INNER, VOCAB, contexts, rope_tables
from bench.timing import captured, replay_ms
from kernels.argmax import ArgmaxScratch, argmax
from kernels.decode_attention import DecodeScratch, decode_attention
from kernels.decode_plan import DecodePlan, decode_plan
from kernels.gated_gemm import gated_gemm
from kernels.pages import gather_page, scatter_page
from kernels.prefill_attention import PrefillTuning, prefill_attention, prefill_tiles
from kernels.rms_norm import rms_norm
from kernels.rope_kv_write import rope_kv_write
from kernels.sampling import SamplingRows, sample
from kernels.skinny_gemm import GemmShape, NormIn, NormOut, SplitSpace, skinny_gemm
from kernels.streamed_gemm import streamed_gemm
from kernels.swiglu import swiglu
from services.engine.backends.cuda.prefill_step import attend_whole
from services.engine.backends.cuda.recipe import recipe_for

BF16 = torch.bfloat16
TOKENS = 8192
COPIES = 6
"""Sets of buffers in rotation: more than L2 holds."""


@dataclass(frozen=True, slots=True)
class Case:
    """A kernel at one size: `launches` runs it `runs` times; its floor is the larger of bytes and FLOPs."""

    name: str
    launches: Callable[[], object]
    runs: int
    read_bytes: float = 0.0
    written_bytes: float = 0.0
    flops: float = 0.0

    def floor_us(self, ceiling: ceilings.Ceilings) -> float:
        """Return the floor of one run: pure reads at the read rate, anything with writes at the copy rate."""
        moved = self.read_bytes + self.written_bytes
        rate = ceiling.copy_tb_s if self.written_bytes > 0.2 * self.read_bytes else ceiling.read_tb_s
        return max(moved / rate / 1e6, self.flops / ceiling.matmul_tflop_s / 1e6)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=BF16)


def elementwise(device: torch.device) -> Iterator[Case]:
    """Norm, rope with its KV write, gated activation and the product in front of it at a prefill's size."""
    row = HIDDEN * 2 * TOKENS
    x, residual, out = (normal(TOKENS, HIDDEN) for _ in range(3))
    weight = normal(HIDDEN)
    yield Case("rms_norm", lambda: rms_norm(x, weight, out, 1e-5), 1, row, row)
    yield Case("rms_norm + residual", lambda: rms_norm(x, weight, out, 1e-5, residual=residual), 1, 2 * row, 2 * row)
    gate_up, inner = normal(TOKENS, 2 * INNER), normal(TOKENS, INNER)
    yield Case("swiglu", lambda: swiglu(gate_up, inner), 1, gate_up.nbytes, inner.nbytes)
    w = normal(2 * INNER, HIDDEN)
    flops = 2 * TOKENS * w.numel()
    yield Case("gate_up + swiglu, one kernel", lambda: gated_gemm(x, w, inner), 1, w.nbytes + row, inner.nbytes, flops)
    yield Case("gate_up, cuBLAS", lambda: torch.mm(x, w.t(), out=gate_up), 1, w.nbytes + row, gate_up.nbytes, flops)
    qkv, ctx = normal(TOKENS, HEADS.qkv_width), contexts([TOKENS], device, scattered=True)
    kv, rope = normal(ctx.num_slots + 1, 16, 128), rope_tables(device)
    positions = torch.arange(TOKENS, device=device, dtype=torch.int32)
    slots = ctx.slots.table[0, :TOKENS].contiguous()
    written = TOKENS * (HEADS.num_heads + 3 * HEADS.num_kv_heads) * HEADS.head_dim * 2
    yield Case("rope + KV write", lambda: rope_kv_write(qkv, kv, slots, positions, rope, HEADS), 1, qkv.nbytes, written)


def products(device: torch.device, rows: int) -> Iterator[Case]:
    """The four products of a decode layer as the recipe of `rows` runs them."""
    recipe = recipe_for(rows, HEADS.num_kv_heads, BF16, hopper=True)
    split = SplitSpace(torch.zeros(8 << 20, device=device), torch.zeros(4096, dtype=torch.int32, device=device))
    squares, norm = torch.ones(256, rows, device=device), normal(HIDDEN)
    for name, n, k, gated in (
        ("qkv", HEADS.qkv_width, HIDDEN, False), ("out", HIDDEN, HIDDEN, False),
        ("gate_up", INNER, HIDDEN, True), ("down", HIDDEN, INNER, False),
    ):  # fmt: skip
        shape = getattr(recipe, name)
        weights = [normal(2 * n if gated else n, k) for _ in range(COPIES)]
        x, out, scaled = normal(rows, k), normal(rows, n), normal(rows, n)
        edges: dict[str, object] = {"gated": gated, "split": split, "pdl": True}
        if name in ("out", "down"):
            edges |= {"residual": out, "norm_out": NormOut(norm, scaled, squares)}
        else:
            edges["norm_in"] = NormIn(squares, 64, 1e-5)
        gemm = skinny_gemm if isinstance(shape, GemmShape) else streamed_gemm
        yield Case(f"{name} B={rows} {type(shape).__name__}", partial(_each, gemm, weights, x, out, shape, edges),
                   COPIES, weights[0].nbytes, flops=2 * rows * weights[0].numel())  # fmt: skip


def _each(
    gemm: Callable[..., None], weights: list[torch.Tensor], x: torch.Tensor, out: torch.Tensor, shape: object,
    edges: dict[str, object],
) -> None:  # fmt: skip
    for w in weights:
        gemm(x, w, out, shape, **edges)


def attention(device: torch.device, name: str, lens: list[int], *, scattered: bool) -> Iterator[Case]:
    """Decode attention over layers in rotation."""
    rows, tokens = len(lens), sum(lens)
    recipe = recipe_for(rows, HEADS.num_kv_heads, BF16, hopper=True)
    layers = max(2, min(32, (400 << 20) // (tokens * 4096)))
    ctx = contexts(lens, device, scattered=scattered)
    kv = normal(layers, ctx.num_slots + 1, 16, 128)
    plan = DecodePlan.allocate(rows, recipe.block_tokens, recipe.target_items, device, recipe.min_split_blocks)
    scratch, rope = DecodeScratch.allocate(plan, HEADS), rope_tables(device)
    qkv, out = normal(rows, HEADS.qkv_width), normal(rows, HIDDEN)
    decode_plan(ctx.context_lens, ctx.slots.rows, plan)

    def launches() -> None:
        for layer in kv:
            decode_attention(qkv, layer, ctx.slots, ctx.context_lens, rope, HEADS, plan, scratch, out,
                             tuning=recipe.attention, pdl=True)  # fmt: skip

    yield Case(f"decode attention {name} {'scattered' if scattered else 'contiguous'}", launches, layers, tokens * 4096)


def prompts(device: torch.device, count: int, length: int) -> Iterator[Case]:
    """Prefill attention by cuDNN, which takes such prompts, and by the portable kernel."""
    lens = [length] * count
    ctx = contexts(lens, device, scattered=True)
    kv, q = normal(ctx.num_slots + 1, 16, 128), normal(count * length, HEADS.qkv_width)
    out = normal(count * length, HIDDEN)
    tuning = PrefillTuning()
    tiles = torch.tensor(prefill_tiles(lens, lens, tuning.block_queries), dtype=torch.int32, device=device)
    starts = torch.arange(0, count * length + 1, length, dtype=torch.int32, device=device)
    flops = count * 4 * HIDDEN * length * (length + 1) / 2
    yield Case(f"prefill attention {count} x {length} (cuDNN)", lambda: attend_whole(q, (count, length), HEADS), 1,
               flops=flops)  # fmt: skip
    yield Case(f"prefill attention {count} x {length} (Triton)",
               lambda: prefill_attention(q, kv, ctx.slots, tiles, starts, ctx.context_lens, HEADS, out, tuning=tuning),
               1, flops=flops)  # fmt: skip


def copies(device: torch.device) -> Iterator[Case]:
    """Slots to a 64 MiB transfer page and back, by number of programs."""
    n = (64 << 20) // (32 * 4096)
    kv, page = normal(32, 16 * n + 1, 16, 128), normal(32, n, 16, 128)
    slots = torch.randperm(16 * n, device=device)[:n].int()
    for programs in (8, 16, 32, 132):
        yield Case(f"gather page, {programs} programs", partial(gather_page, kv, slots, page, programs=programs), 1,
                   page.nbytes, page.nbytes)  # fmt: skip
    yield Case("scatter page, 16 programs", lambda: scatter_page(page, slots, kv), 1, page.nbytes, page.nbytes)


def choices(device: torch.device, rows: int) -> Iterator[Case]:
    """Greedy and random sampling over flat and over peaked logits."""
    out, scratch = torch.zeros(rows, device=device, dtype=torch.int32), ArgmaxScratch.allocate(rows, device)
    for kind, spread in (("flat", 1.0), ("peaked", 4.0)):
        logits = torch.randn(rows, VOCAB, device=device) * spread
        half = logits.to(BF16)
        if kind == "flat":
            yield Case(f"argmax B={rows}", partial(argmax, half, out, scratch), 1, half.nbytes)
        for what, given in (("top-p 0.9", (0, 0.9, 0.0)), ("top-k 50", (50, 1.0, 0.0)),
                            ("top-k 50, top-p 0.9", (50, 0.9, 0.0))):  # fmt: skip
            setting = sampling_rows(rows, device, *given)
            yield Case(f"{what} B={rows} {kind}", partial(sample, half, setting, out), 1, half.nbytes)


def sampling_rows(rows: int, device: torch.device, top_k: int, top_p: float, min_p: float) -> SamplingRows:
    def full(value: float, dtype: torch.dtype) -> torch.Tensor:
        return torch.full((rows,), value, dtype=dtype, device=device)

    each = torch.arange(rows, dtype=torch.int32, device=device)
    return SamplingRows(full(0.8, torch.float32), full(top_k, torch.int32), full(top_p, torch.float32),
                        full(min_p, torch.float32), each * 7919, each * 104729, each, each)  # fmt: skip


def cases(device: torch.device) -> Iterator[Case]:
    """All of them, one's memory given back before the next."""
    yield from elementwise(device)
    for rows in (1, 16, 32, 64):
        yield from products(device, rows)
    for name, lens in (("1 x 1k", [1024]), ("16 x 1k", [1024] * 16), ("64 x 1k", [1024] * 64),
                       ("256 x 1k", [1024] * 256), ("64 x 8k", [8000] * 64), ("1 x 64k", [65536]),
                       ("64k + 63 x 1k", [65536] + [1024] * 63)):  # fmt: skip
        yield from attention(device, name, lens, scattered=True)
        yield from attention(device, name, lens, scattered=False)
    yield from prompts(device, 8, 1024)
    yield from prompts(device, 1, 8192)
    yield from copies(device)
    for rows in (1, 256):
        yield from choices(device, rows)


def main() -> None:
    """Print the table; write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    device = torch.device("cuda")
    torch.manual_seed(0)
    ceiling = ceilings.measure(device)
    print(ceiling)
    results = []
    for case in cases(device):
        us = 1e3 * replay_ms(captured(case.launches)) / case.runs
        floor = case.floor_us(ceiling)
        results.append({"kernel": case.name, "us": us, "floor_us": floor})
        print(f"{case.name:48} {us:9.2f} us  floor {floor:9.2f}  {100 * floor / us:5.1f}%", flush=True)
    if args.json:
        args.json.write_text(json.dumps({"ceilings": asdict(ceiling), "kernels": results}, indent=1))


if __name__ == "__main__":
    main()
