"""Times every candidate shape of a kernel on the card, best first; the recipes in the engine come from here.

    python -m bench.sweep gemm|attention|prefill [--rows 16 64]
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from itertools import product

import torch

from bench.llama_shape import HEADS, HIDDEN, INNER, contexts, rope_tables
from bench.precompile import compile_all
from bench.timing import call_ms, captured, replay_ms
from kernels.decode_attention import AttentionTuning, DecodeScratch, decode_attention
from kernels.decode_plan import DecodePlan, decode_plan
from kernels.prefill_attention import PrefillTuning, prefill_attention, prefill_tiles
from kernels.skinny_gemm import GemmShape, NormIn, NormOut, SplitSpace, skinny_gemm

BF16 = torch.bfloat16
COPIES = 6  # weights in rotation: more than L2 holds


@dataclass(frozen=True, slots=True)
class Product:
    name: str
    n: int
    k: int
    gated: bool = False
    to_residual: bool = False

    @property
    def weight_bytes(self) -> int:
        return self.n * self.k * 2 * (2 if self.gated else 1)


PRODUCTS = [
    Product("qkv", HEADS.qkv_width, HIDDEN),
    Product("o", HIDDEN, HIDDEN, to_residual=True),
    Product("gate_up", INNER, HIDDEN, gated=True),
    Product("down", HIDDEN, INNER, to_residual=True),
]


def gemm_shapes(product: Product, rows: int) -> list[GemmShape]:
    block_b = max(16, 1 << (min(rows, 256) - 1).bit_length())
    shapes = []
    for block_n, block_k, split, budget, warps in product_of(rows):
        tile = 2 * block_k * (block_n * (2 if product.gated else 1) + block_b)
        stages = min(budget // tile + 1, 7)
        ctas = -(-product.n // block_n) * split
        if stages < 3 or (product.gated and split > 1) or not 90 <= ctas <= 800:
            continue
        if product.k % (block_k * split) or block_n * block_b * (2 if product.gated else 1) > 128 * 256:
            continue
        shapes.append(GemmShape(block_n, block_b, block_k, split, stages, warps))
    return sorted(set(shapes), key=repr)


def product_of(rows: int):  # noqa: ANN201
    if rows <= 16:
        return product([32, 64, 128], [64, 128, 256], [1, 2, 4], [64 << 10, 100 << 10], [4])
    if rows <= 64:
        return product([64, 128], [64, 128], [1, 2, 3, 4, 8], [72 << 10, 108 << 10], [4, 8])
    return product([64, 128], [64], [1, 2, 3, 4], [108 << 10, 190 << 10], [4, 8])


def launch_gemm(candidate: tuple[Product, int, GemmShape, bool], device: torch.device, copies: int = 1, buffers=None):  # noqa: ANN001, ANN201
    item, rows, shape, pdl = candidate
    x, weights, out, scaled, squares, norm, split = buffers or gemm_buffers(item, rows, device, copies)
    norm_in = None if item.to_residual else NormIn(squares, 64, 1e-5)
    norm_out = NormOut(norm, scaled, squares) if item.to_residual else None
    for w in weights:
        skinny_gemm(x, w, out, shape, gated=item.gated, residual=out if item.to_residual else None, norm_in=norm_in,
                    norm_out=norm_out, split=split, pdl=pdl)  # fmt: skip


def gemm_buffers(item: Product, rows: int, device: torch.device, copies: int):  # noqa: ANN201
    width = item.n * (2 if item.gated else 1)
    make = torch.empty if device.type == "cpu" else torch.randn
    return (
        make(rows, item.k, device=device, dtype=BF16), [make(width, item.k, device=device, dtype=BF16) for _ in range(copies)],
        torch.zeros(rows, item.n, device=device, dtype=BF16), torch.zeros(rows, item.n, device=device, dtype=BF16),
        torch.ones(256, rows, device=device), torch.ones(item.n, device=device, dtype=BF16),
        SplitSpace(torch.zeros(16 << 20, device=device), torch.zeros(8192, dtype=torch.int32, device=device)),
    )  # fmt: skip


def sweep_gemm(all_rows: list[int], device: torch.device) -> None:
    candidates = [(p, rows, s, True) for rows in all_rows for p in PRODUCTS for s in gemm_shapes(p, rows)]
    compile_all(launch_gemm, candidates)
    for rows, item in product(all_rows, PRODUCTS):
        buffers = gemm_buffers(item, rows, device, COPIES)
        x, weights = buffers[0], buffers[1]
        library = torch.zeros(rows, weights[0].shape[0], device=device, dtype=BF16)
        graph = captured(lambda: [torch.mm(x, w.t(), out=library) for w in weights])  # noqa: B023
        results = [(replay_ms(graph) / COPIES, "cuBLAS")]
        for candidate in candidates:
            if candidate[0] is not item or candidate[1] != rows:
                continue
            try:
                graph = captured(lambda: launch_gemm(candidate, device, buffers=buffers))  # noqa: B023
                results.append((replay_ms(graph) / COPIES, candidate[2]))
            except Exception as error:  # noqa: BLE001 - too much shared memory, for one
                print("fails:", candidate[2], str(error)[:80])
        results.sort(key=lambda r: r[0])
        shown = results[:6] + [r for r in results[6:] if r[1] == "cuBLAS"]
        for ms, what in shown:
            rate = item.weight_bytes / ms / 1e9
            flops = 2 * rows * item.weight_bytes / 2 / ms / 1e9
            print(f"{item.name:8} B={rows:<4}{1e3 * ms:8.2f} us {rate:6.2f} TB/s {flops:5.0f} TF  {short(what)}")


def short(what: GemmShape | str, pdl: bool = True) -> str:
    if isinstance(what, str):
        return what
    return (f"n{what.block_n} b{what.block_b} k{what.block_k} split{what.split_k} st{what.stages} w{what.warps}"
            f"{' tma' if what.tma else ''}{' early' if what.early else ''}{' pdl' if pdl else ''}")  # fmt: skip


def sweep_boundary(device: torch.device) -> None:
    """Time chains of tiny kernels: what a launch costs inside a graph, with and without dependent launch."""
    from kernels.rms_norm import rms_norm

    x, w = torch.randn(1, 4096, device=device, dtype=BF16), torch.ones(4096, device=device, dtype=BF16)
    for pdl in (False, True):
        graph = captured(lambda: [rms_norm(x, w, x, 1e-5, pdl=pdl) for _ in range(100)])  # noqa: B023
        print(f"boundary: {10 * replay_ms(graph):6.2f} us a norm of one row, dependent launch {pdl}")


ATTENTION = [(64, 3, 4), (64, 4, 4), (32, 4, 4), (32, 6, 4), (128, 3, 4), (64, 4, 2)]
ATTENTION_FLAGS = [(False,), (True,)]
WORKS = [
    ("B=1", [1024], [(16, 1), (32, 1), (8, 1)]),
    ("B=16", [1024] * 16, [(64, 1), (128, 1), (33, 1), (16, 1)]),
    ("B=64", [1024] * 64, [(64, 1), (128, 1), (256, 1)]),
    ("B=256", [1024] * 256, [(256, 1), (512, 1)]),
    ("64x8k", [8000] * 64, [(128, 1), (256, 1), (512, 1)]),
    ("skew", [65536] + [1024] * 63, [(128, 1), (256, 1), (512, 1)]),
]  # fmt: skip
ATTENTION_LAYERS = 3


def launch_attention(candidate, device, work=None, lens=None, kv=None, ctx=None, buffers=None) -> None:  # noqa: ANN001
    block, stages, warps, target, minimum, pdl = candidate
    lens = lens or [1024] * 64
    if device.type == "cpu":
        ctx = contexts([128] * len(lens), device, scattered=False)
        kv = [torch.empty(8, 16, 128, dtype=BF16)]
    qkv, out, rope = buffers or attention_buffers(len(lens), device)
    plan = DecodePlan.allocate(len(lens), block, target, device, minimum)
    scratch = DecodeScratch.allocate(plan, HEADS)
    decode_plan(ctx.context_lens, plan)

    def launches() -> None:
        for layer in kv:
            decode_attention(qkv, layer, ctx.slots, ctx.context_lens, rope, HEADS, plan, scratch, out,
                             tuning=AttentionTuning(stages, warps, 8), pdl=pdl)  # fmt: skip

    if device.type == "cpu":
        launches()
    else:
        work.append(replay_ms(captured(launches)) / len(kv))


def attention_buffers(rows: int, device: torch.device):  # noqa: ANN201
    qkv = torch.zeros(rows, HEADS.qkv_width, device=device, dtype=BF16).normal_()
    return qkv, torch.zeros(rows, HIDDEN, device=device, dtype=BF16), rope_tables(device)


def sweep_attention(device: torch.device) -> None:
    for rows in (1, 64):
        compile_all(_compile_attention, [(rows, (*a, 256, 1, *f)) for a, f in product(ATTENTION, ATTENTION_FLAGS)])
    for name, lens, plans in WORKS:
        tokens = sum(lens)
        layers = max(ATTENTION_LAYERS, min(32, (600 << 20) // (tokens * 4096)))
        buffers = attention_buffers(len(lens), device)
        for scattered in (True, False):
            ctx = contexts(lens, device, scattered=scattered)
            kv = torch.empty(layers, ctx.num_slots + 1, 16, 128, device=device, dtype=BF16).normal_()
            kv[:, -1] = 0
            results = []
            for a, plan, flags in product(ATTENTION, plans, ATTENTION_FLAGS):
                work: list[float] = []
                try:
                    launch_attention((*a, *plan, *flags), device, work, lens, kv, ctx, buffers)
                    results.append((work[0], f"block {a[0]} st {a[1]} w {a[2]} target {plan[0]} min {plan[1]} pdl {flags[0]}"))
                except Exception as error:  # noqa: BLE001
                    print("fails:", a, str(error)[:80])
            results.sort()
            for ms, what in results[: 6 if scattered else 1]:
                print(f"{name:6} {'scattered ' if scattered else 'contiguous'} {1e3 * ms:8.2f} us {tokens * 4096 / ms / 1e9:5.2f} TB/s  {what}")
            del kv


def _compile_attention(candidate, device) -> None:  # noqa: ANN001
    rows, what = candidate
    launch_attention(what, device, lens=[1024] * rows)


PREFILL = [(128, 64, 3, 8), (128, 64, 2, 8), (128, 64, 4, 8), (128, 128, 2, 8), (64, 64, 3, 4), (128, 128, 3, 8), (128, 32, 4, 8)]


def launch_prefill(candidate, device, lens=None, kv=None, ctx=None, q=None, out=None) -> None:  # noqa: ANN001
    lens = lens or [1024]
    if device.type == "cpu":
        ctx = contexts(lens, device, scattered=False)
        kv = torch.empty(8, 16, 128, dtype=BF16)
        q, out = torch.empty(sum(lens), HEADS.qkv_width, dtype=BF16), torch.empty(sum(lens), HIDDEN, dtype=BF16)
    tiles = torch.tensor(prefill_tiles(lens, lens, candidate[0]), dtype=torch.int32).to(device)
    starts = torch.tensor([0, *lens], dtype=torch.int32).cumsum(0).to(torch.int32).to(device)

    def call() -> None:
        prefill_attention(q, kv, ctx.slots, tiles, starts, ctx.context_lens, HEADS, out, tuning=PrefillTuning(*candidate))

    if device.type == "cpu":
        call()
        return
    ms = call_ms(call)
    flops = sum(4 * HIDDEN * n * (n + 1) / 2 for n in lens)
    print(f"prefill {len(lens)} x {lens[0]}: {1e3 * ms:8.1f} us {flops / ms / 1e9:5.0f} TFLOP/s Triton {candidate}")


def sweep_prefill(device: torch.device) -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    compile_all(launch_prefill, PREFILL)
    for lens in ([1024] * 8, [8192]):
        total = sum(lens)
        qkv = torch.randn(total, HEADS.qkv_width, device=device, dtype=BF16)
        ctx = contexts(lens, device, scattered=True)
        kv = torch.randn(ctx.num_slots + 1, 16, 128, device=device, dtype=BF16)
        out = torch.zeros(total, HIDDEN, device=device, dtype=BF16)
        for candidate in PREFILL:
            try:
                launch_prefill(candidate, device, lens, kv, ctx, qkv, out)
            except Exception as error:  # noqa: BLE001
                print("fails:", candidate, str(error)[:80])
        x = qkv.view(len(lens), lens[0], -1, HEADS.head_dim).transpose(1, 2)
        q, k, v = x[:, :32], x[:, 32:40], x[:, 40:]
        with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
            ms = call_ms(lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True))  # noqa: B023
        flops = sum(4 * HIDDEN * n * (n + 1) / 2 for n in lens)
        print(f"prefill {len(lens)} x {lens[0]}: {1e3 * ms:8.1f} us {flops / ms / 1e9:5.0f} TFLOP/s cuDNN")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["gemm", "boundary", "attention", "prefill"])
    parser.add_argument("--rows", type=int, nargs="*", default=[16, 64])
    args = parser.parse_args()
    device = torch.device("cuda")
    torch.manual_seed(0)
    if args.what == "gemm":
        sweep_gemm(args.rows, device)
    elif args.what == "boundary":
        sweep_boundary(device)
    elif args.what == "attention":
        sweep_attention(device)
    else:
        sweep_prefill(device)


if __name__ == "__main__":
    main()
