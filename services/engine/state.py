"""What the engine's loop knows: jobs, rows, slots and the events to send."""

import logging
from collections.abc import Callable

import numpy as np

from services.common.ipc import AttemptKey, CacheChanged, Deferred, Ended, Event, GrammarRefused, Usage
from services.engine.agreement import Agreement
from services.engine.arrays import Indexes, Ints
from services.engine.counters import EngineCounters
from services.engine.decode_group import DecodeGroup, group_of
from services.engine.grammars import Grammars
from services.engine.host_cache import HostCache
from services.engine.jobs import Job, JobState, Sequence
from services.engine.kv_cache import Holding, KvCache
from services.engine.rows import Rows
from services.engine.transfer.pages import PagePool

log = logging.getLogger(__name__)


class EngineState:
    """One place where jobs begin and end, so that rows, slots and events cannot disagree.

    Invariants: a job is in `jobs` from its Admitted or Reserved to its Ended; a row in use belongs to one PREFILLING
    job or one sequence that is not gone; each holding that exists belongs to one job or one such sequence.
    """

    def __init__(
        self, rows: Rows, kv: KvCache, grammars: Grammars, host: HostCache, counters: EngineCounters,
        agreement: Agreement,
    ) -> None:  # fmt: skip
        self.rows = rows
        self.kv = kv
        self.host = host
        self.grammars = grammars
        self.agreement = agreement
        self.jobs: dict[int, Job] = {}
        self.prefilling: list[Job] = []
        """In the order of admission."""
        self.sequence_of: list[Sequence | None] = [None] * len(rows.length)
        """By row, of rows that decode."""
        self._decodes = group_of(rows.decoding(), rows, [])
        self.events: list[Event] = []
        self.counters = counters
        self.pages: PagePool | None = None
        """Of the KV transfer, where there is one."""
        self.on_end: list[Callable[[Job], None]] = []
        """Told of each job that ends; the KV transfer and the host cache forget it."""
        self.last_word: Callable[[Job], None] = self.say_ended
        """Has Ended said of a job of which nothing but transfer pages is left."""

    def say(self, event: Event) -> None:
        """Have an event sent with this turn's."""
        self.events.append(event)

    def usage(self) -> Usage:
        """Slots and pages by state."""
        host = {"host_pages_free": self.host.num_free, "host_pages_in_use": self.host.num_used}
        if self.pages is None:
            return self.kv.usage(**host)
        pages = self.pages.counts()
        return self.kv.usage(
            **host,
            pages_free=pages.free,
            pages_in_use=pages.held + pages.moving,
            pages_quarantined=pages.quarantined,
        )

    def add(self, job: Job) -> None:
        """A job is in, with its holding."""
        self.jobs[job.job_id] = job

    def decode_group(self, decode: Indexes) -> DecodeGroup:
        """The sequences of the rows `decode`, all of which decode; the same object while nobody joins or leaves."""
        known, n = self._decodes, len(decode)
        if len(known.rows) != n or np.count_nonzero((known.rows == decode) & known.still_there(self.rows)) < n:
            sequences = [sequence for row in decode.tolist() if (sequence := self.sequence_of[row]) is not None]
            self._decodes = known = group_of(decode, self.rows, sequences)
        return known

    def begin_prompt(self, job: Job) -> None:
        """A job computes what there is no KV of, behind those before it."""
        job.state = JobState.PREFILLING
        self.prefilling.append(job)

    def defer(self, job_id: int) -> None:
        """There is no room for a job, which has left no trace."""
        self.events.append(Deferred(job_id, self.kv.available))

    def refuse(self, job_id: int, key: AttemptKey, why: str) -> None:
        """A job can never run here: Ended is all that is said of it."""
        log.error("cannot run %s: %s", key.request_id, why, extra={"request_id": key.request_id})
        self.events.append(Ended(job_id))

    def refuse_grammars(self) -> None:
        """End the jobs whose grammar cannot be had."""
        for job, why in self.grammars.failed():
            log.info("grammar refused: %s", why, extra={"request_id": job.key.request_id})
            self.events.append(GrammarRefused(job.job_id, why))
            self.end_job(job)

    def tell_cache_changes(self) -> None:
        """Say what the prefix cache holds now and did not before, and the other way round."""
        stored, evicted = self.kv.cache_changes()
        if stored or evicted:
            self.events.append(CacheChanged(stored, evicted))

    def finish_prompt(self, job: Job) -> bool:
        """The last chunk is launched: hand-over jobs wait for Release, others decode from the next step.

        Returns whether the job has given back slots, since another prompt's hold the same KV.
        """
        assert job.holding is not None
        assert job.row is not None
        self.prefilling.remove(job)
        cached = job.holding.num_shared
        replaced = self.kv.share(job.holding, job.tokens)
        if job.hand_over:
            self.rows.give_back(job.row)
            job.row = None
            job.state = JobState.HOLDING
            return replaced
        if replaced:
            self.rows.write(job.row, cached, job.holding.slots[cached:])
        self.begin_decoding(job, num_sampled=1)
        return replaced

    def begin_decoding(self, job: Job, num_sampled: int) -> None:
        """Split a job's holding among its sequences, which have rows, and let them decode.

        `num_sampled` tokens a sequence have been sampled beyond `job.tokens`.
        """
        holding, row = job.holding, job.row
        assert holding is not None
        job.holding, job.row, job.state = None, None, JobState.DECODING
        first, *others = [sequence for sequence in job.sequences.values() if not sequence.gone]
        if row is not None and row not in {first.row, *(other.row for other in others)}:
            self.rows.give_back(row)
        for sequence in others:
            self._bind(sequence, self.kv.fork(holding), num_sampled)
        self._bind(first, holding, num_sampled)

    def _bind(self, sequence: Sequence, holding: Holding, num_sampled: int) -> None:
        job, row, rows = sequence.job, sequence.row, self.rows
        assert row is not None
        sequence.holding = holding
        self.sequence_of[row] = sequence
        if rows.capacity[row] == 0:
            rows.write(row, 0, holding.slots)
        rows.length[row] = len(job.tokens)
        rows.prompt[row] = job.num_prompt_tokens
        rows.job_ids[row], rows.choices[row] = job.job_id, sequence.choice
        rows.remaining[row] = max(0, job.max_outputs - job.num_given_outputs - num_sampled)

    def end_sequence(self, sequence: Sequence, num_outputs: int, *, is_drawn: bool = True) -> None:
        """Take a sequence out and keep the KV of its first outputs as prefix; the last one ends the job.

        is_drawn: as of `valid_tokens`.
        """
        if sequence.gone:
            return
        sequence.gone = True
        sequence.sampler_state = None  # counts of its tokens on the device; a runner may remember the sequence
        if sequence.holding is not None:
            self.kv.release(sequence.holding, self.valid_tokens(sequence, num_outputs, is_drawn=is_drawn))
            sequence.holding = None
        if sequence.row is not None and sequence.job.row != sequence.row:
            self.sequence_of[sequence.row] = None
            self.rows.give_back(sequence.row)
            sequence.row = None
        job = sequence.job
        if job.state is not JobState.ENDING and all(each.gone for each in job.sequences.values()):
            self.end_job(job)

    def end_job(self, job: Job) -> None:
        """Give back all that a job has, in any state, and say Ended, at once or when its last page is back."""
        if job.state is JobState.ENDING:
            return
        if job.state is JobState.PREFILLING:
            self.prefilling.remove(job)
        computed = job.tokens[: job.num_computed] if job.holds_computed else None
        job.state = JobState.ENDING
        for sequence in job.sequences.values():
            self.end_sequence(sequence, len(sequence.outputs))
        if job.holding is not None:
            self.kv.release(job.holding, computed)
            job.holding = None
        if job.row is not None:
            self.rows.give_back(job.row)
            job.row = None
        for forget in self.on_end:
            forget(job)
        self.last_word(job)

    def say_ended(self, job: Job) -> None:
        """Nothing is left of an ENDING job."""
        del self.jobs[job.job_id]
        job.sequences.clear()  # no cycle is left, so nothing waits for the garbage collector
        self.events.append(Ended(job.job_id))
        log.debug("ended %s attempt %d", job.key.request_id, job.key.attempt, extra={"request_id": job.key.request_id})

    def valid_tokens(self, sequence: Sequence, num_outputs: int, *, is_drawn: bool = True) -> Ints:
        """Tokens whose KV is there for certain: the last sampled one has not been the input of a handled step.

        is_drawn: whether that one is among the outputs; else it is being drawn by a step that was launched.
        """
        job = sequence.job
        n = min(job.num_prompt_tokens + num_outputs, sequence.num_tokens - is_drawn)
        if n <= len(job.tokens):
            return job.tokens[:n]
        return np.concatenate((job.tokens[: job.num_prompt_tokens], np.array(sequence.outputs, np.int32)))[:n]

    def holdings(self) -> list[Holding]:
        """Every holding that exists; for integrity checks."""
        jobs = [job.holding for job in self.jobs.values() if job.holding is not None]
        sequences = [s.holding for job in self.jobs.values() for s in job.sequences.values() if s.holding is not None]
        return jobs + sequences

    def problems(self) -> list[str]:
        """Check that rows belong to whom the jobs say; empty when they do."""
        owners = [job.row for job in self.jobs.values() if job.row is not None]
        owners += [
            s.row
            for job in self.jobs.values()
            for s in job.sequences.values()
            if s.row is not None and s.row != job.row
        ]
        found = [] if len(set(owners)) == len(owners) else ["a row belongs to two"]
        if len(owners) + self.rows.num_free != len(self.rows.length):
            found.append(f"{len(owners)} rows are used and {self.rows.num_free} free of {len(self.rows.length)}")
        return found
