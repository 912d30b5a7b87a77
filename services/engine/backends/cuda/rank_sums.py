"""What a step of a split model needs of the other ranks: the sums behind its products, and the best of all logits.

Short steps go through kernels of our own over peer memory (`kernels.rank_sum`, `kernels.rank_pick`), one launch each
with the residual and the next norm folded in; what has more rows than their blocks hold, and hosts whose devices cannot
reach each other, through NCCL. Both are captured in graphs. All ranks make the same calls in the same order.
"""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from kernels import rank_pick, rank_sum
from kernels.ranks import Mailbox, box_bytes
from kernels.skinny_gemm import NormOut
from services.engine.backends.cuda.peer_memory import PeerAccessError, open_peer_memory
from services.engine.ranks import Ranks

log = logging.getLogger(__name__)

MAX_ROWS = 512
"""Rows of a box at least: the largest prefill graph. Beyond it a product takes long enough for NCCL."""


class RankSums:
    """Through NCCL. Owned by the backend; `max_rows` are those that graphs need."""

    def __init__(self, ranks: Ranks, hidden: int, max_rows: int, dtype: torch.dtype, device: torch.device) -> None:
        self._ranks = ranks
        self._hidden, self._dtype, self._device = hidden, dtype, device
        self.max_rows = max(max_rows, MAX_ROWS)
        ranks.total(torch.zeros(1, device=device))  # NCCL connects at its first use: not in the middle of a request

    def partial(self, rows: int) -> Tensor:
        """Return `[rows, hidden]`, where the next product goes; `add` takes it next."""
        return torch.empty(rows, self._hidden, dtype=self._dtype, device=self._device)

    def add(self, partial: Tensor, residual: Tensor, norm_out: NormOut | None = None, *, pdl: bool = False) -> int:  # noqa: ARG002
        """Add the sum over ranks of what `partial` gave to `residual`.

        Returns the tiles of squares that `norm_out` has been given, 0 where it is as it was.
        """
        self._ranks.total(partial)
        residual.add_(partial)
        return 0

    def pick(self, logits: Tensor, ids: Tensor, *, pdl: bool = False) -> None:  # noqa: ARG002
        """Make `ids [rows]`, the best columns of this rank's `logits`, the best ids of the whole vocabulary."""
        share = logits.shape[1]
        values = logits.gather(1, ids[:, None].long())[:, 0].float()
        # float32 holds every id of a vocabulary below 2^24
        own = torch.stack((values, (ids + self._ranks.rank * share).float()))
        both = self._ranks.gather(own)
        best = both[:, 0].argmax(0, keepdim=True)
        ids.copy_(both[:, 1].gather(0, best)[0].int())


class PeerSums(RankSums):
    """Through peer memory, up to `max_rows` rows: each block holds a box for sums, then one for picks."""

    def __init__(self, ranks: Ranks, hidden: int, max_rows: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(ranks, hidden, max_rows, dtype, device)
        rows, count, self._tiles = self.max_rows, ranks.count, rank_sum.num_tiles(hidden)
        for_sums, for_picks = rank_sum.places_of(rows, hidden, dtype.itemsize), rank_pick.places_of(rows)
        self._memory = open_peer_memory(ranks, box_bytes(for_sums + for_picks, count), device)
        slots = torch.zeros(rows * (self._tiles + 1), dtype=torch.int32, device=device)
        addresses = self._memory.addresses
        programs = _programs_at_once(count, device) or rows
        self._sums = Mailbox(addresses, slots[rows:], for_sums, ranks.rank, count, programs)
        self._picks = Mailbox(
            addresses + box_bytes(for_sums, count), slots[:rows], for_picks, ranks.rank, count, programs
        )
        self._partial = torch.empty(rows, hidden, dtype=dtype, device=device)

    def partial(self, rows: int) -> Tensor:
        """See RankSums."""
        return self._partial[:rows] if rows <= self.max_rows else super().partial(rows)

    def add(self, partial: Tensor, residual: Tensor, norm_out: NormOut | None = None, *, pdl: bool = False) -> int:
        """See RankSums."""
        if len(partial) > self.max_rows:
            return super().add(partial, residual)
        rank_sum.rank_sum(self._sums, partial, residual, norm_out, pdl=pdl)
        return self._tiles if norm_out is not None else 0

    def pick(self, logits: Tensor, ids: Tensor, *, pdl: bool = False) -> None:
        """See RankSums."""
        rank_pick.rank_pick(self._picks, logits, ids, pdl=pdl)


def _programs_at_once(count: int, device: torch.device) -> int | None:
    """None for any number, without a card: the interpreter runs one after the other."""
    if device.type != "cuda":
        return None
    return rank_sum.programs_of(torch.cuda.get_device_properties(device).multi_processor_count, count)


def open_rank_sums(
    ranks: Ranks, hidden: int, max_rows: int, dtype: torch.dtype, device: torch.device
) -> RankSums | None:
    """Return the fastest way that this host has; None for one rank."""
    if ranks.count == 1:
        return None
    try:
        sums: RankSums = PeerSums(ranks, hidden, max_rows, dtype, device)
        log.info("sums over %d ranks: peer memory up to %d rows, NCCL beyond", ranks.count, sums.max_rows)
    except PeerAccessError as error:
        log.warning("sums over %d ranks: NCCL, which is slower for decode: %s", ranks.count, error)
        sums = RankSums(ranks, hidden, max_rows, dtype, device)
    return sums
