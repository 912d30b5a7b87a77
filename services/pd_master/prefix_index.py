"""Which prompt prefixes each worker's cache holds, from the workers' own accounts. Pure.

A prefix is a chain of block names (`services.common.prefix_blocks`). A worker holds it as far as it holds every block
of it in a row: one missing in between ends the match, as it does in the worker's radix tree.

    unknown --number 0--> following --the next number--> following
                              '--another number--> lost, nothing known --number 0--> following

Workers are bits of one integer for each block, so that a match costs one look-up and one AND a block, however many
workers there are. An index that is full learns nothing more: what it lacks is a hit less, never a wrong answer.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from services.common.messages import CacheChanges, WorkerRef
from services.common.prefix_blocks import BLOCK_TOKENS, prompt_names

MAX_ENTRIES = 2_000_000
"""(block, worker) pairs that are kept: 128 million tokens of cache, about 260 MB where no two workers share a block."""


@dataclass(slots=True)
class _Account:
    """What one worker has told."""

    bit: int
    blocks: set[int] = field(default_factory=set)
    generation: int = 0
    next_number: int | None = None
    is_lost: bool = False
    """Changes were lost: a new generation is waited for."""


class PrefixIndex:
    """One for a master. O(blocks of the prompt that somebody holds) to ask, O(blocks) to tell."""

    def __init__(self, max_entries: int = MAX_ENTRIES) -> None:
        self._max_entries = max_entries
        self._holders: dict[int, int] = {}
        """Block -> bits of the workers that hold it."""
        self._accounts: dict[WorkerRef, _Account] = {}
        self._worker_of: dict[int, WorkerRef] = {}
        """Bit -> worker."""
        self.num_entries = 0

    def __len__(self) -> int:
        return len(self._holders)

    def follow(self, worker: WorkerRef, changes: CacheChanges) -> bool:
        """Take the worker's next message. False, once, when some before it were lost: ask it to begin anew."""
        if changes.number == 0:
            self.forget(worker)
            self._account(worker).generation = changes.generation
        account = self._account(worker)
        if changes.number == 0 or (changes.generation, changes.number) == (account.generation, account.next_number):
            account.next_number = changes.number + 1
            self.evicted(worker, changes.evicted)
            self.stored(worker, changes.stored)
            return True
        self.forget(worker)
        self._account(worker).is_lost = True
        return account.is_lost

    def stored(self, worker: WorkerRef, blocks: Iterable[int]) -> None:
        """The worker holds these from now on, as far as there is room. Repeating it changes nothing."""
        account, holders = self._account(worker), self._holders
        for block in blocks:
            if block not in account.blocks and self.num_entries < self._max_entries:
                account.blocks.add(block)
                holders[block] = holders.get(block, 0) | account.bit
                self.num_entries += 1

    def evicted(self, worker: WorkerRef, blocks: Iterable[int]) -> None:
        """The worker holds these no more. Unknown ones are ignored."""
        account = self._account(worker)
        for block in blocks:
            if block in account.blocks:
                account.blocks.discard(block)
                self._drop(account.bit, block)

    def forget(self, worker: WorkerRef) -> None:
        """The worker is gone, or begins its account anew."""
        account = self._accounts.pop(worker, None)
        if account is not None:
            del self._worker_of[account.bit]
            for block in account.blocks:
                self._drop(account.bit, block)

    def match(self, blocks: Iterable[int]) -> dict[WorkerRef, int]:
        """Worker -> how many leading blocks it holds; workers that hold none are left out.

        Takes of `blocks` no more than the longest match and one.
        """
        matched: dict[WorkerRef, int] = {}
        still, number = -1, 0
        for block in blocks:
            held = still & self._holders.get(block, 0)
            if number and held != still:
                matched.update(dict.fromkeys(self._workers(still & ~held), number))
            still = held
            if not still:
                return matched
            number += 1
        if number:
            matched.update(dict.fromkeys(self._workers(still), number))
        return matched

    def cached_tokens(self, prompt_ids: list[int]) -> dict[WorkerRef, int]:
        """Worker -> leading tokens of this prompt that it need not compute. The last one is always computed."""
        if not self._holders:
            return {}
        matched = self.match(prompt_names(prompt_ids))
        return {worker: min(count * BLOCK_TOKENS, len(prompt_ids) - 1) for worker, count in matched.items()}

    def _account(self, worker: WorkerRef) -> _Account:
        account = self._accounts.get(worker)
        if account is None:
            bit = 1
            while bit in self._worker_of:
                bit <<= 1
            account = self._accounts[worker] = _Account(bit)
            self._worker_of[bit] = worker
        return account

    def _workers(self, bits: int) -> Iterable[WorkerRef]:
        while bits:
            bit = bits & -bits
            yield self._worker_of[bit]
            bits ^= bit

    def _drop(self, bit: int, block: int) -> None:
        self.num_entries -= 1
        left = self._holders[block] & ~bit
        if left:
            self._holders[block] = left
        else:
            del self._holders[block]
