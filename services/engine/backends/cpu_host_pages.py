"""Host pages of the cpu backend: memory like the pool's, and copies that are made when they are called."""

from dataclasses import dataclass

import torch
from torch import Tensor

from services.engine.arrays import Ints
from services.engine.transfer import layout


@dataclass(frozen=True, slots=True)
class CpuFetched:
    """See Fetched: it lies where the processor reads it anyway."""

    page: Tensor  # [num_layers, n, 2 * num_kv_heads, head_dim]
    pool: Tensor

    def put(self, slots: Ints, skip: int) -> None:
        """See Fetched."""
        layout.scatter(self.page[:, skip : skip + len(slots)], torch.from_numpy(slots), self.pool)


class CpuHostPages:
    """See HostPages. The memory is taken, untouched, at once; the system finds it as it is written."""

    fetches_at_once = 4

    def __init__(self, pool: Tensor, num_pages: int, page_tokens: int) -> None:
        self.num_pages, self.page_tokens = num_pages, page_tokens
        self._pool = pool
        self._pages = torch.empty(num_pages, pool.shape[0], page_tokens, *pool.shape[2:], dtype=pool.dtype)

    def keep(self, slots: Ints, pages: list[int]) -> None:
        """See HostPages."""
        for page, part in zip(pages, torch.from_numpy(slots).split(self.page_tokens), strict=True):
            self._pages[page, :, : len(part)] = self._pool.index_select(1, part)

    def fetch(self, page: int, num_tokens: int) -> CpuFetched:
        """See HostPages."""
        return CpuFetched(self._pages[page, :, :num_tokens], self._pool)
