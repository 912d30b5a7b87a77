"""Greedy and random sampling."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from kernels import reference
from kernels.argmax import ArgmaxScratch, argmax
from kernels.sampling import SamplingRows, sample


def rows_of(count: int, device: torch.device, **given: float) -> SamplingRows:
    """Return `count` rows of one setting, which differ by seed alone."""
    values = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "choice": 0, "position": 0} | given
    ints = {"top_k", "choice", "position"}
    tensors = {
        name: torch.full((count,), value, dtype=torch.int32 if name in ints else torch.float32, device=device)
        for name, value in values.items()
    }
    return SamplingRows(seed=torch.arange(count, device=device) * 7919 + 13, **tensors)


def draw(logits: torch.Tensor, rows: SamplingRows) -> torch.Tensor:
    out = torch.full((logits.shape[0],), -1, dtype=torch.int32, device=logits.device)
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


SETTINGS = [
    {"temperature": 0.7},
    {"top_k": 5},
    {"top_p": 0.6},
    {"min_p": 0.2, "temperature": 1.5},
    {"top_k": 8, "top_p": 0.7, "min_p": 0.02},
    {"top_p": 0.0},
]


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_draws_follow_the_allowed_distribution(device: torch.device, setting: dict[str, float]) -> None:
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
    row = torch.randn(300, device=device)
    alone = rows_of(1, device, top_p=0.9)
    many = rows_of(8, device, top_p=0.9)
    ids = draw(row.expand(8, -1).contiguous(), many)
    assert draw(row[None], alone)[0] == ids[0]
    for name in ("seed", "choice", "position"):
        changed = dataclasses.replace(many, **{name: getattr(many, name) + 1})
        assert not torch.equal(draw(row.expand(8, -1).contiguous(), changed), ids)


def test_excluded_tokens_are_never_drawn(device: torch.device) -> None:
    logits = torch.full((16, 50), float("-inf"), device=device)
    logits[:, [7, 31]] = 0.0
    assert set(draw(logits, rows_of(16, device, top_p=0.95)).tolist()) == {7, 31}
