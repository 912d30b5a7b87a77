"""What a step of a split model needs of the other ranks: the sums behind its products, and the best of all logits.

Short steps go over peer memory: products of up to 64 rows in 16 bits add up by themselves (`RankSums.box_of`), other
sums and the picks are one launch each (`kernels.rank_sum`, `kernels.rank_pick`), with the residual and the next norm
folded in. What has more rows than their blocks hold, and hosts whose devices cannot reach each other, go through NCCL.
All are captured in graphs. All ranks make the same calls in the same order.
"""

from __future__ import annotations

import logging
from dataclasses import replace

import torch
from torch import Tensor

from kernels import rank_pick, rank_sum
from kernels.ranks import Mailbox, box_bytes, tile_words
from kernels.skinny_gemm import GemmShape, NormOut
from kernels.streamed_gemm import StreamShape
from services.engine.backends.cuda.peer_memory import PeerAccessError, open_peer_memory
from services.engine.ranks import Ranks

log = logging.getLogger(__name__)

PRODUCT_TILE = 64
"""Outputs of a tile of those products that add up by themselves: `out` and `down`."""
_PRODUCT_ROWS = (16, 32, 64)
"""Of their tiles, with a box for each, whose every word is written in each exchange."""
_ANY = 1 << 31
"""Programs at once, without a card: the interpreter runs one after the other."""
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

    def box_of(self, shape: GemmShape | StreamShape, rows: int) -> Mailbox | None:  # noqa: ARG002
        """Return where programs of such a product of `rows` rows add up over ranks by themselves, if they can."""
        return None

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
        blocks = _PRODUCT_ROWS if dtype.itemsize == 2 and hidden % PRODUCT_TILE == 0 else ()
        outputs = hidden // PRODUCT_TILE
        wanted = [
            (rows * self._tiles, rank_sum.places_of(rows, hidden, dtype.itemsize)),
            (rows, rank_pick.places_of(rows)),
            *((outputs, outputs * tile_words(PRODUCT_TILE, block_b)) for block_b in blocks),
        ]  # fmt: skip
        self._memory = open_peer_memory(ranks, box_bytes(sum(places for _, places in wanted), count), device)
        address, programs, boxes = self._memory.addresses, _programs_at_once(count, device) or _ANY, []
        for slots, places in wanted:
            epochs = torch.zeros(slots, dtype=torch.int32, device=device)
            boxes.append(Mailbox(address, epochs, places, ranks.rank, count, programs))
            address = address + box_bytes(places, count)
        self._sums, self._picks, *products = boxes
        at_once = _multiprocessors(device) or _ANY
        self._products = {
            block_b: replace(box, programs=at_once) for block_b, box in zip(blocks, products, strict=True)
        }
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

    def box_of(self, shape: GemmShape | StreamShape, rows: int) -> Mailbox | None:
        """See RankSums."""
        box = self._products.get(shape.block_b) if shape.block_n == PRODUCT_TILE and rows <= shape.block_b else None
        return box if box is not None and box.slots * shape.split_k <= box.programs else None

    def pick(self, logits: Tensor, ids: Tensor, *, pdl: bool = False) -> None:
        """See RankSums."""
        rank_pick.rank_pick(self._picks, logits, ids, pdl=pdl)


def _multiprocessors(device: torch.device) -> int | None:
    """Each runs a program of a product at least. None without a card."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else None


def _programs_at_once(count: int, device: torch.device) -> int | None:
    """Of a sum. None without a card."""
    multiprocessors = _multiprocessors(device)
    return None if multiprocessors is None else rank_sum.programs_of(multiprocessors, count)


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
