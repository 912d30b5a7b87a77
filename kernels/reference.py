"""The kernels' results in plain torch, float32 inside: what tests compare against, written for reading, not speed."""

from __future__ import annotations

import torch

from kernels.layout import Heads, Rope, SlotTable


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Return `x / sqrt(mean(x^2) + eps) * weight`, in float32. `x [.., width]`."""
    x = x.float()
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight.float()


def swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    """Return `silu(gate) * up`, in float32. `gate_up [rows, 2 * width]`."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


def rotate(x: torch.Tensor, positions: torch.Tensor, rope: Rope, norm: torch.Tensor | None) -> torch.Tensor:
    """Return heads `x [num_tokens, heads, head_dim]` normed where `norm` is given, then rotated, in float32."""
    x = x.float() if norm is None else rms_norm(x, norm, rope.eps)
    cos, sin = rope.cos[positions.long()][:, None], rope.sin[positions.long()][:, None]
    half = cos.shape[-1]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], dim=-1)


def split_qkv(qkv: torch.Tensor, heads: Heads) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return q, k and v, each `[num_tokens, heads, head_dim]`, of fused rows."""
    x = qkv.view(qkv.shape[0], -1, heads.head_dim)
    q, k, v = x.split([heads.num_heads, heads.num_kv_heads, heads.num_kv_heads], dim=1)
    return q, k, v


def rope_kv_write(
    qkv: torch.Tensor, kv: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor, rope: Rope, heads: Heads
) -> torch.Tensor:
    """Return `qkv` with q and k rotated; write k and v into `kv`."""
    q, k, v = split_qkv(qkv, heads)
    q = rotate(q, positions, rope, rope.q_norm).to(qkv.dtype)
    k = rotate(k, positions, rope, rope.k_norm).to(qkv.dtype)
    kv[slots.long()] = torch.cat([k, v], dim=1)
    return torch.cat([q, k, v], dim=1).flatten(1)


def attention(
    q: torch.Tensor,
    kv: torch.Tensor,
    slots: SlotTable,
    query_lens: list[int],
    context_lens: list[int],
    heads: Heads,
) -> torch.Tensor:
    """Return causal attention of ragged chunks, `[num_tokens, num_heads * head_dim]` float32.

    `q [num_tokens, num_heads, head_dim]` is rotated and `kv` already holds the chunks' own K and V.
    """
    out, first = [], 0
    for i, (num_queries, context) in enumerate(zip(query_lens, context_lens, strict=True)):
        where = slots.table[int(slots.rows[i]), :context].long()
        k, v = kv[where].float().split(heads.num_kv_heads, dim=1)
        k, v = (x.repeat_interleave(heads.group, dim=1) for x in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q[first : first + num_queries].float(), k) * heads.head_dim**-0.5
        positions = torch.arange(context - num_queries, context, device=q.device)
        future = torch.arange(context, device=q.device)[None, :] > positions[:, None]
        weights = scores.masked_fill(future, float("-inf")).softmax(-1)
        out.append(torch.einsum("hqk,khd->qhd", weights, v).flatten(1))
        first += num_queries
    return torch.cat(out)


def allowed_tokens(
    logits: torch.Tensor, temperature: float, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> torch.Tensor:
    """Return the probabilities `[vocab]` that `sample` draws from, for one row of logits; excluded tokens have 0."""
    y = (logits.float() - logits.float().max()) / temperature
    weights = y.exp()
    keep = torch.ones_like(weights, dtype=torch.bool)
    if 0 < top_k < weights.numel():
        keep &= y >= y.topk(top_k).values[-1]
    kept = torch.where(keep, weights, 0.0).double()
    if top_p < 1.0:
        ordered, order = kept.sort(descending=True)
        before = torch.empty_like(ordered)
        before[order] = ordered.cumsum(0) - ordered
        ties = kept[:, None] < kept[None, :]
        before = (ties * kept[None, :]).sum(1) if kept.numel() <= 4096 else before
        keep &= (before < top_p * kept.sum()) | (y == 0)
    keep &= weights >= min_p
    kept = torch.where(keep, weights, 0.0)
    return kept / kept.sum()


def routed_experts(
    x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor
) -> torch.Tensor:
    """Return what `experts.routed_experts` does, in float32, one pair after another."""
    out = torch.zeros(x.shape, device=x.device)
    for token in range(x.shape[0]):
        for expert, weight in zip(chosen[token].tolist(), weights[token].float(), strict=True):
            inner = swiglu((gate_up[expert].float() @ x[token].float())[None])[0]
            out[token] += weight * (down[expert].float() @ inner)
    return out
