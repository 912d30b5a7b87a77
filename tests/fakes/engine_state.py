"""The fake engine's jobs and slots: what the real one does with tensors, done with counters. No clock, no sockets.

Slots are counted, not named: a job holds its prompt and one slot a token that it decoded. Where slots run out, first a
reservation without bytes is revoked, then the sequence of the latest arrival is preempted (R18).
"""

import dataclasses
from typing import Any

from services.common.ipc import (
    Abort,
    Admit,
    Admitted,
    AttemptKey,
    CacheChanged,
    Deferred,
    Ended,
    EngineStop,
    Event,
    Finish,
    Join,
    Joined,
    Place,
    Preempted,
    Release,
    Reserve,
    Reserved,
    Revoked,
    SequenceOutput,
    Usage,
    unpack_ids,
)
from services.common.prefix_blocks import packed_names
from services.common.request import FinishReason
from tests.fakes.tokens import fake_token

NUM_PAGES = 8


@dataclasses.dataclass(slots=True)
class Sequence:
    """One choice that decodes."""

    num_output: int
    slots: int = 0


@dataclasses.dataclass(slots=True)
class Job:
    """States: computing (prefill left), holding (hand_over, computed), waiting (reserved), decoding."""

    job_id: int
    key: AttemptKey
    prompt: list[int]
    num_tokens: int
    arrival: float
    state: str
    stop: EngineStop | None = None
    sequences: dict[int, Sequence] = dataclasses.field(default_factory=dict)
    computed: int = 0
    hand_over: bool = False
    place: Place | None = None
    join: Join | None = None
    has_bytes: bool = False

    @property
    def slots(self) -> int:
        """All that it occupies."""
        return self.num_tokens + sum(sequence.slots for sequence in self.sequences.values())


class FakeState:
    """Commands in, events out; `step` advances everything by one step."""

    def __init__(self, num_slots: int, chunk_tokens: int, defer_every: int = 0) -> None:
        self.num_slots = num_slots
        self._defer_every = defer_every
        self._num_proposals = 0
        self._known_prompts: set[bytes] = set()
        """Stands for the prefix cache: a prompt computed before costs one token, and no slot less."""
        self._chunk = chunk_tokens
        self.jobs: dict[int, Job] = {}
        self.num_preempted = 0
        self.num_prefilled = 0

    @property
    def busy(self) -> bool:
        """Whether a step has anything to do."""
        return any(job.state in {"computing", "decoding"} for job in self.jobs.values())

    def usage(self) -> Usage:
        """Slots by state."""
        reserved = sum(job.slots for job in self.jobs.values() if job.state == "waiting")
        held = sum(job.slots for job in self.jobs.values()) - reserved
        return Usage(self.num_slots, self.num_slots - held - reserved, held, reserved, 0, NUM_PAGES)

    @property
    def free(self) -> int:
        """Slots nobody has."""
        return self.num_slots - sum(job.slots for job in self.jobs.values())

    def handle(self, command: Any) -> list[Event]:  # noqa: ANN401 - any Command about jobs
        """Apply one command about a job."""
        match command:
            case Admit():
                return self._admit(command)
            case Reserve():
                return self._reserve(command)
            case Place() if command.job_id in self.jobs:
                self.jobs[command.job_id].place = command
            case Join() if command.job_id in self.jobs:
                self.jobs[command.job_id].join = command
            case Finish():
                return self._finish(command)
            case Release() | Abort():
                return self._end(command.job_id) if command.job_id in self.jobs else [Ended(command.job_id)]
        return []

    def _admit(self, admit: Admit) -> list[Event]:
        prompt, output = unpack_ids(admit.prompt_ids), unpack_ids(admit.output_ids)
        num_tokens = len(prompt) + len(output)
        if self._must_defer(num_tokens):
            return [Deferred(admit.job_id, self.free)]
        job = Job(admit.job_id, admit.key, prompt, num_tokens, admit.arrival, "computing", admit.stop)
        job.sequences = {choice: Sequence(len(output)) for choice in admit.choices}
        job.hand_over = admit.hand_over
        job.computed = num_tokens - 1 if admit.prompt_ids in self._known_prompts else 0
        self.jobs[admit.job_id] = job
        events: list[Event] = [Admitted(admit.job_id, job.computed, num_tokens)]
        if admit.prompt_ids not in self._known_prompts:
            self._known_prompts.add(admit.prompt_ids)
            events.append(CacheChanged(packed_names(admit.prompt_ids), []))
        return events

    def _must_defer(self, num_tokens: int) -> bool:
        self._num_proposals += 1
        return num_tokens > self.free or bool(self._defer_every and self._num_proposals % self._defer_every == 0)

    def _reserve(self, reserve: Reserve) -> list[Event]:
        ids = unpack_ids(reserve.token_ids)
        if self._must_defer(len(ids)):
            return [Deferred(reserve.job_id, self.free)]
        job = Job(reserve.job_id, reserve.key, ids, len(ids), reserve.arrival, "waiting")
        self.jobs[reserve.job_id] = job
        return [Reserved(reserve.job_id, 0, len(ids))]

    def receive(self, key: AttemptKey) -> None:
        """The KV of an attempt is here; dropped when nobody waits for it."""
        for job in self.jobs.values():
            if job.key == key and job.state == "waiting":
                job.has_bytes = True

    def joins(self) -> list[Event]:
        """Move reservations whose KV and Join are both here to decoding."""
        events: list[Event] = []
        for job in self.jobs.values():
            if job.state != "waiting" or job.join is None or not job.has_bytes:
                continue
            num_output = job.num_tokens - job.join.num_prompt_tokens
            job.prompt, job.stop = job.prompt[: job.join.num_prompt_tokens], job.join.stop
            job.sequences = {choice: Sequence(num_output + 1) for choice in job.join.first_tokens}
            job.state = "decoding"
            events.append(Joined(job.job_id))
        return events

    def pushes(self) -> list[Job]:
        """Jobs whose whole KV can leave now; each is returned once."""
        ready = [job for job in self.jobs.values() if job.state == "holding" and job.place is not None]
        return [job for job in ready if job.sequences]

    def step(self) -> tuple[list[SequenceOutput], list[Event], list[tuple[int, int]]]:
        """One step: a chunk of each prompt that is computing, one token of each sequence that decodes."""
        outputs: list[SequenceOutput] = []
        prefilling: list[tuple[int, int]] = []
        events = self._make_room()
        for job in list(self.jobs.values()):
            if job.state == "computing":
                chunk = min(self._chunk, job.num_tokens - job.computed)
                job.computed += chunk
                self.num_prefilled += chunk
                prefilling.append((job.job_id, job.computed))
                if job.computed == job.num_tokens:
                    job.state = "holding" if job.hand_over else "decoding"
                    outputs += self._sample(job, slots=0)
            elif job.state == "decoding":
                outputs += self._sample(job, slots=1)
            if not job.sequences and job.state in {"holding", "decoding"}:
                events += self._end(job.job_id)
        return outputs, events, prefilling

    def _sample(self, job: Job, slots: int) -> list[SequenceOutput]:
        outputs = []
        assert job.stop is not None
        for choice, sequence in list(job.sequences.items()):
            token = fake_token(job.prompt, sequence.num_output, choice)
            sequence.slots += slots
            finish = self._finish_reason(job.stop, token, sequence.num_output + 1)
            stop_id = token if finish is FinishReason.STOP else None
            outputs.append(SequenceOutput(job.job_id, choice, sequence.num_output, [token], None, finish, stop_id))
            sequence.num_output += 1
            if finish is not None:
                del job.sequences[choice]
        return outputs

    @staticmethod
    def _finish_reason(stop: EngineStop, token: int, num_output: int) -> FinishReason | None:
        if token in stop.stop_token_ids and num_output > stop.min_new_tokens:
            return FinishReason.STOP
        return FinishReason.LENGTH if num_output >= stop.max_new_tokens else None

    def _make_room(self) -> list[Event]:
        events: list[Event] = []
        while True:
            decoding = [job for job in self.jobs.values() if job.state == "decoding"]
            if sum(len(job.sequences) for job in decoding) <= self.free:
                return events
            idle = [job for job in self.jobs.values() if job.state == "waiting" and not job.has_bytes]
            if idle:
                victim = max(idle, key=lambda job: job.arrival)
                events += [Revoked(victim.job_id), *self._end(victim.job_id)]
                continue
            if len(decoding) < 2:
                return events
            victim = max(decoding, key=lambda job: job.arrival)
            self.num_preempted += len(victim.sequences)
            events += [Preempted(victim.job_id, choice) for choice in victim.sequences]
            events += self._end(victim.job_id)

    def _finish(self, finish: Finish) -> list[Event]:
        job = self.jobs.get(finish.job_id)
        if job is None or job.sequences.pop(finish.choice, None) is None:
            return []
        return [] if job.sequences else self._end(job.job_id)

    def _end(self, job_id: int) -> list[Event]:
        del self.jobs[job_id]
        return [Ended(job_id)]
