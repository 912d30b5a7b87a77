"""Who holds which slot of the KV pool: the allocator, the prefix cache and the holdings of running jobs, tied together.

    free  --acquire/grow-->  private to a holding  --share/release(valid)-->  in the prefix tree  --evict-->  free
                             private to a holding  --release-->  free

Every slot is in exactly one of: free, private to one holding, in the tree. A holding covers the positions
[0, len(slots)) of one prompt or sequence: the first `num_shared` belong to the tree and are locked through `node`, the
rest are its own. With the prefix cache off each holding has a private root, so that the choices of one prompt still
share its slots, and the root goes with the last of them.

Releasing takes effect at once: everything that writes a slot is launched on one stream, so the writes of a later owner
come after those of a step still in flight.
"""

from dataclasses import dataclass

import numpy as np

from services.common.ipc import Usage
from services.engine.arrays import Ints
from services.engine.prefix_cache import Node, PrefixCache
from services.engine.slots import SlotAllocator

EXTENT_SLOTS = 32
"""What a decoding sequence grows by: token by token, many sequences would interleave and leave one-slot holes."""


@dataclass(slots=True, eq=False)
class Holding:
    """The slots of one prompt or sequence by position; made by KvCache and ended by `KvCache.release` only."""

    slots: Ints
    num_shared: int
    node: Node
    root: Node | None
    """Private root when the prefix cache is off."""
    reserved: bool


class KvCache:
    """Owned by the engine's loop; knows slots and tokens, nothing of jobs, devices or steps."""

    def __init__(self, num_slots: int, *, prefix_cache: bool) -> None:
        self.num_slots = num_slots
        self._allocator = SlotAllocator(num_slots)
        self._prefixes = PrefixCache()
        self._public = prefix_cache
        self._private_roots: list[Node] = []
        self._num_private = 0
        self._num_reserved = 0
        self.num_evicted = 0

    def acquire(self, tokens: Ints, match_limit: int, *, spare: int = 0, reserved: bool = False) -> Holding | None:
        """Pin the cached prefix of tokens[:match_limit], allocate the rest, and `spare` slots more if there are plenty.

        Returns None, with nothing changed, when there is no room.
        """
        root = None if self._public else Node(tokens[:0], tokens[:0], None)
        match = self._prefixes.match(tokens, match_limit, root)
        room = self.available - self._prefixes.unlocked_tokens(match.node)
        need = len(tokens) - match.num_tokens
        if need > room:
            return None
        self._prefixes.lock(match.node)
        plenty = self._allocator.num_free - need - spare >= self.num_slots // 4
        own = self._allocate(need + spare if plenty else need)
        if root is not None:
            self._private_roots.append(root)
        holding = Holding(np.concatenate((_slots_of(match.node), own)), match.num_tokens, match.node, root, reserved)
        self._count(holding, len(own))
        return holding

    def grow(self, holding: Holding) -> bool:
        """Add an extent, right behind the last slot where that is free; False, with nothing changed, without room."""
        n = min(EXTENT_SLOTS, self.available)
        if n == 0:
            return False
        own = self._allocator.extend(int(holding.slots[-1]) + 1, n)
        if len(own) == 0:
            own = self._allocate(n)
        holding.slots = np.concatenate((holding.slots, own))
        self._count(holding, len(own))
        return True

    def grow_all(self, holdings: list[Holding]) -> Ints | None:
        """Add an extent to each, as `grow` does, and return them, `[len(holdings), EXTENT_SLOTS]`.

        Returns None, with nothing changed, where not so many slots are free.
        """
        if len(holdings) * EXTENT_SLOTS > self._allocator.num_free:
            return None
        lasts = np.fromiter((holding.slots[-1] for holding in holdings), np.int32, len(holdings))
        extents: Ints = np.add.outer(lasts, np.arange(1, EXTENT_SLOTS + 1, dtype=np.int32))
        apart = [i for i, last in enumerate(lasts.tolist()) if not self._allocator.take_run(last + 1, EXTENT_SLOTS)]
        if apart:
            extents[apart] = self._allocate(len(apart) * EXTENT_SLOTS).reshape(-1, EXTENT_SLOTS)
        for holding, own in zip(holdings, extents, strict=True):
            holding.slots = np.concatenate((holding.slots, own))
        self._num_private += extents.size
        return extents

    def share(self, holding: Holding, tokens: Ints) -> bool:
        """Move the slots of `tokens`, whose KV is all there, to the tree; True when some of them were there already.

        Then the tree's slots replace the holding's own, which are freed: whoever keeps a copy must take the new ones.
        """
        n = len(tokens)
        node, known = self._prefixes.insert(tokens, holding.slots[:n], holding.root, holding.node)
        self._prefixes.lock(node)
        self._prefixes.unlock(holding.node)
        doubled = holding.slots[holding.num_shared : known].copy()
        if len(doubled):
            holding.slots[:known] = _slots_of(node)[:known]
            self._allocator.free(doubled)
        self._count(holding, holding.num_shared - n)
        holding.node, holding.num_shared = node, n
        return len(doubled) > 0

    def fork(self, holding: Holding) -> Holding:
        """Another user of the shared part of a holding; it grows on its own."""
        self._prefixes.lock(holding.node)
        shared = holding.slots[: holding.num_shared].copy()
        return Holding(shared, holding.num_shared, holding.node, holding.root, reserved=False)

    def join(self, holding: Holding) -> None:
        """Turn a reservation into held slots."""
        own = len(holding.slots) - holding.num_shared
        self._count(holding, -own)
        holding.reserved = False
        self._count(holding, own)

    def release(self, holding: Holding, valid_tokens: Ints | None = None) -> None:
        """End a holding. `valid_tokens`, whose KV is all there, stay as evictable prefix; None keeps nothing new."""
        own = holding.slots[holding.num_shared :]
        self._count(holding, -len(own))
        if self._public and valid_tokens is not None and len(valid_tokens) > holding.num_shared:
            own = self._keep(holding, valid_tokens)
        self._allocator.free(own)
        self._prefixes.unlock(holding.node)
        if holding.root is not None and not any(node.locks for node in holding.root.children.values()):
            self._allocator.free(self._prefixes.remove_tree(holding.root))
            if holding.root in self._private_roots:
                self._private_roots.remove(holding.root)
        holding.slots = holding.slots[:0]

    def settle(self) -> None:
        """Sort in what was released, which the next to take slots would else have to wait for."""
        self._allocator.settle()

    def _keep(self, holding: Holding, tokens: Ints) -> Ints:
        """Move the slots of `tokens` to the tree, evictable; return those that are left of the holding's own."""
        n = len(tokens)
        _, known = self._prefixes.insert(tokens, holding.slots[:n], known=holding.node)
        self._allocator.free(holding.slots[holding.num_shared : known])  # the tree has had their like
        return holding.slots[n:]

    def cache_changes(self) -> tuple[list[int], list[int]]:
        """Names of the blocks that the prefix cache has stored and evicted since the last call."""
        return self._prefixes.names.take()

    @property
    def available(self) -> int:
        """Slots that an allocation may take: free or evictable."""
        return self._allocator.num_free + self._prefixes.num_evictable

    @property
    def num_pinned(self) -> int:
        """Slots that are neither free nor evictable."""
        return self.num_slots - self.available

    def usage(self, **pages: int) -> Usage:
        """Slots by state; `pages` by state are for others to say."""
        locked = self._prefixes.num_tokens - self._prefixes.num_evictable
        return Usage(
            num_slots=self.num_slots,
            free_slots=self._allocator.num_free,
            held_slots=self._num_private + locked,
            reserved_slots=self._num_reserved,
            evictable_slots=self._prefixes.num_evictable,
            **pages,
        )

    def problems(self, holdings: list[Holding]) -> list[str]:
        """Check that every slot has exactly one owner and every lock a user, given all holdings that exist."""
        found = self._prefixes.problems(self._private_roots)
        found += self._slot_problems(holdings)
        found += self._lock_problems(holdings)
        private = sum(len(h.slots) - h.num_shared for h in holdings)
        if private != self._num_private + self._num_reserved:
            found.append(f"{self._num_private} held and {self._num_reserved} reserved slots counted, {private} owned")
        return found

    def _slot_problems(self, holdings: list[Holding]) -> list[str]:
        owners = np.zeros(self.num_slots, np.int32)
        np.add.at(owners, self._allocator.free_slots(), 1)
        for root in (None, *self._private_roots):
            for node in self._prefixes.nodes(root):
                np.add.at(owners, node.slots, 1)
        for holding in holdings:
            np.add.at(owners, holding.slots[holding.num_shared :], 1)
        lost, doubled = np.flatnonzero(owners == 0), np.flatnonzero(owners > 1)
        found = []
        if len(lost):
            found.append(f"{len(lost)} slots have no owner, such as {lost[:8].tolist()}")
        if len(doubled):
            found.append(f"{len(doubled)} slots have several owners, such as {doubled[:8].tolist()}")
        return found

    def _lock_problems(self, holdings: list[Holding]) -> list[str]:
        expected: dict[int, int] = {}
        for holding in holdings:
            for node in holding.node.path():
                expected[id(node)] = expected.get(id(node), 0) + 1
        return [
            f"prefix node of {len(node.tokens)} tokens has {node.locks} locks and {expected.get(id(node), 0)} users"
            for root in (None, *self._private_roots)
            for node in self._prefixes.nodes(root)
            if node.locks != expected.get(id(node), 0)
        ]

    def _allocate(self, n: int) -> Ints:
        """Take n slots, evicting as needed; the caller has checked that they are available."""
        missing = n - self._allocator.num_free
        if missing > 0:
            freed = self._prefixes.evict(missing)
            self.num_evicted += len(freed)
            self._allocator.free(freed)
        slots = self._allocator.allocate(n)
        assert slots is not None, "slots that were available could not be allocated"
        return slots

    def _count(self, holding: Holding, n: int) -> None:
        if holding.reserved:
            self._num_reserved += n
        else:
            self._num_private += n


def _slots_of(node: Node) -> Ints:
    """Slots of all tokens from the root to a node."""
    path = node.path()
    return np.concatenate([each.slots for each in path]) if path else np.empty(0, np.int32)
