"""Runs an engine in the test's own process, a turn at a time, and gathers what it says."""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

from services.common import ipc
from services.common.request import FinishReason, SamplingParams, TokenLogprob
from services.engine.config import EngineConfig
from services.engine.load import load_model
from services.engine.loop import Engine

GREEDY = SamplingParams(temperature=0.0)
E = TypeVar("E", bound=ipc.Event)


def engine_config(folder: Path, **changes: Any) -> EngineConfig:
    """Small numbers, so that boundaries are near."""
    settings: dict[str, Any] = {
        "endpoint": "ipc:///nowhere", "model": str(folder), "num_threads": 1, "num_kv_tokens": 2048, "chunk_tokens": 16,
        "max_running_requests": 64, "push_tail_tokens": 4,
    }  # fmt: skip
    return EngineConfig(**(settings | changes))


class Driver:
    """One engine and what it has said so far."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        config = engine_config(folder, **changes)
        self.engine = Engine(config, load_model(config))
        self.events: list[ipc.Event] = []
        self.tokens: dict[tuple[int, int], list[int]] = defaultdict(list)
        self.logprobs: dict[tuple[int, int], list[TokenLogprob]] = defaultdict(list)
        self.first_index: dict[tuple[int, int], int] = {}
        """Output position of each sequence's first token seen."""
        self.finishes: dict[tuple[int, int], FinishReason] = {}
        self._next_job = 0

    def admit(self, prompt: Iterable[int], max_new_tokens: int = 8, **changes: Any) -> ipc.Admit:
        """An Admit command with a job id of its own; `stop_token_ids` and `min_new_tokens` may be given too."""
        self._next_job += 1
        stop = ipc.EngineStop(
            max_new_tokens=max_new_tokens,
            min_new_tokens=changes.pop("min_new_tokens", 0),
            stop_token_ids=changes.pop("stop_token_ids", ()),
        )
        values: dict[str, Any] = {"sampling": GREEDY, "arrival": float(self._next_job)} | changes
        return ipc.Admit(
            job_id=self._next_job,
            key=ipc.AttemptKey(f"{self._next_job:032x}", 0),
            prompt_ids=ipc.pack_ids(list(prompt)),
            stop=stop,
            **values,
        )

    def turn(self, *commands: ipc.Command) -> list[ipc.Event]:
        """One turn of the loop."""
        events = self.engine.turn(list(commands))
        self.events += events
        for event in events:
            if isinstance(event, ipc.StepDone):
                for output in event.outputs:
                    self._note(output)
        return events

    def _note(self, output: ipc.SequenceOutput) -> None:
        key = (output.job_id, output.choice)
        if self.tokens[key]:
            expected = self.first_index[key] + len(self.tokens[key])
            assert output.first_index == expected, f"{key}: index {output.first_index}, expected {expected}"
        else:
            self.first_index[key] = output.first_index
        self.tokens[key] += output.token_ids
        self.logprobs[key] += output.logprobs or []
        if output.finish is not None:
            assert key not in self.finishes, f"{key} finished twice"
            self.finishes[key] = output.finish

    def run(self, *commands: ipc.Command, turns: int = 2000) -> None:
        """Turn until the engine has nothing to do."""
        self.turn(*commands)
        for _ in range(turns):
            if not self.engine.has_work:
                return
            self.turn()
        raise AssertionError("the engine does not come to rest")

    def outputs(self, *commands: ipc.Admit) -> list[list[int]]:
        """Run prompts to their end together; their tokens in order."""
        self.run(*commands)
        return [self.tokens[command.job_id, 0] for command in commands]

    def said(self, kind: type[E]) -> list[E]:
        """All events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]

    def check(self) -> None:
        """Nothing is left of any job and everything is accounted for."""
        integrity = self.integrity()
        assert integrity.problems == []
        assert integrity.num_jobs == 0
        assert integrity.usage.held_slots == integrity.usage.reserved_slots == integrity.usage.host_pages_in_use == 0

    def integrity(self) -> ipc.Integrity:
        """Answer to CheckIntegrity."""
        answer = self.turn(ipc.CheckIntegrity(1))[-1]
        assert isinstance(answer, ipc.Integrity)
        return answer
