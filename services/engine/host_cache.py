"""KV of preempted sequences in host memory, until they come back.

    preempted ── keep ──> kept, under the name it had ── it comes back: Restores renames it, reads it ──> dropped
                 │            └─ Abort or Finish of that name ──> dropped
                 └─ not worth it, or no page is free ──> nothing is kept, the sequence is computed again

A name is (job_id, choice) of the job that was preempted; the Admit that resumes it says so in `resumes`. Pages hold
`page_tokens` tokens each, from the sequence's first on. Copies are launched in order on the device and nothing here
waits for them, so a page is free as soon as it is dropped. What is kept depends on tokens and pages alone, never on
time: ranks that take the same turns keep the same.
"""

import logging
from dataclasses import dataclass

import numpy as np

from services.engine.arrays import Ints
from services.engine.counters import EngineCounters
from services.engine.host_rule import Costs, pays
from services.engine.runner import Fetched, HostPages

log = logging.getLogger(__name__)

SequenceName = tuple[int, int]
"""(job_id, choice)."""


@dataclass(frozen=True, slots=True)
class Kept:
    """The KV of a sequence's first tokens; token i is in page `pages[i // page_tokens]`."""

    tokens: Ints
    pages: list[int]


class HostCache:
    """Owned by the engine's loop; knows names, tokens and pages, nothing of jobs."""

    def __init__(self, pages: HostPages, costs: Costs, counters: EngineCounters) -> None:
        self._pages = pages
        self._costs = costs
        self._counters = counters
        self._free = list(range(pages.num_pages - 1, -1, -1))
        self._kept: dict[SequenceName, Kept] = {}
        self._is_full = False

    @property
    def page_tokens(self) -> int:
        """Tokens of a page."""
        return self._pages.page_tokens

    @property
    def fetches_at_once(self) -> int:
        """Pages that may be on their way back at a time."""
        return self._pages.fetches_at_once

    @property
    def num_free(self) -> int:
        """Free pages."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Pages that keep something."""
        return self._pages.num_pages - len(self._free)

    def keep(self, name: SequenceName, tokens: Ints, slots: Ints) -> None:
        """Copy the KV of `tokens`, all of it in `slots` [num_tokens] or being written there by launched steps.

        The slots may be given away on return.
        """
        if not self._pages.num_pages or not pays(len(tokens), self._costs):
            return
        num_pages = -(-len(tokens) // self.page_tokens)
        self._note_room(num_pages <= len(self._free))
        if self._is_full:
            self._counters.host_cache_full += 1
            return
        kept = Kept(tokens, [self._free.pop() for _ in range(num_pages)])
        self._pages.keep(slots[: len(tokens)], kept.pages)
        self._kept[name] = kept
        self._counters.kept_sequences += 1
        self._counters.kept_tokens += len(tokens)

    def find(self, name: SequenceName, tokens: Ints) -> Kept | None:
        """What is kept of a sequence that comes back with `tokens`."""
        kept = self._kept.get(name)
        if kept is None or not np.array_equal(kept.tokens, tokens[: len(kept.tokens)]):
            return None
        return kept

    def fetch(self, kept: Kept, index: int) -> Fetched:
        """Bring page `index` of what is kept to the device."""
        num_tokens = min(self.page_tokens, len(kept.tokens) - index * self.page_tokens)
        return self._pages.fetch(kept.pages[index], num_tokens)

    def rename(self, name: SequenceName, new: SequenceName) -> None:
        """It is on its way back, as a sequence of another job."""
        self._kept[new] = self._kept.pop(name)

    def drop(self, name: SequenceName) -> None:
        """Nobody will ask for it, or it is back; unknown names are ignored."""
        kept = self._kept.pop(name, None)
        if kept is not None:
            self._free += kept.pages

    def drop_job(self, job_id: int) -> None:
        """Drop all choices of a job."""
        for name in [name for name in self._kept if name[0] == job_id]:
            self.drop(name)

    def problems(self) -> list[str]:
        """Check that every page has exactly one owner; empty when it has."""
        owned = [*self._free, *(page for kept in self._kept.values() for page in kept.pages)]
        found = []
        if len(set(owned)) != len(owned):
            found.append("a page of the host cache has two owners")
        if set(owned) != set(range(self._pages.num_pages)):
            found.append(f"{len(set(owned))} of {self._pages.num_pages} pages of the host cache have an owner")
        for (job_id, choice), kept in self._kept.items():
            if len(kept.pages) != -(-len(kept.tokens) // self.page_tokens):
                found.append(f"{len(kept.tokens)} tokens of {job_id}/{choice} are kept in {len(kept.pages)} pages")
        return found

    def _note_room(self, has_room: bool) -> None:
        if has_room == self._is_full:
            if self._is_full:
                log.info("the host cache has room again")
            else:
                log.warning(
                    "the host cache is full (%d pages of %d tokens): preempted sequences are computed again; raise "
                    "host_cache_gib (--host-cache-gib)", self._pages.num_pages, self.page_tokens,
                )  # fmt: skip
            self._is_full = not has_room
