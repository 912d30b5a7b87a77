"""Random work for a soak: a control process in miniature, which keeps a pool full and ends requests in every state.

waiting ── Admit ──> in the engine ── finished ──> done
   ^  ^                 │    │  └─ Finish, as a stop string would, or Abort ──> done
   │  └── Deferred ─────┘    │
   └──── Preempted ──────────┘   goes on before anything new is proposed (R18); may be aborted while it waits
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from services.common import ipc
from services.common.request import SamplingParams

_BACKLOG = 16
_SAMPLING = (
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.8, top_p=0.9, seed=1),
    SamplingParams(temperature=1.0, top_k=40, presence_penalty=0.2, seed=2),
)


@dataclass(frozen=True, slots=True)
class Mix:
    """What requests are like; lengths are drawn so that their logarithm is even."""

    prompt_tokens: tuple[int, int]
    output_tokens: tuple[int, int]
    vocab_size: int
    abort_share: float = 0.1
    finish_share: float = 0.1


@dataclass(slots=True, eq=False)
class _Request:
    prompt: list[int]
    num_tokens: int
    sampling: SamplingParams
    arrival: float
    end_at: int | None
    """Outputs after which it is aborted or finished from outside."""
    aborts: bool
    outputs: list[int] = field(default_factory=list)
    job_id: int | None = None
    resumes: int | None = None
    done: bool = False


class Traffic:
    """Makes commands for a turn and takes its events."""

    def __init__(self, mix: Mix, num_slots: int, seed: int) -> None:
        self._mix = mix
        self._rng = random.Random(seed)
        self._headroom = num_slots // 500
        self._available = num_slots
        self._waiting: list[_Request] = []
        self._by_job: dict[int, _Request] = {}
        self._late: list[ipc.Command] = []
        self._num_arrived = self._next_job = 0
        self._shared = self._ids(mix.prompt_tokens[1] // 2)
        self.num_aborted = self.num_finished = self.num_preempted = 0

    def commands(self) -> list[ipc.Command]:
        """Arrivals, admissions in the order of age, and ends from outside."""
        while len(self._waiting) < _BACKLOG and self._rng.random() < 0.7:
            self._waiting.append(self._arrive())
        made, self._late = [*self._late, *self._ends()], []
        self._waiting.sort(key=lambda r: (r.resumes is None, r.arrival))
        while self._waiting:
            first = self._waiting[0]
            need = len(first.prompt) + len(first.outputs) + self._headroom
            if need > self._available:
                break
            self._available -= need - self._headroom
            made.append(self._admit(self._waiting.pop(0)))
        return made

    def take(self, events: list[ipc.Event]) -> None:
        """What the engine says. Raises RuntimeError where it contradicts itself."""
        for event in events:
            match event:
                case ipc.Deferred(job_id=job_id):
                    self._back(self._by_job.pop(job_id))
                case ipc.Preempted(job_id=job_id):
                    self.num_preempted += 1
                    request = self._by_job.pop(job_id)
                    request.resumes = job_id
                    self._back(request)
                case ipc.StepDone(outputs=outputs, usage=usage):
                    self._available = usage.free_slots + usage.evictable_slots
                    for output in outputs:
                        self._output(output)
                case ipc.Ended(job_id=job_id):
                    self._by_job.pop(job_id, None)

    def end_all(self) -> list[ipc.Command]:
        """Abort whatever runs or waits."""
        jobs = [*self._by_job, *(r.resumes for r in self._waiting if r.resumes is not None)]
        self._waiting = []
        return [*self._late, *(ipc.Abort(job_id) for job_id in jobs)]

    def _arrive(self) -> _Request:
        rng, mix = self._rng, self._mix
        self._num_arrived += 1
        prompt = self._ids(self._length(*mix.prompt_tokens))
        if rng.random() < 0.3:
            prompt = self._shared[: self._length(*mix.prompt_tokens) // 2] + prompt[: len(prompt) // 2 + 1]
        num_tokens, fate = self._length(*mix.output_tokens), rng.random()
        is_ended = fate < mix.abort_share + mix.finish_share
        return _Request(
            prompt, num_tokens, rng.choice(_SAMPLING), float(self._num_arrived),
            end_at=rng.randrange(num_tokens) if is_ended else None, aborts=fate < mix.abort_share,
        )  # fmt: skip

    def _length(self, least: int, most: int) -> int:
        return int(least * (most / least) ** self._rng.random())

    def _ids(self, n: int) -> list[int]:
        return self._rng.choices(range(self._mix.vocab_size), k=n)

    def _admit(self, request: _Request) -> ipc.Admit:
        self._next_job += 1
        request.job_id = self._next_job
        self._by_job[self._next_job] = request
        return ipc.Admit(
            job_id=self._next_job, key=ipc.AttemptKey(str(request.arrival), 0), sampling=request.sampling,
            prompt_ids=ipc.pack_ids(request.prompt), stop=ipc.EngineStop(max_new_tokens=request.num_tokens),
            arrival=request.arrival, output_ids=ipc.pack_ids(request.outputs), resumes=request.resumes,
        )  # fmt: skip

    def _ends(self) -> list[ipc.Command]:
        due = [r for r in (*self._by_job.values(), *self._waiting) if self._is_due(r)]
        made: list[ipc.Command] = []
        for request in due:
            request.done = True
            if request.job_id is None:
                self._waiting.remove(request)
            job_id = request.resumes if request.job_id is None else request.job_id
            if request.aborts or request.job_id is None:
                self.num_aborted += 1
                made += [] if job_id is None else [ipc.Abort(job_id)]
            elif job_id is not None:
                self.num_finished += 1
                made.append(ipc.Finish(job_id, 0, request.end_at or 0))
        return made

    def _is_due(self, request: _Request) -> bool:
        return not request.done and request.end_at is not None and len(request.outputs) >= request.end_at

    def _back(self, request: _Request) -> None:
        """It waits again, unless it was ended meanwhile: then the engine need keep nothing of it."""
        request.job_id = None
        if not request.done:
            self._waiting.append(request)
        elif request.resumes is not None:
            self._late.append(ipc.Abort(request.resumes))

    def _output(self, output: ipc.SequenceOutput) -> None:
        request = self._by_job[output.job_id]
        if output.first_index != len(request.outputs):
            raise RuntimeError(f"output {output.first_index} of a request with {len(request.outputs)} outputs")
        request.outputs += output.token_ids
        request.done |= output.finish is not None
