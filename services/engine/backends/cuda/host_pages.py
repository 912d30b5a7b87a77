"""Host pages of the cuda backend: pinned memory, reached by a stream of its own through a few pages on the device.

    out    compute stream   gather 0 ─ gather 1 ─ ... the step            back   copy 0 ─ copy 1          side stream
           side stream              copy 0 ─ copy 1                              the step ─ scatter 0, 1  compute stream

Gathers and scatters are ordered with the steps, so slots are free, or filled, as the launches stand; the slow way over
the bus is the side stream's. All copies are on that one stream: what goes out is in host memory before it comes back,
and a host page may be used again at once. Each staging page waits, on the device, for its own last use; a sequence of
more pages than are staged makes the step behind it wait for the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import cycle

import torch
from torch import Tensor

from kernels.pages import gather_page, scatter_page
from services.engine.arrays import Ints
from services.engine.backends.cuda.clock import Mark, SideStream, pinned_bytes, upload

_STAGED_OUT, _STAGED_BACK = 8, 4
_PROGRAMS = 132
"""Of a gather or a scatter: nothing else runs beside it."""
_SLAB_BYTES = 1 << 30
"""Pinned at a time: torch rounds each up to a power of two."""


@dataclass(slots=True, eq=False)
class _Stage:
    """A page on the device."""

    page: Tensor  # flat
    last_use: Mark

    def view(self, num_tokens: int, like: Tensor) -> Tensor:
        """Its first tokens, as the page kernels take them."""
        shape = (like.shape[0], num_tokens, *like.shape[2:])
        return self.page[: torch.Size(shape).numel()].view(shape)


@dataclass(frozen=True, slots=True)
class _Fetched:
    """See Fetched."""

    stage: _Stage
    num_tokens: int
    pool: Tensor

    def put(self, slots: Ints, skip: int) -> None:
        """See Fetched."""
        self.stage.last_use.hold()
        page = self.stage.view(self.num_tokens, self.pool)[:, skip : skip + len(slots)]
        index = upload(torch.from_numpy(slots), self.pool.device)
        scatter_page(page, index, self.pool, programs=_PROGRAMS)
        self.stage.last_use = Mark(self.pool.device)


class PinnedPages:
    """See HostPages."""

    fetches_at_once = _STAGED_BACK

    def __init__(self, pool: Tensor, num_pages: int, page_tokens: int) -> None:
        self.num_pages, self.page_tokens = num_pages, page_tokens
        self._pool = pool
        self._side = SideStream(pool.device)
        self._page_numel = pool.shape[0] * page_tokens * pool[0, 0].numel()
        self._per_slab = max(_SLAB_BYTES // (self._page_numel * pool.element_size()), 1)
        self._slabs = [
            self._slab(min(self._per_slab, num_pages - first)) for first in range(0, num_pages, self._per_slab)
        ]
        staged = (_STAGED_OUT, _STAGED_BACK) if num_pages else (0, 0)
        self._out, self._back = (cycle([self._stage() for _ in range(n)]) for n in staged)

    def keep(self, slots: Ints, pages: list[int]) -> None:
        """See HostPages."""
        index = upload(torch.from_numpy(slots), self._pool.device)
        for page, part in zip(pages, index.split(self.page_tokens), strict=True):
            self._keep_page(page, part)

    def fetch(self, page: int, num_tokens: int) -> _Fetched:
        """See HostPages."""
        stage = next(self._back)
        view = stage.view(num_tokens, self._pool)
        stage.last_use = self._side.copy(self._host(page, view.numel()), view.view(-1), after=stage.last_use)
        return _Fetched(stage, num_tokens, self._pool)

    def _keep_page(self, page: int, slots: Tensor) -> None:
        stage = next(self._out)
        view = stage.view(len(slots), self._pool)
        stage.last_use.hold()
        gather_page(self._pool, slots, view, programs=_PROGRAMS)
        gathered = Mark(self._pool.device)
        stage.last_use = self._side.copy(view.view(-1), self._host(page, view.numel()), after=gathered)

    def _host(self, page: int, numel: int) -> Tensor:
        return self._slabs[page // self._per_slab][page % self._per_slab, :numel]

    def _slab(self, num_pages: int) -> Tensor:
        size = num_pages * self._page_numel * self._pool.element_size()
        return pinned_bytes(size, self._pool.device).view(self._pool.dtype).view(num_pages, self._page_numel)

    def _stage(self) -> _Stage:
        page = torch.empty(self._page_numel, dtype=self._pool.dtype, device=self._pool.device)
        return _Stage(page, Mark(self._pool.device))
