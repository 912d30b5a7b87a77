"""KV of tokens that were computed before: a radix tree over token ids, in the manner of SGLang (arXiv 2312.07104).

    root ── [12 7 7 3] ─┬─ [9 9]        a node: consecutive tokens and the slots that hold their KV
                        └─ [4 1 5 8]    a child is known by its first token

A node is locked while a running job uses it: `locks` counts the users of the node and of everything below it, so an
unlocked node has no locked descendants and its slots may be evicted, leaves first, least recently used first.

Invariants (`problems` checks them): a node's locks >= the sum of its children's; `num_evictable` = tokens of unlocked
nodes; no two children of a node share a first token; every node but a root has at least one token; a node of the
public tree has the names of exactly the blocks that end in it.
"""

import heapq
from collections.abc import Iterator
from itertools import count
from typing import NamedTuple

import numpy as np

from services.common.prefix_blocks import BLOCK_TOKENS
from services.engine.arrays import Ints
from services.engine.prefix_names import BlockNames, names_of

_NONE = np.empty(0, np.int32)


class Node:
    """A stretch of tokens in the tree; made and changed by PrefixCache only."""

    __slots__ = ("children", "last_used", "locks", "names", "parent", "queued", "slots", "start", "tokens")

    def __init__(self, tokens: Ints, slots: Ints, parent: "Node | None") -> None:
        self.tokens = tokens
        self.slots = slots
        self.parent = parent
        self.start: int = 0 if parent is None else parent.end
        self.names: list[int] = []  # of the blocks that end in this node
        self.children: dict[int, Node] = {}
        self.locks = 0
        self.last_used = 0
        self.queued = False  # in the eviction heap

    @property
    def end(self) -> int:
        """How many tokens lie on the way from the root to here, this node's own included."""
        return self.start + len(self.tokens)

    def path(self) -> "list[Node]":
        """Nodes from below the root to this one."""
        nodes: list[Node] = []
        node = self
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        nodes.reverse()
        return nodes


class Match(NamedTuple):
    """The deepest node on the way of some tokens, and how many of them it covers."""

    node: Node
    num_tokens: int


class PrefixCache:
    """Owned by the KV cache, which allocates the slots that come in and frees those that go out."""

    def __init__(self) -> None:
        self.root = Node(_NONE, _NONE, None)
        self.num_tokens = 0
        self.num_evictable = 0
        self.names = BlockNames()
        self._clock = 0
        self._heap: list[tuple[int, int, Node]] = []  # (last_used, tie, leaf); at most one entry a node, perhaps stale
        self._tie = count()

    def match(self, tokens: Ints, limit: int, root: Node | None = None, known: Node | None = None) -> Match:
        """Find the longest cached prefix of tokens[:limit]; splits a node so that the match ends at one.

        known: a node that is known to lie on the way, so that nothing above it has to be compared.
        """
        node = known or root or self.root
        done = node.end
        self._clock += 1
        for above in node.path():
            above.last_used = self._clock
        while done < limit:
            child = node.children.get(int(tokens[done]))
            if child is None:
                break
            same = _common(child.tokens, tokens[done:limit])
            if same < len(child.tokens):
                child = self._split(child, same)
            child.last_used = self._clock
            node, done = child, done + same
            if same < len(child.tokens):
                break
        return Match(node, done)

    def insert(self, tokens: Ints, slots: Ints, root: Node | None = None, known: Node | None = None) -> Match:
        """Add tokens with their slots; the match says how many were there already: their given slots are not taken.

        known: as for `match`.
        """
        node, done = self.match(tokens, len(tokens), root, known)
        if done == len(tokens):
            return Match(node, done)
        leaf = Node(tokens[done:].copy(), slots[done:].copy(), node)
        leaf.last_used = self._clock
        if root is None:
            leaf.names = self.names.stored(tokens, node.path(), done)
        node.children[int(tokens[done])] = leaf
        self.num_tokens += len(leaf.tokens)
        self.num_evictable += len(leaf.tokens)
        self._offer(leaf)
        return Match(leaf, done)

    def lock(self, node: Node) -> int:
        """Keep a node and its ancestors; returns how many tokens were evictable until now."""
        newly = 0
        for each in node.path():
            if each.locks == 0:
                newly += len(each.tokens)
            each.locks += 1
        self.num_evictable -= newly
        return newly

    def unlock(self, node: Node) -> None:
        """Undo one `lock`."""
        for each in node.path():
            assert each.locks > 0, "a cached prefix was unlocked more often than locked"
            each.locks -= 1
            if each.locks == 0:
                self.num_evictable += len(each.tokens)
                self._offer(each)

    def unlocked_tokens(self, node: Node) -> int:
        """How many tokens `lock` would take from the evictable ones."""
        return sum(len(each.tokens) for each in node.path() if each.locks == 0)

    def evict(self, n: int) -> Ints:
        """Drop at least n tokens, or all that may go; returns their slots."""
        freed: list[Ints] = []
        while n > 0 and self._heap:
            last_used, _, node = heapq.heappop(self._heap)
            node.queued = False
            if node.parent is None or node.locks or node.children:
                continue
            if node.last_used != last_used:
                self._offer(node)
                continue
            if len(node.tokens) > n:  # only the end of a long leaf: its beginning may still be matched
                self._split(node, len(node.tokens) - n)
            freed.append(node.slots)
            n -= len(node.slots)
            self._remove(node)
        return np.concatenate(freed) if freed else _NONE

    def remove_tree(self, root: Node) -> Ints:
        """Drop everything below a private root; returns the slots. Nothing of it may be locked."""
        freed: list[Ints] = []
        for node in list(_below(root)):
            assert node.locks == 0, "a private prefix was dropped while in use"
            freed.append(node.slots)
            self.num_tokens -= len(node.tokens)
            self.num_evictable -= len(node.tokens)
            node.parent = None
        root.children.clear()
        return np.concatenate(freed) if freed else _NONE

    def nodes(self, root: Node | None = None) -> Iterator[Node]:
        """Every node below a root; for integrity checks."""
        return _below(root or self.root)

    def problems(self, roots: list[Node]) -> list[str]:
        """What is wrong with the trees below the public and the private roots; empty when nothing is."""
        found: list[str] = []
        nodes = [node for root in [self.root, *roots] for node in _below(root)]
        for node in nodes:
            if sum(child.locks for child in node.children.values()) > node.locks:
                found.append(f"prefix node of {len(node.tokens)} tokens has fewer locks than its children")
            if len(node.tokens) == 0 or len(node.tokens) != len(node.slots):
                found.append(f"prefix node has {len(node.tokens)} tokens and {len(node.slots)} slots")
        found += [
            f"prefix node of {len(node.tokens)} tokens does not name the blocks that end in it"
            for node in _below(self.root)
            if node.names != names_of(node.path())[node.start // BLOCK_TOKENS :]
        ]
        total = sum(len(node.tokens) for node in nodes)
        evictable = sum(len(node.tokens) for node in nodes if node.locks == 0)
        if total != self.num_tokens:
            found.append(f"prefix cache counts {self.num_tokens} tokens, its tree holds {total}")
        if evictable != self.num_evictable:
            found.append(f"prefix cache counts {self.num_evictable} evictable tokens, its tree holds {evictable}")
        return found

    def _split(self, node: Node, k: int) -> Node:
        """Cut a node after k tokens; the part above is new and returned, so users of the whole keep their node."""
        parent = node.parent
        assert parent is not None
        upper = Node(node.tokens[:k], node.slots[:k], parent)
        upper.locks, upper.last_used = node.locks, node.last_used
        parent.children[int(upper.tokens[0])] = upper
        node.tokens, node.slots, node.parent, node.start = node.tokens[k:], node.slots[k:], upper, upper.end
        num_upper = upper.end // BLOCK_TOKENS - upper.start // BLOCK_TOKENS
        upper.names, node.names = node.names[:num_upper], node.names[num_upper:]
        upper.children[int(node.tokens[0])] = node
        return upper

    def _remove(self, leaf: Node) -> None:
        parent = leaf.parent
        assert parent is not None
        del parent.children[int(leaf.tokens[0])]
        leaf.parent = None
        self.names.evicted(leaf.names)
        self.num_tokens -= len(leaf.tokens)
        self.num_evictable -= len(leaf.tokens)
        self._offer(parent)

    def _offer(self, node: Node) -> None:
        """Make a node a candidate for eviction if it is an unlocked leaf."""
        if node.parent is not None and node.locks == 0 and not node.children and not node.queued:
            node.queued = True
            heapq.heappush(self._heap, (node.last_used, next(self._tie), node))


def _common(a: Ints, b: Ints) -> int:
    """Length of the common prefix."""
    n = min(len(a), len(b))
    differ = np.flatnonzero(a[:n] != b[:n])
    return int(differ[0]) if len(differ) else n


def _below(root: Node) -> Iterator[Node]:
    stack = list(root.children.values())
    while stack:
        node = stack.pop()
        yield node
        stack.extend(node.children.values())
