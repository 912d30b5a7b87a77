"""The Llama-3.1-8B shape with random weights, and a pool around it: what the speed tables are measured on."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.layout import Heads, Rope, SlotTable
from services.engine.models.layers import Attention, Block, Decoder, GatedMlp, Linear

HIDDEN, INNER, VOCAB, LAYERS = 4096, 14336, 128256, 32
HEADS = Heads(32, 8, 128)
MAX_POSITIONS = 66_000


def random_linear(n: int, k: int, device: torch.device) -> Linear:
    """Return `[n, k]` bf16 weights that keep the size of a normed input."""
    return Linear(torch.randn(n, k, device=device, dtype=torch.bfloat16).mul_(k**-0.5))


def heads_of(ranks: int) -> Heads:
    """Return the heads that one of `ranks` holds."""
    return Heads(HEADS.num_heads // ranks, HEADS.num_kv_heads // ranks, HEADS.head_dim)


def random_decoder(device: torch.device, layers: int = LAYERS, ranks: int = 1) -> Decoder:
    """Return a decoder of the shape, 16 GB at 32 layers, or what one of `ranks` holds of it."""

    def norm() -> torch.Tensor:
        return torch.rand(HIDDEN, device=device, dtype=torch.bfloat16).add_(0.5)

    heads, inner, vocab = heads_of(ranks), INNER // ranks, VOCAB // ranks
    width = heads.num_heads * heads.head_dim
    blocks = [
        Block(
            norm(),
            Attention(i, random_linear(heads.qkv_width, HIDDEN, device), random_linear(HIDDEN, width, device)),
            norm(),
            GatedMlp(random_linear(2 * inner, HIDDEN, device), random_linear(HIDDEN, inner, device)),
        )
        for i in range(layers)
    ]
    embedding = torch.randn(VOCAB, HIDDEN, device=device, dtype=torch.bfloat16)
    return Decoder(embedding, blocks, norm(), random_linear(vocab, HIDDEN, device).weight, 1e-5)


def rope_tables(device: torch.device) -> Rope:
    """Return rotation tables of base 500000."""
    frequency = 500000.0 ** (-torch.arange(0, HEADS.head_dim, 2, device=device) / HEADS.head_dim)
    angles = torch.arange(MAX_POSITIONS, device=device)[:, None] * frequency
    return Rope(angles.cos(), angles.sin())


@dataclass(frozen=True, slots=True)
class Contexts:
    """Requests of given lengths over a pool: their slots scattered at random, or in one run each."""

    slots: SlotTable
    context_lens: torch.Tensor
    num_slots: int


def contexts(lengths: list[int], device: torch.device, *, scattered: bool) -> Contexts:
    """Return tables for requests of `lengths` tokens, newest included."""
    rounded = [-(-length // 128) * 128 for length in lengths]
    num_slots = sum(rounded)
    torch.manual_seed(1)  # the same slots for every variant: their results are compared
    free = torch.randperm(num_slots, device=device) if scattered else torch.arange(num_slots, device=device)
    table = torch.full((len(lengths), max(rounded) + 128), num_slots, dtype=torch.int32, device=device)
    first = 0
    for row, length in enumerate(rounded):
        table[row, :length] = free[first : first + length].int()
        first += length
    rows = torch.arange(len(lengths), dtype=torch.int32, device=device)
    lens = torch.tensor(lengths, dtype=torch.int32, device=device)
    return Contexts(SlotTable(table, rows), lens, num_slots)


def random_pool(num_slots: int, device: torch.device, layers: int = LAYERS, ranks: int = 1) -> torch.Tensor:
    """Return a pool of random K and V whose last slot is zero, of the heads that one of `ranks` holds."""
    shape = (layers, num_slots + 1, 2 * heads_of(ranks).num_kv_heads, HEADS.head_dim)
    pool = torch.empty(shape, device=device, dtype=torch.bfloat16)
    for layer in pool:
        layer.normal_()
        layer[-1] = 0
    return pool
