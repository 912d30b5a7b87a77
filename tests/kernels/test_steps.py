"""A prompt in two chunks, then a decode step, through the cuda backend's steps, against the model in plain torch."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from kernels import reference
from kernels.layout import Heads, Rope, SlotTable
from kernels.prefill_attention import PrefillTuning, prefill_tiles
from kernels.skinny_gemm import GemmShape
from services.engine.backends.cuda import prefill_step
from services.engine.backends.cuda.decode_step import DecodeBuffers, DecodeStep
from services.engine.backends.cuda.prefill_step import PrefillBatch, PrefillStep
from services.engine.backends.cuda.recipe import DecodeRecipe, SplitDepth
from services.engine.models.layers import Attention, Block, Decoder, GatedMlp, Linear
from tests.kernels.close import assert_close

HEADS, HIDDEN, INNER, VOCAB, LAYERS = Heads(4, 2, 32), 96, 160, 50, 3
SLOTS = [5, 9, 1, 7, 20, 3, 11, 2]
IDS = [3, 14, 15, 9, 26, 5, 35, 8]
PADDING = 30
SMALL, SPLIT = GemmShape(32, 16, 32), GemmShape(32, 16, 32, 2)


@dataclass(frozen=True, slots=True)
class Model:
    decoder: Decoder
    rope: Rope
    pool: torch.Tensor
    table: torch.Tensor


@pytest.fixture
def model(device: torch.device) -> Model:
    def linear(n: int, k: int, *, bias: bool = False) -> Linear:
        return Linear(torch.randn(n, k, device=device) * k**-0.5, torch.randn(n, device=device) if bias else None)

    def norm() -> torch.Tensor:
        return torch.rand(HIDDEN, device=device) + 0.5

    blocks = [
        Block(norm(), Attention(i, linear(HEADS.qkv_width, HIDDEN, bias=True), linear(HIDDEN, 128)), norm(),
              GatedMlp(linear(2 * INNER, HIDDEN), linear(HIDDEN, INNER)))
        for i in range(LAYERS)
    ]  # fmt: skip
    decoder = Decoder(torch.randn(VOCAB, HIDDEN, device=device), blocks, norm(), linear(VOCAB, HIDDEN).weight, 1e-5)
    angles = torch.arange(64, device=device)[:, None] * 10000.0 ** (-torch.arange(0, 32, 2, device=device) / 32)
    table = torch.full((3, 64), PADDING, dtype=torch.int32, device=device)
    table[1, : len(SLOTS)] = torch.tensor(SLOTS)
    pool = torch.zeros(LAYERS, PADDING + 1, 4, 32, device=device)
    return Model(decoder, Rope(angles.cos(), angles.sin()), pool, table)


def plain(model: Model, ids: torch.Tensor) -> torch.Tensor:
    """Return the logits of every token, attended over a pool of its own."""
    decoder, eps = model.decoder, model.decoder.norm_eps
    n, device = len(ids), ids.device
    x, positions = decoder.embedding[ids.long()], torch.arange(n, device=device)
    slots = SlotTable(positions.int()[None], torch.zeros(1, dtype=torch.int32))
    for block in decoder.blocks:
        kv = torch.zeros(n + 1, 4, 32, device=device)
        qkv = torch.nn.functional.linear(
            reference.rms_norm(x, block.attention_norm, eps), block.attention.qkv.weight, block.attention.qkv.bias
        )
        rotated = reference.rope_kv_write(qkv, kv, positions, positions, model.rope, HEADS)
        q, _, _ = reference.split_qkv(rotated, HEADS)
        x = x + reference.attention(q, kv, slots, [n], [n], HEADS) @ block.attention.out.weight.T
        assert isinstance(block.mlp, GatedMlp)
        gated = reference.swiglu(reference.rms_norm(x, block.mlp_norm, eps) @ block.mlp.gate_up.weight.T)
        x = x + gated @ block.mlp.down.weight.T
    return reference.rms_norm(x, decoder.norm, eps) @ decoder.head.T


def chunk(model: Model, ids: torch.Tensor, start: int, end: int) -> PrefillBatch:
    n = end - start

    def ints(values: object) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=ids.device)

    return PrefillBatch(
        ids=ids[start:end], positions=ints(list(range(start, end))), slots=ints(SLOTS[start:end]),
        query_start=ints([0, n]), context_lens=ints([end]), tiles=ints(prefill_tiles([n], [end], 16)),
        last_tiles=ints([(0, n - 1)]), table=SlotTable(model.table, ints([1])),
        logits_tokens=ints([n - 1]), whole=None,
    )  # fmt: skip


RECIPES = {
    "fused": DecodeRecipe(SMALL, SPLIT, SMALL, SPLIT, SMALL, block_tokens=16, target_items=2, pdl=False),
    "library": DecodeRecipe(None, None, None, None, None, block_tokens=16, target_items=2, pdl=False),
    "parts": DecodeRecipe(None, SplitDepth(2), None, SplitDepth(4), None, block_tokens=16, target_items=2, pdl=False),
    "mixed": DecodeRecipe(SMALL, None, None, SMALL, None, block_tokens=16, target_items=2, pdl=False),
}


@pytest.mark.parametrize("recipe", RECIPES)
def test_two_chunks_and_a_decode_step_equal_the_plain_model(device: torch.device, model: Model, recipe: str) -> None:
    ids = torch.tensor(IDS, dtype=torch.int32, device=device)
    expected = plain(model, ids)
    tuning = PrefillTuning(16, 16, 2, 4)
    prefill = PrefillStep(model.decoder, HEADS, model.rope, model.pool, tuning)
    assert_close(prefill(chunk(model, ids, 0, 4))[0], expected[3], 1e-5)
    assert_close(prefill(chunk(model, ids, 4, 7))[0], expected[6], 1e-5)
    buffers = DecodeBuffers(model.decoder, HEADS, 2, VOCAB)
    decode = DecodeStep(model.decoder, HEADS, model.rope, model.pool, buffers, 2, RECIPES[recipe])
    lens = torch.tensor([8, 0], dtype=torch.int32, device=device)
    rows = torch.tensor([1, 2], dtype=torch.int32, device=device)
    logits = decode(torch.tensor([IDS[7], 0], dtype=torch.int32, device=device), lens, SlotTable(model.table, rows))
    assert_close(logits[0], expected[7], 1e-5)


def test_the_last_layer_may_compute_q_of_the_wanted_tokens_alone(
    device: torch.device, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefill_step, "_FEW", 1)
    ids = torch.tensor(IDS, dtype=torch.int32, device=device)
    tuning = PrefillTuning(16, 16, 2, 4)
    prefill = PrefillStep(model.decoder, HEADS, model.rope, model.pool, tuning)
    assert_close(prefill(chunk(model, ids, 0, 4))[0], plain(model, ids)[3], 1e-5)
    assert_close(prefill(chunk(model, ids, 4, 8))[0], plain(model, ids)[7], 1e-5)


def test_a_step_may_begin_with_its_ids_alone(device: torch.device, model: Model) -> None:
    ids = torch.tensor(IDS, dtype=torch.int32, device=device)
    prefill = PrefillStep(model.decoder, HEADS, model.rope, model.pool, PrefillTuning(16, 16, 2, 4))
    begun = prefill.begin(ids[:4])
    states = prefill.final_states(chunk(model, ids, 0, 4), begun)
    assert_close(prefill.logits(states)[0], plain(model, ids)[3], 1e-5)
