"""Preempted sequences on their way back from the host cache, a few pages a turn.

    admitted, something is kept ──> RESTORING ── last page is on its way into its slots ──> PREFILLING: the last token
                                       ├─ preempted: what is kept stays
                                       └─ ended otherwise: what is kept is dropped

From its admission on what is kept has the job's own name, so that a late Abort or Finish of the job before it cannot
drop what is being read. A page is fetched in one turn, beside the step, and put into its slots in the next, behind the
launches so far: the device waits for nothing unless a step takes less time than the pages of a turn.
"""

from dataclasses import dataclass, field

from services.engine.host_cache import Kept, SequenceName
from services.engine.jobs import Job, JobState
from services.engine.runner import Fetched
from services.engine.state import EngineState


@dataclass(slots=True, eq=False)
class _Restore:
    job: Job
    name: SequenceName
    """The job's own."""
    kept: Kept
    end: int
    """Tokens to have when it is done."""
    next_page: int
    fetched: list[tuple[int, Fetched]] = field(default_factory=list)


class Restores:
    """Owned by the loop; every RESTORING job is one of these."""

    def __init__(self, state: EngineState) -> None:
        self._state = state
        self._cache = state.host
        self._restores: dict[int, _Restore] = {}  # by job id, in the order of admission
        state.on_end.append(self.forget)

    @property
    def busy(self) -> bool:
        """Whether anything is on its way back."""
        return bool(self._restores)

    def begin(self, job: Job, resumes: int) -> bool:
        """Take a job with its slots that goes on with what job `resumes` left; False where nothing is kept for it
        or where its prompt is still to be scored.

        Of the job's one choice. Its `cached_tokens` then count what comes back as well.
        """
        choice = job.choices[0]
        name, own = (resumes, choice), (job.job_id, choice)
        kept = self._cache.find(name, job.tokens)
        end = 0
        if kept is not None and job.sampling.num_prompt_logprobs is None:  # scores need logits, which are not kept
            end = min(len(kept.tokens), len(job.tokens) - 1)
        if kept is None or end <= job.num_computed:
            self._cache.drop(name)
            return False
        self._cache.rename(name, own)
        job.state = JobState.RESTORING
        job.cached_tokens = end
        self._restores[job.job_id] = _Restore(job, own, kept, end, job.num_computed // self._cache.page_tokens)
        return True

    def turn(self) -> None:
        """Put what was fetched a turn ago, fetch more, and let those that are back compute."""
        for restore in list(self._restores.values()):
            self._put(restore)
        budget = self._cache.fetches_at_once
        for restore in self._restores.values():
            budget -= self._fetch(restore, budget)

    def preempted(self, job: Job) -> None:
        """The job is about to end but comes back, and finds what is kept."""
        del self._restores[job.job_id]

    def forget(self, job: Job) -> None:
        """The job has ended."""
        restore = self._restores.pop(job.job_id, None)
        if restore is not None:
            self._cache.drop(restore.name)

    def _put(self, restore: _Restore) -> None:
        job, page_tokens = restore.job, self._cache.page_tokens
        assert job.holding is not None
        for index, fetched in restore.fetched:
            first, end = index * page_tokens, min((index + 1) * page_tokens, restore.end)
            fetched.put(job.holding.slots[job.num_computed : end], skip=job.num_computed - first)
            self._state.counters.restored_tokens += end - job.num_computed
            job.num_computed = end
        restore.fetched = []
        if job.num_computed == restore.end:
            self._state.counters.restored_sequences += 1
            self.forget(job)
            self._state.begin_prompt(job)

    def _fetch(self, restore: _Restore, budget: int) -> int:
        """Fetch up to `budget` pages; returns how many."""
        last = -(-restore.end // self._cache.page_tokens)
        pages = range(restore.next_page, min(last, restore.next_page + budget))
        restore.fetched = [(index, self._cache.fetch(restore.kept, index)) for index in pages]
        restore.next_page += len(pages)
        return len(pages)
