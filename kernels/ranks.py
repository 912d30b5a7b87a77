"""What ranks of one host say to each other from within kernels, through memory that each of them can read and write.

Each rank owns one block of such memory and knows where the others' blocks lie. Programs of the same number meet: each
leaves a number in the others' blocks and waits for theirs in its own, so no kernel of a step needs its whole grid to
wait. Numbers only ever count up (and around), kept by each program on its own card, so that nothing is reset and a
CUDA graph can repeat the launch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl


@dataclass(frozen=True, slots=True)
class PeerMemory:
    """One rank's view of all blocks.

    own: this rank's block, uint8; `flags_at` bytes into it lie `slots * count` int32, zero before the first launch.
    addresses: `[count]` int64, where each rank's block begins, as this rank's device sees it.
    epochs: `[slots]` int32 of this rank alone, zero before the first launch.
    """

    own: torch.Tensor
    addresses: torch.Tensor
    epochs: torch.Tensor
    flags_at: int
    rank: int
    count: int

    @property
    def slots(self) -> int:
        """Programs that may meet in one launch."""
        return int(self.epochs.shape[0])


@triton.jit
def meet(addresses_ptr, epochs_ptr, slot, flags_at, RANK: tl.constexpr, COUNT: tl.constexpr):
    """Wait until program `slot` of every rank is here; what each wrote before is visible to all behind this.

    That covers what the kernels in front of this one wrote, too: a program that has begun says that they have ended.
    """
    tl.debug_barrier()  # every thread has written before one of them says so
    epoch = tl.load(epochs_ptr + slot) + 1
    for i in tl.static_range(1, COUNT):
        there = tl.load(addresses_ptr + (RANK + i) % COUNT) + flags_at
        tl.atomic_xchg(there.to(tl.pointer_type(tl.int32)) + slot * COUNT + RANK, epoch, sem="release", scope="sys")
    here = (tl.load(addresses_ptr + RANK) + flags_at).to(tl.pointer_type(tl.int32)) + slot * COUNT
    for i in tl.static_range(1, COUNT):
        # A difference, since numbers go around; a rank that is ahead by one has been here as well.
        while tl.atomic_add(here + (RANK + i) % COUNT, 0, sem="acquire", scope="sys") - epoch < 0:
            pass
    tl.store(epochs_ptr + slot, epoch)
    tl.debug_barrier()
