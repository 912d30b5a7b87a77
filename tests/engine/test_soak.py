"""Random arrivals, aborts, stop strings and preemptions in a pool that is nearly full: right tokens, nothing lost."""

import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from services.common import ipc
from services.engine import host_rule, host_setup
from tests.engine.driver import Driver
from tests.engine.tiny import EOS, prompt_of, reference_greedy


@dataclass
class Request:
    """What a control process knows of one request."""

    prompt: tuple[int, ...]
    num_tokens: int
    arrival: float
    outputs: list[int] = field(default_factory=list)
    job_id: int | None = None
    resumes: int | None = None
    done: bool = False
    aborted: bool = False


class Control:
    """Plays the control process: proposes by age, resumes what was preempted, sometimes aborts or finishes early."""

    def __init__(self, driver: Driver, seed: int) -> None:
        self.driver = driver
        self.rng = random.Random(seed)
        self.requests: list[Request] = []
        self.by_job: dict[int, Request] = {}
        self.late: list[ipc.Command] = []

    def arrive(self, number: int) -> None:
        """A few prompts begin alike, so that the prefix cache is at work."""
        prompt = prompt_of(self.rng.choice([1, 7, 16, 33, 48]), seed=self.rng.randrange(4))
        if self.rng.random() < 0.5:
            prompt = prompt_of(24, seed=99) + prompt
        self.requests.append(Request(prompt, self.rng.choice([1, 5, 20, 40]), float(number)))

    def commands(self) -> list[ipc.Command]:
        waiting = [r for r in self.requests if r.job_id is None and not r.done]
        proposed, self.late = self.late, []
        for request in sorted(waiting, key=lambda r: r.arrival)[:2]:
            outputs = ipc.pack_ids(request.outputs)
            command = self.driver.admit(
                request.prompt, request.num_tokens, arrival=request.arrival, output_ids=outputs, stop_token_ids=(EOS,),
                resumes=request.resumes,
            )  # fmt: skip
            request.job_id = command.job_id
            self.by_job[command.job_id] = request
            proposed.append(command)
        known = [r for r in self.requests if not r.done and (r.job_id or r.resumes)]
        if known and self.rng.random() < 0.05:
            victim = self.rng.choice(known)
            victim.aborted = victim.done = True
            last = victim.job_id or victim.resumes
            assert last is not None
            proposed.append(ipc.Abort(last))
        return proposed

    def _will_not_resume(self, request: Request) -> None:
        """Its Abort crossed with Deferred."""
        if request.done and request.resumes is not None:
            self.late.append(ipc.Abort(request.resumes))

    def take(self, events: list[ipc.Event]) -> None:
        for event in events:
            match event:
                case ipc.Deferred(job_id=job_id):
                    self.by_job[job_id].job_id = None
                    self._will_not_resume(self.by_job[job_id])
                case ipc.Preempted(job_id=job_id):
                    self.by_job[job_id].job_id = None
                    self.by_job[job_id].resumes = job_id
                case ipc.StepDone(outputs=outputs):
                    for output in outputs:
                        request = self.by_job[output.job_id]
                        assert output.first_index == len(request.outputs)
                        request.outputs += output.token_ids
                        request.done |= output.finish is not None
                case ipc.Ended(job_id=job_id):
                    if self.by_job[job_id].job_id == job_id:
                        self.by_job[job_id].job_id = None
                    elif self.by_job[job_id].done:
                        assert self.by_job[job_id].job_id is None


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the host cache, which every sequence is worth."""
    monkeypatch.setattr(host_setup, "PAGE_TOKENS", 8)
    monkeypatch.setattr(host_rule, "_SPEEDS", dict.fromkeys(["cpu", "cuda"], host_rule._Speeds(1e12, 0.0, 1.0)))


@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize(
    ("depth", "prefix_cache", "host_cache_gib", "seed"),
    [(0, True, 0.0, 1), (1, True, 0.0, 2), (1, False, 0.0, 3), (0, False, 1e-4, 4), (1, True, 1e-4, 5)],
)
def test_a_nearly_full_pool(llama: Path, depth: int, prefix_cache: bool, host_cache_gib: float, seed: int) -> None:
    driver = Driver(
        llama, num_kv_tokens=160, max_running_requests=9, pipeline_depth=depth, prefix_cache=prefix_cache,
        host_cache_gib=host_cache_gib,
    )  # fmt: skip
    control = Control(driver, seed)
    for number in range(600):
        if number < 200 and number % 4 == 0:
            control.arrive(number)
        events = driver.turn(*control.commands(), ipc.CheckIntegrity(number))
        control.take(events)
        assert next(event for event in events if isinstance(event, ipc.Integrity)).problems == []
        if number > 200 and all(r.done for r in control.requests):
            break
    control.take(driver.turn())
    assert all(r.done for r in control.requests)
    for request in control.requests:
        expected = reference_greedy(llama, request.prompt, 40)[: request.num_tokens]
        if request.aborted:
            expected = expected[: len(request.outputs)]
        assert request.outputs == expected
    assert driver.said(ipc.Preempted), "the pool was never full"
    assert (driver.engine.state.counters.restored_sequences > 0) == (host_cache_gib > 0)
    driver.run(*control.late)
    driver.check()
