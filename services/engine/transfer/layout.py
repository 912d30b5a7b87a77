"""How KV lies in a transfer page, and the copies between pool and page for backends without a kernel for it.

A page of n tokens holds `[num_layers, n, 2 * num_kv_heads, head_dim]`, contiguous, K's heads before V's: layers
outermost, because the pool is so too. Each row (one token in one layer) is 2 * num_kv_heads * head_dim elements,
contiguous on both sides, so a copy is coalesced whatever the slots are; and the heads of one rank are two slices of a
row, so a rank of another tensor parallel size gets just its share: its pages hold the heads that both ranks have. The
device kernels (`kernels.pages`) keep the
same layout.
"""

from dataclasses import dataclass, replace

import torch

from services.engine.transfer.page_memory import Buffer


@dataclass(frozen=True, slots=True)
class PageLayout:
    """What a page, or one rank's pool, holds of a token; `num_kv_heads` are the page's or the rank's own."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype

    @classmethod
    def of(cls, kv: torch.Tensor) -> "PageLayout":
        """The layout of a pool `[num_layers, num_slots + 1, 2 * num_kv_heads, head_dim]`; ValueError otherwise."""
        if kv.dim() != 4 or kv.shape[2] % 2:
            raise ValueError(
                f"kv: expected [num_layers, num_slots + 1, 2 * num_kv_heads, head_dim], got {list(kv.shape)}"
            )
        return cls(kv.shape[0], kv.shape[2] // 2, kv.shape[3], kv.dtype)

    def of_heads(self, num_kv_heads: int) -> "PageLayout":
        """The layout of pages that hold so many of the heads."""
        return replace(self, num_kv_heads=num_kv_heads)

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's K and V in all layers."""
        return self.num_layers * 2 * self.num_kv_heads * self.head_dim * self.dtype.itemsize

    def tokens_per_page(self, page_bytes: int) -> int:
        """How many tokens fit a page. Raises ValueError when not even one does."""
        tokens = page_bytes // self.token_bytes
        if tokens == 0:
            raise ValueError(f"page_bytes must be at least {self.token_bytes}, the KV of one token, got {page_bytes}")
        return tokens

    def view(self, buffer: Buffer, num_tokens: int) -> torch.Tensor:
        """The first `num_tokens * token_bytes` bytes of a page's buffer, sharing its memory, as
        `[num_layers, num_tokens, 2 * num_kv_heads, head_dim]`. Raises ValueError when they do not fit."""
        num_bytes = num_tokens * self.token_bytes
        if num_bytes > len(buffer):
            raise ValueError(f"{num_tokens} tokens need {num_bytes} bytes, the page has {len(buffer)}")
        raw = buffer if isinstance(buffer, torch.Tensor) else torch.from_numpy(buffer)
        shape = (self.num_layers, num_tokens, 2 * self.num_kv_heads, self.head_dim)
        return raw[:num_bytes].view(self.dtype).view(shape)


def gather(kv: torch.Tensor, slots: torch.Tensor, page: torch.Tensor, first_head: int = 0) -> None:
    """Copy the K and V of `slots`, of all layers, from the pool into `page`.

    kv: `[num_layers, num_slots + 1, 2 * num_kv_heads, head_dim]`; slots: `[n]` int32 | int64; page: `[num_layers, n,
    2 * h, head_dim]`, written: K and V of heads [first_head, first_head + h). Raises ValueError when the shapes do not
    fit.
    """
    torch.index_select(_heads_of(kv, slots, page, first_head), 1, slots, out=_by_head(page))


def scatter(page: torch.Tensor, slots: torch.Tensor, kv: torch.Tensor, first_head: int = 0) -> None:
    """Copy `page` into `slots` of the pool, in all layers; the reverse of `gather`, with the same shapes."""
    _heads_of(kv, slots, page, first_head).index_copy_(1, slots.long(), _by_head(page))


def _by_head(x: torch.Tensor) -> torch.Tensor:
    """[layers, n, 2 * heads, dim] as [layers, n, 2, heads, dim], sharing its memory."""
    return x.view(*x.shape[:2], 2, x.shape[2] // 2, x.shape[3])


def _heads_of(kv: torch.Tensor, slots: torch.Tensor, page: torch.Tensor, first_head: int) -> torch.Tensor:
    """The pool's heads that the page holds: [num_layers, num_slots + 1, 2, h, head_dim]."""
    num_heads = page.shape[2] // 2
    expected = (kv.shape[0], slots.shape[0], 2 * num_heads, kv.shape[3])
    if tuple(page.shape) != expected or page.dtype != kv.dtype:
        raise ValueError(f"page: expected {list(expected)} {kv.dtype}, got {list(page.shape)} {page.dtype}")
    if not 0 <= first_head <= kv.shape[2] // 2 - num_heads:
        raise ValueError(f"page: {num_heads} heads from {first_head}, the pool has {kv.shape[2] // 2}")
    return _by_head(kv).narrow(3, first_head, num_heads)
