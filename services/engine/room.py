"""A slot for the next token of every decoding row, found by evicting, revoking, preempting in this order (R18)."""

import logging

from services.common.ipc import Preempted, Revoked
from services.engine.arrays import Indexes
from services.engine.jobs import Job, JobState, Sequence
from services.engine.restores import Restores
from services.engine.state import EngineState

log = logging.getLogger(__name__)


class RoomMaker:
    """Owned by the loop; called before each step is built."""

    def __init__(self, state: EngineState, restores: Restores) -> None:
        self._state = state
        self._restores = restores
        self.full: list[Sequence] = []
        """Sequences that cannot grow and are the last running: they end at their length. The loop takes them."""

    def decoding_rows(self) -> Indexes:
        """Rows of the next step, each with a slot for its next token."""
        rows = self._state.rows
        decode = rows.decoding()
        full = decode[rows.length[decode] >= rows.capacity[decode]]
        if len(full) == 0 or self._grow_all(full):
            return decode
        for row in full.tolist():
            sequence = self._state.sequence_of[row]
            if sequence is not None:  # it may have been preempted for a row before it
                self._grow(sequence, row)
        return rows.decoding()

    def _grow_all(self, full: Indexes) -> bool:
        """Where slots are free for all of them, as is the rule, there is nobody to choose."""
        sequences = (self._state.sequence_of[row] for row in full.tolist())
        slots = self._state.kv.grow_all([each.holding for each in sequences if each is not None and each.holding])
        if slots is not None:
            self._state.rows.extend(full, slots)
        return slots is not None

    def _grow(self, sequence: Sequence, row: int) -> None:
        state = self._state
        while sequence.holding is not None:
            before = len(sequence.holding.slots)
            if state.kv.grow(sequence.holding):
                state.rows.write(row, before, sequence.holding.slots[before:])
                return
            if not self._free_something():
                state.rows.remaining[row] = 0
                self.full.append(sequence)
                return

    def _free_something(self) -> bool:
        """Revoke or preempt one; False when only one is left running."""
        reserved = [j for j in self._state.jobs.values() if j.state is JobState.RESERVED and not j.has_bytes]
        if reserved:
            self._revoke(max(reserved, key=_age))
            return True
        running = [j for j in self._state.jobs.values() if _is_running(j)]
        if sum(_num_running(job) for job in running) <= 1:
            return False
        self._preempt(max(running, key=_age))
        return True

    def _revoke(self, job: Job) -> None:
        self._state.counters.revocations += 1
        self._state.events.append(Revoked(job.job_id))
        _log(job, "revoked the reservation of")
        self._state.end_job(job)

    def _preempt(self, job: Job) -> None:
        """Preempt one sequence of a decoding job, all of one whose prompt is being computed."""
        state = self._state
        _log(job, "preempted")
        running = [s for s in job.sequences.values() if not s.gone]
        victims = running[-1:] if job.state is JobState.DECODING else running
        for sequence in victims:
            state.events.append(Preempted(job.job_id, sequence.choice))
        if len(victims) == 1:
            self._keep(victims[0])
        if job.state is JobState.DECODING:
            state.end_sequence(victims[0], len(victims[0].outputs))
        else:
            state.end_job(job)

    def _keep(self, sequence: Sequence) -> None:
        """Copy to the host what is computed of a sequence that is about to lose its slots."""
        job, state = sequence.job, self._state
        if job.state is JobState.RESTORING:
            self._restores.preempted(job)
            return
        if job.state is JobState.DECODING:
            tokens, holding = state.valid_tokens(sequence, len(sequence.outputs)), sequence.holding
        elif job.sampling.num_prompt_logprobs is not None:
            return  # it is computed again for its logits
        else:
            tokens, holding = job.tokens[: job.num_computed], job.holding
        assert holding is not None
        state.host.keep((job.job_id, sequence.choice), tokens, holding.slots)


def _age(job: Job) -> tuple[float, int]:
    return (job.arrival, job.job_id)


def _is_running(job: Job) -> bool:
    return job.state in {JobState.DECODING, JobState.RESTORING} or (
        job.state is JobState.PREFILLING and not job.hand_over
    )


def _num_running(job: Job) -> int:
    return sum(not sequence.gone for sequence in job.sequences.values())


def _log(job: Job, what: str) -> None:
    extra = {"request_id": job.key.request_id}
    log.info("%s %s attempt %d to find slots", what, job.key.request_id, job.key.attempt, extra=extra)
