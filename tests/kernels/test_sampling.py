"""Greedy and random sampling."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from kernels import reference
from kernels.argmax import ArgmaxScratch, argmax
from kernels.masks import rule_out
from kernels.sampling import SamplingRows, sample
from services.common.request import SamplingParams
from services.engine.drawing import draw as draw_on_cpu
from services.engine.noise import noise_key, noise_keys, sequence_key


def rows_of(count: int, device: torch.device, *, seed: int = 13, choice: int = 0, position: int = 0,
            **given: float) -> SamplingRows:  # fmt: skip
    """Return `count` draws of one setting, one from each row of logits, which differ by seed alone."""
    values = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0} | given
    tensors = {
        name: torch.full((count,), value, dtype=torch.int32 if name == "top_k" else torch.float32, device=device)
        for name, value in values.items()
    }
    keys = np.array([noise_key(seed + 7919 * i, choice, position) for i in range(count)], np.uint64)
    halves = torch.from_numpy(keys.view(np.int32).reshape(count, 2)).to(device)
    each = torch.arange(count, dtype=torch.int32, device=device)
    return SamplingRows(**tensors, key_low=halves[:, 0].contiguous(), key_high=halves[:, 1].contiguous(), source=each,
                        target=each)  # fmt: skip


def draw(logits: torch.Tensor, rows: SamplingRows) -> torch.Tensor:
    out = torch.full((len(rows.target),), -1, dtype=torch.int32, device=logits.device)
    sample(logits, rows, out)
    return out.cpu()


@pytest.mark.parametrize(("rows", "vocab"), [(1, 5), (3, 5000)])
def test_argmax_takes_the_lowest_of_equal_ids(device: torch.device, dtype: torch.dtype, rows: int, vocab: int) -> None:
    logits = torch.randint(0, 3, (rows, vocab), device=device).to(dtype)
    out = torch.full((rows,), -1, dtype=torch.int64, device=device)
    argmax(logits, out, ArgmaxScratch.allocate(4, device, splits=3))
    expected = [(row == row.max()).nonzero()[0].item() for row in logits]
    assert out.tolist() == expected


def test_temperature_zero_is_argmax(device: torch.device) -> None:
    logits = torch.randn(2, 5000, device=device)
    assert torch.equal(draw(logits, rows_of(2, device, temperature=0.0)), logits.argmax(-1).int().cpu())


SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0.7},
    {"top_k": 5},
    {"top_p": 0.6},
    {"min_p": 0.2, "temperature": 1.5},
    {"top_k": 8, "top_p": 0.7, "min_p": 0.02},
    {"top_p": 0.0},
]


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_draws_follow_the_allowed_distribution(device: torch.device, setting: dict[str, Any]) -> None:
    """Many seeds over 40 tokens: none outside the allowed set, and a chi-square statistic no worse than 1 in 10^4."""
    count = 40 if device.type == "cpu" else 4096
    row = torch.randn(40, device=device) * 2
    ids = draw(row.expand(count, -1).contiguous(), rows_of(count, device, **setting))
    sieve = {key: value for key, value in setting.items() if key != "temperature"}
    expected = reference.allowed_tokens(row, setting.get("temperature", 1.0), **sieve).cpu()
    seen = torch.bincount(ids, minlength=40).float()
    assert seen[expected == 0].sum() == 0
    likely = expected * count >= 5
    deviation = ((seen - expected * count)[likely].pow(2) / (expected * count)[likely]).sum()
    degrees = max(int(likely.sum()), 1)
    assert deviation < degrees + 4 * (2 * degrees) ** 0.5 + 8


def test_top_k_keeps_exactly_k_of_many(device: torch.device) -> None:
    row = torch.randn(3000, device=device)
    ids = draw(row.expand(24, -1).contiguous(), rows_of(24, device, top_k=3, temperature=100.0))
    assert set(ids.tolist()) <= set(row.topk(3).indices.tolist())
    assert len(set(ids.tolist())) == 3


def test_noise_depends_on_seed_choice_and_position_alone(device: torch.device) -> None:
    logits = torch.randn(300, device=device).expand(8, -1).contiguous()
    many = draw(logits, rows_of(8, device, top_p=0.9))
    assert draw(logits[:1], rows_of(1, device, top_p=0.9))[0] == many[0]
    changes: list[dict[str, int]] = [{"seed": 14}, {"choice": 1}, {"position": 1}]
    for change in changes:
        assert not torch.equal(draw(logits, rows_of(8, device, top_p=0.9, **change)), many)


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_draws_equal_the_cpu_backends(device: torch.device, setting: dict[str, Any]) -> None:
    count = 12
    logits = torch.randn(count, 700, device=device) * 2
    ids = draw(logits, rows_of(count, device, position=5, **setting))
    params = [SamplingParams(**setting) for _ in range(count)]
    keys = [noise_key(13 + 7919 * i, 0, 5) for i in range(count)]
    assert ids.tolist() == draw_on_cpu(logits.float().cpu(), params, keys).tolist()


@pytest.mark.parametrize("top_p", [0.0, 0.02, 0.5])
def test_a_nucleus_that_the_first_winners_miss_is_found_across_lanes(device: torch.device, top_p: float) -> None:
    """Three tokens share a lane here, and many winners lie outside before one does not."""
    count, vocab = 6, 9000
    logits = torch.randn(count, vocab, device=device) * 3
    ids = draw(logits, rows_of(count, device, position=2, top_p=top_p))
    keys = [noise_key(13 + 7919 * i, 0, 2) for i in range(count)]
    params = [SamplingParams(temperature=1.0, top_p=top_p) for _ in range(count)]
    assert ids.tolist() == draw_on_cpu(logits.float().cpu(), params, keys).tolist()


def test_keys_of_many_draws_are_those_of_one() -> None:
    cases = [(0, 0, 0), (2**64 - 1, 3, 77), (12345, 1, 2**31)]
    many = noise_keys(np.array([sequence_key(s, c) for s, c, _ in cases], np.uint64),
                      np.array([p for *_, p in cases], np.uint64))  # fmt: skip
    assert many.tolist() == [noise_key(*case) for case in cases]


def test_draws_name_their_rows_and_their_outputs(device: torch.device) -> None:
    logits = torch.full((3, 50), float("-inf"), device=device)
    logits[[0, 1, 2], [7, 8, 9]] = 0.0
    each = rows_of(2, device)
    source, target = (torch.tensor(x, dtype=torch.int32, device=device) for x in ([2, 0], [3, 1]))
    out = torch.full((4,), -1, dtype=torch.int64, device=device)
    sample(logits, dataclasses.replace(each, source=source, target=target), out)
    assert out.tolist() == [-1, 7, -1, 9]


def test_excluded_tokens_are_never_drawn(device: torch.device) -> None:
    logits = torch.full((16, 50), float("-inf"), device=device)
    logits[:, [7, 31]] = 0.0
    assert set(draw(logits, rows_of(16, device, top_p=0.95)).tolist()) == {7, 31}


def test_likely_tokens_that_share_a_lane_are_all_kept(device: torch.device) -> None:
    """The search for the k-th looks at two tokens a lane first; here three of the three likeliest are in one."""
    logits = torch.zeros(8, 12_300, device=device)
    logits[:, [5, 4101, 8197]] = torch.tensor([20.0, 20.5, 20.2], device=device)
    assert set(draw(logits, rows_of(8, device, top_k=3)).tolist()) == {5, 4101, 8197}


@pytest.mark.parametrize("vocab", [64, 2211])
def test_what_has_no_bit_is_ruled_out_of_its_row_alone(device: torch.device, dtype: torch.dtype, vocab: int) -> None:
    logits = torch.randn(4, vocab, device=device).to(dtype)
    num_words = -(-vocab // 32)
    words = torch.randint(-(2**31), 2**31 - 1, (2, num_words), device=device, dtype=torch.int64).to(torch.int32)
    bits = np.unpackbits(words.cpu().numpy().view(np.uint8), axis=1, count=vocab, bitorder="little").astype(bool)
    expected = logits.clone()
    for row, allowed in zip((3, 1), bits, strict=True):
        expected[row, ~torch.from_numpy(allowed).to(device)] = -torch.inf
    rule_out(logits, torch.tensor([3, 1], dtype=torch.int32, device=device), words)
    assert torch.equal(logits, expected)
    assert logits[[0, 2]].isfinite().all()
