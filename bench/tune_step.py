"""Chooses a decode recipe on the card: field by field, each candidate inside the step it is meant for.

    python -m bench.tune_step [--ranks 1] [--rows 1 16 24 64 256] [--fields attention down] [--seconds 60]

A kernel alone in a chain of itself ranks otherwise than between its neighbours, whose ends it overlaps: candidates run
in steps of 8 layers. Every shape that fills 64 multiprocessors or more and their shared memory is tried once; the best
ones are then set beside the present choice for longer, in turns. `--ranks 2` takes what one of two ranks holds of the
model, without the sums.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch

from bench import ceilings
from bench.llama_shape import HIDDEN, INNER, contexts, heads_of, random_decoder, random_pool, rope_tables
from bench.precompile import compile_all
from bench.timing import captured, replay_ms
from kernels.decode_attention import AttentionTuning
from kernels.skinny_gemm import GemmShape
from kernels.streamed_gemm import StreamShape
from services.engine.backends.cuda.decode_step import DecodeBuffers, DecodeStep
from services.engine.backends.cuda.recipe import DecodeRecipe, Product, SplitDepth, recipe_for
from services.engine.models.layers import Attention, Block, Decoder, GatedMlp, Linear

CONTEXT = 1090
"""What `bench.engine`'s steps over prompts of 1024 tokens see on average."""
LAYERS = 8
SHARED_BYTES = 215_000
FINALISTS = 5


@dataclass(frozen=True, slots=True)
class Case:
    """A step to choose for: rows, of what one of `ranks` holds."""

    rows: int
    ranks: int

    @property
    def base(self) -> DecodeRecipe:
        """The present choice."""
        heads = heads_of(self.ranks).num_kv_heads
        return recipe_for(self.rows, heads, torch.bfloat16, hopper=True, num_ranks=self.ranks)

    @property
    def block_b(self) -> int:
        """Tokens of a product's tile."""
        return max(16, 1 << (self.rows - 1).bit_length())

    def width_and_depth(self, field: str) -> tuple[int, int]:
        """Outputs and depth of a product; gate_up's are counted once, it is gated."""
        heads, inner = heads_of(self.ranks), INNER // self.ranks
        return {
            "qkv": (heads.qkv_width, HIDDEN), "out": (HIDDEN, heads.num_heads * heads.head_dim),
            "gate_up": (inner, HIDDEN), "down": (HIDDEN, inner),
        }[field]  # fmt: skip


def candidates(case: Case, field: str) -> list[DecodeRecipe]:
    """The present choice with each value of `field` that is worth a try."""
    if field == "attention":
        return list(_attentions(case))
    return [replace(case.base, **{field: shape}) for shape in _products(case, field)]  # type: ignore[arg-type]


def _attentions(case: Case) -> Iterator[DecodeRecipe]:
    """By tokens a block, stages, warps, and items aimed at with the blocks of the smallest split."""
    few = [(16 * case.ranks, 2), (33 * case.ranks, 2), (66 * case.ranks, 2), (132 * case.ranks, 2)]
    many = [(132, 32), (264, 16), (264, 8), (1056, 4)]
    for block, stages, warps in itertools.product((32, 64, 128), (2, 3, 4, 5), (1, 2, 4, 8)):
        if stages * block > 384 or not block // 64 <= warps <= block // 8:
            continue
        for items, least in few if case.rows <= 32 else many:
            yield replace(case.base, attention=AttentionTuning(stages, warps, 8), block_tokens=block,
                          target_items=items, min_split_blocks=max(1, least * 32 // block))  # fmt: skip


def _products(case: Case, field: str) -> Iterator[Product]:
    if case.rows > 64:
        yield from (None, SplitDepth(2), SplitDepth(4)) if field in ("out", "down") else ()
        return
    width, depth = case.width_and_depth(field)
    tiles = 2 if field == "gate_up" else 1
    for block_n, block_k, split in itertools.product((32, 64, 128), (64, 128), (1,) if tiles == 2 else (1, 2, 3, 4)):
        stage_bytes = 2 * block_k * (tiles * block_n + case.block_b)
        programs = -(-width // block_n) * split
        if not 64 <= programs <= 512 or depth < 4 * split * block_k:
            continue
        for stages in sorted({min(8, int(share * SHARED_BYTES) // stage_bytes) for share in (0.5, 0.6, 1.0)}):
            if stages >= 2 and block_n >= 64:
                yield StreamShape(block_n, case.block_b, block_k, split, stages)
            if stages >= 2 and block_n <= 64:
                yield GemmShape(block_n, case.block_b, block_k, split, stages)


def compile_step(candidate: tuple[Case, DecodeRecipe], device: torch.device) -> None:
    """Compile one layer's kernels of a recipe."""
    case, recipe = candidate
    heads = heads_of(case.ranks)

    def empty(field: str) -> Linear:
        n, k = case.width_and_depth(field)
        return Linear(torch.empty(2 * n if field == "gate_up" else n, k, dtype=torch.bfloat16))

    norm = torch.empty(HIDDEN, dtype=torch.bfloat16)
    block = Block(norm, Attention(0, empty("qkv"), empty("out")), norm, GatedMlp(empty("gate_up"), empty("down")))
    head = empty("qkv").weight
    decoder = Decoder(head, [block, block], norm, head, 1e-5)
    ctx = contexts([128] * case.rows, device, scattered=False)
    pool = torch.empty(2, 129, 2 * heads.num_kv_heads, heads.head_dim, dtype=torch.bfloat16)
    buffers = DecodeBuffers(decoder, heads, case.rows, heads.qkv_width)
    step = DecodeStep(decoder, heads, rope_tables(device), pool, buffers, case.rows, replace(recipe, head=recipe.qkv))
    step(torch.zeros(case.rows, dtype=torch.int32), ctx.context_lens, ctx.slots)


class Steps:
    """The layers of a case on the card, to be launched by any recipe."""

    def __init__(self, case: Case, device: torch.device) -> None:
        self._case, self._heads = case, heads_of(case.ranks)
        self._decoder, self._rope = random_decoder(device, LAYERS, case.ranks), rope_tables(device)
        self._ctx = contexts([CONTEXT] * case.rows, device, scattered=False)
        self._pool = random_pool(self._ctx.num_slots, device, LAYERS, case.ranks)
        self._buffers = DecodeBuffers(self._decoder, self._heads, case.rows, len(self._decoder.head))
        self._ids = torch.zeros(case.rows, dtype=torch.int32, device=device)

    def ms(self, recipe: DecodeRecipe, replays: int) -> float:
        """Milliseconds a step of 8 layers and the head."""
        step = DecodeStep(
            self._decoder, self._heads, self._rope, self._pool, self._buffers, self._case.rows, recipe
        )  # fmt: skip
        graph = captured(partial(step, self._ids, self._ctx.context_lens, self._ctx.slots))
        return replay_ms(graph, replays, rounds=3)


def tune(case: Case, fields: list[str], steps: Steps, ends_at: float) -> DecodeRecipe:
    """Print what each field's best candidates take beside the choice so far; return what came out."""
    best = case.base
    for field in fields:
        found: list[tuple[float, DecodeRecipe]] = []
        for candidate in candidates(case, field):
            if time.monotonic() > ends_at:
                break
            recipe = _with_field(best, field, candidate)
            try:
                found.append((steps.ms(recipe, 12), recipe))
            except Exception as error:  # noqa: BLE001 - too much shared memory, for one
                print("fails:", field, getattr(recipe, field), str(error)[:80])
        finalists = [best, *(recipe for _, recipe in sorted(found, key=lambda each: each[0])[:FINALISTS])]
        turns = [[steps.ms(recipe, 40) for recipe in finalists] for _ in range(2)]
        results = [(min(times), recipe) for *times, recipe in zip(*turns, finalists, strict=True)]
        before = results[0][0]
        for ms, recipe in sorted(results, key=lambda each: each[0]):
            print(f"B={case.rows:<3} {field:9} {ms:.4f} ms {ms / before - 1:+.2%} {_cut(recipe, field)}", flush=True)
        fastest = min(results, key=lambda each: each[0])
        if fastest[0] < 0.998 * before:
            best = fastest[1]
    return best


def _with_field(best: DecodeRecipe, field: str, candidate: DecodeRecipe) -> DecodeRecipe:
    names = (field,) if field != "attention" else (field, "block_tokens", "target_items", "min_split_blocks")
    return replace(best, **{name: getattr(candidate, name) for name in names})


def _cut(recipe: DecodeRecipe, field: str) -> str:
    if field != "attention":
        return str(getattr(recipe, field))
    return f"{recipe.attention} {recipe.block_tokens}, {recipe.target_items}, {recipe.min_split_blocks}"


def main() -> None:
    """Print each field's best candidates, and the recipe that came out beside the present one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 16, 24, 64, 256])
    parser.add_argument("--fields", nargs="*", default=["attention", "down", "out", "qkv", "gate_up"])
    parser.add_argument("--seconds", type=float, default=600.0, help="of trying, for each number of rows")
    args = parser.parse_args()
    cases = [Case(rows, args.ranks) for rows in args.rows]
    compile_all(
        compile_step, [(case, each) for case in cases for field in args.fields for each in candidates(case, field)]
    )
    device = torch.device("cuda")
    torch.manual_seed(0)
    print(ceilings.measure(device))
    for case in cases:
        steps = Steps(case, device)
        best = tune(case, args.fields, steps, time.monotonic() + args.seconds)
        turns = [f"{steps.ms(recipe, 60):.4f}" for recipe in (case.base, best, case.base, best)]
        print(f"B={case.rows} before and after, twice, ms: {', '.join(turns)}; {best}", flush=True)
        del steps


if __name__ == "__main__":
    main()
