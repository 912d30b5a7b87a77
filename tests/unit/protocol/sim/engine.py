"""An engine and the Router before it, as a worker's core sees them: slots are not counted, all is up to whoever steps
it.

Commands wait until `process`, events until the worker takes them, so that the two sides cross as they do in life.
"""

from collections import deque
from dataclasses import dataclass, field

from services.common import ipc
from services.common.ipc import AttemptKey
from services.common.request import FinishReason, Request
from services.worker.jobs import JobEvent, PromptPart
from services.worker.protocol.effects import StartJob
from tests.unit.protocol.sim.expected import sample, scores

CHUNK_TOKENS = 2


@dataclass
class Job:
    """States: computing, holding (computed, KV held), reserved, decoding."""

    job_id: int
    key: AttemptKey
    state: str
    request: Request
    output_ids: dict[int, list[int]] = field(default_factory=dict)
    """Choice -> output so far, of the sequences that run."""
    hand_over: bool = False
    place: ipc.Place | None = None
    pushed: bool = False
    token_ids: list[int] = field(default_factory=list)
    """Tokens whose KV this job has or will have."""
    received: list[int] | None = None
    join: ipc.Join | None = None
    num_computed: int = 0
    """Leading tokens whose KV is there."""
    scored_end: int = 0
    """Prompt tokens to say the log-probabilities of, where they are asked for, end before this position."""


class Engine:
    """One start of a worker's engine, with the Router's queue."""

    def __init__(self) -> None:
        self.waiting: dict[int, StartJob] = {}
        self.requests: dict[int, Request] = {}
        self.commands: deque[ipc.Command] = deque()
        self.events: deque[JobEvent] = deque()
        self.jobs: dict[int, Job] = {}
        self.ending: set[int] = set()

    # ------------------------------------------------------------------------------------------- Router's queue

    def start(self, start: StartJob, request: Request) -> None:
        """Queue a job."""
        job_id = start.command.job_id
        self.waiting[job_id] = start
        self.requests[job_id] = request

    def propose(self, job_id: int) -> None:
        """Let it in: the engine answers when it processes the command."""
        self.commands.append(self.waiting[job_id].command)

    def end(self, job_id: int) -> None:
        """As `Jobs.end`."""
        proposed = any(getattr(command, "job_id", None) == job_id for command in self.commands)
        if job_id in self.waiting and not proposed:
            del self.waiting[job_id]
        else:
            self.ending.add(job_id)
            self.commands.append(ipc.Abort(job_id))

    def finish(self, job_id: int, choice: int, num_output_tokens: int) -> None:
        """As `Jobs.finish`."""
        self.commands.append(ipc.Finish(job_id, choice, num_output_tokens))

    @property
    def proposable(self) -> list[int]:
        """Jobs that wait and are not proposed yet."""
        proposed = {getattr(command, "job_id", None) for command in self.commands}
        return [job_id for job_id in self.waiting if job_id not in proposed]

    # -------------------------------------------------------------------------------------------------- commands

    def process(self, *, defer: bool = False) -> None:
        """Take the next command."""
        command = self.commands.popleft()
        match command:
            case ipc.Admit() | ipc.Reserve():
                self._let_in(command, defer=defer)
            case ipc.Place(job_id=job_id) if job_id in self.jobs:
                self.jobs[job_id].place, self.jobs[job_id].pushed = command, False
            case ipc.Join(job_id=job_id) if job_id in self.jobs:
                self.jobs[job_id].join = command
                self._try_join(self.jobs[job_id])
            case ipc.Finish(job_id=job_id, choice=choice) if job_id in self.jobs:
                self._end_sequence(self.jobs[job_id], choice)
            case ipc.Abort(job_id=job_id) | ipc.Release(job_id=job_id):
                self.ending.discard(job_id)
                self.waiting.pop(job_id, None)
                if self.jobs.pop(job_id, None) is not None:
                    self.events.append(ipc.Ended(job_id))

    def _let_in(self, command: ipc.Admit | ipc.Reserve, *, defer: bool) -> None:
        job_id = command.job_id
        if defer or job_id not in self.waiting:
            return  # Deferred: it waits again at its old place
        del self.waiting[job_id]
        request = self.requests[job_id]
        if isinstance(command, ipc.Reserve):
            job = Job(job_id, command.key, "reserved", request, token_ids=ipc.unpack_ids(command.token_ids))
            self.jobs[job_id] = job
            self.events.append(ipc.Reserved(job_id, 0, len(job.token_ids)))
            return
        produced = ipc.unpack_ids(command.output_ids)
        for choice in command.choices:
            assert produced == [sample(request, choice, index)[0] for index in range(len(produced))]
        job = Job(job_id, command.key, "computing", request, {choice: list(produced) for choice in command.choices})
        if command.sampling.num_prompt_logprobs is not None:
            job.scored_end = len(request.prompt_ids)
        job.hand_over, job.token_ids = command.hand_over, [*ipc.unpack_ids(command.prompt_ids), *produced]
        self.jobs[job_id] = job
        self.events.append(ipc.Admitted(job_id, 0, len(job.token_ids)))

    # ------------------------------------------------------------------------------------------------------ steps

    def step(self, job_id: int, num_tokens: int = 1) -> None:
        """Compute a part of a prompt, or decode some tokens of each of its sequences."""
        job = self.jobs[job_id]
        if job.state == "computing":
            self._compute(job, CHUNK_TOKENS * num_tokens)
            if job.num_computed < len(job.token_ids):
                return
            job.state, num_tokens = "holding" if job.hand_over else "decoding", 1
        for choice in list(job.output_ids):
            self._sample(job, choice, num_tokens)

    def _compute(self, job: Job, num_tokens: int) -> None:
        """What is computed of a token tells of the next one."""
        first, job.num_computed = job.num_computed, min(job.num_computed + num_tokens, len(job.token_ids))
        first, end = first + 1, min(job.num_computed + 1, job.scored_end)
        if first < end:
            self.events.append(PromptPart(job.job_id, scores(first, end)))

    def _sample(self, job: Job, choice: int, num_tokens: int) -> None:
        output = job.output_ids[choice]
        first_index, finish = len(output), None
        tokens: list[int] = []
        while finish is None and len(tokens) < num_tokens:
            token, finish = sample(job.request, choice, len(output))
            output.append(token)
            tokens.append(token)
        stop_id = tokens[-1] if finish is FinishReason.STOP else None
        self.events.append(ipc.SequenceOutput(job.job_id, choice, first_index, tokens, None, finish, stop_id))
        if finish is not None:
            self._end_sequence(job, choice)

    def _end_sequence(self, job: Job, choice: int) -> None:
        job.output_ids.pop(choice, None)
        if not job.output_ids:
            self.jobs.pop(job.job_id, None)
            self.events.append(ipc.Ended(job.job_id))

    @property
    def steppable(self) -> list[int]:
        """Jobs that have something to compute."""
        return [job.job_id for job in self.jobs.values() if job.state in {"computing", "decoding"}]

    # --------------------------------------------------------------------------------------------------- transfer

    @property
    def pushable(self) -> list[int]:
        """Jobs whose whole KV can leave."""
        return [one.job_id for one in self.jobs.values() if one.state == "holding" and one.place and not one.pushed]

    def receive(self, key: AttemptKey, token_ids: list[int]) -> None:
        """KV arrives; what nobody waits for goes into a scratch page (R3)."""
        for job in self.jobs.values():
            if job.key == key and job.state == "reserved":
                job.received = token_ids
                self._try_join(job)
                return

    def _try_join(self, job: Job) -> None:
        if job.join is None or job.received is None or job.state != "reserved":
            return
        assert job.received == job.token_ids, "the KV is of other tokens than were reserved"
        job.state = "decoding"
        produced = job.token_ids[job.join.num_prompt_tokens :]
        for choice, token in job.join.first_tokens.items():
            assert token == sample(job.request, choice, len(produced))[0]
            job.output_ids[choice] = [*produced, token]
        self.events.append(ipc.Joined(job.job_id))

    # ------------------------------------------------------------------------------------------------------ faults

    def preempt(self, job_id: int, choice: int) -> None:
        """Take a sequence's slots; of a job that computes, those of all its sequences."""
        job = self.jobs[job_id]
        for each in [choice] if job.state == "decoding" else list(job.output_ids):
            self.events.append(ipc.Preempted(job_id, each))
            self._end_sequence(job, each)

    @property
    def preemptible(self) -> list[tuple[int, int]]:
        """Sequences that decode, or will when their prompt is computed."""
        jobs = [one for one in self.jobs.values() if one.state in {"computing", "decoding"} and not one.hand_over]
        return [(job.job_id, choice) for job in jobs for choice in job.output_ids]

    def revoke(self, job_id: int) -> None:
        """Take back a reservation without bytes."""
        del self.jobs[job_id]
        self.events.extend([ipc.Revoked(job_id), ipc.Ended(job_id)])

    @property
    def revocable(self) -> list[int]:
        """Reservations without bytes."""
        return [one.job_id for one in self.jobs.values() if one.state == "reserved" and one.received is None]

    def fail_transfer(self, job_id: int) -> None:
        """The KV of this job cannot be moved on this attempt."""
        job = self.jobs[job_id]
        job.place = None
        if job.state == "reserved":
            del self.jobs[job_id]
        self.events.append(ipc.TransferFailed(job_id, "peer_lost", "cut"))
        if job.state == "reserved":
            self.events.append(ipc.Ended(job_id))

    @property
    def breakable(self) -> list[int]:
        """Jobs with a transfer before them."""
        return [one.job_id for one in self.jobs.values() if one.state == "reserved" or one.place is not None]
