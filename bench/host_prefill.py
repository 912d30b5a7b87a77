"""What the host does around a prefill on an idle engine: before its first launch, and behind the ids.

Both are time in which the device stands still and a client waits; what lies between is hidden behind the launches. As
in `bench.engine`, each prompt gets one token. With cold caches other memory is written before the commands come and
before the ids do: a device works for a fifth of a second in between.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from functools import wraps
from itertools import count
from typing import Any

import numpy as np

from bench.idle_engine import GREEDY, admits
from services.common import ipc
from services.engine import admission, results
from services.engine.admission import Admission
from services.engine.backends.cuda import chunks
from services.engine.backends.cuda.prefill_graphs import PrefillGraphs
from services.engine.backends.cuda.result import DeviceResult
from services.engine.backends.cuda.row_draws import RowDraws
from services.engine.backends.cuda.runner import CudaRunner
from services.engine.backends.cuda.slot_table import DeviceTable
from services.engine.backends.cuda.staging import Staging
from services.engine.kv_cache import KvCache
from services.engine.loop import Engine
from services.engine.prefix_cache import PrefixCache
from services.engine.results import ResultHandler
from services.engine.room import RoomMaker
from services.engine.rows import Rows
from services.engine.slots import SlotAllocator
from services.engine.state import EngineState
from services.engine.step_builder import StepBuilder

SHAPES = ((8, 1024), (1, 8192), (1, 128))
BEFORE, BESIDE, BEHIND = "before the first launch", "beside the device's work", "behind the ids"
_MORE_THAN_CACHES = 128 << 20
_PARTS: tuple[tuple[Any, str, str], ...] = (
    (admission, "read_ids", "ids read and checked"),
    (Admission, "admit", "admission, else"),
    (PrefixCache, "match", "prefix lookup"),
    (SlotAllocator, "allocate", "slots taken"),
    (KvCache, "acquire", "slots planned and listed"),
    (Rows, "write", "slot table on the host"),
    (RoomMaker, "decoding_rows", "room for decoding rows"),
    (EngineState, "decode_group", "decoding rows gathered"),
    (StepBuilder, "build", "chunks planned, batch built"),
    (CudaRunner, "_stage_rows", "decode rows packed"),
    (PrefillGraphs, "launch", "chunks packed, graph looked up"),
    (chunks, "prefill_tiles", "tiles"),
    (DeviceTable, "send", "table writes packed"),
    (RowDraws, "stage", "decode draws packed"),
    (CudaRunner, "launch", "runner, else"),
    (Staging, "send", "copy launched"),
    (ResultHandler, "handle", "outputs, StepDone"),
    (EngineState, "end_sequence", "ends"),
    (EngineState, "end_job", "ends"),
    (EngineState, "say_ended", "ends"),
    (EngineState, "valid_tokens", "valid tokens listed"),
    (KvCache, "release", "slots released"),
    (Rows, "give_back", "rows given back"),
    (EngineState, "usage", "usage"),
    (EngineState, "finish_prompt", "prompt into the prefix cache"),
    (EngineState, "tell_cache_changes", "cache changes told"),
    (ipc, "encode", "events encoded"),
    (results, "_columns", "outputs, StepDone"),
)


class Clock:
    """Where the time of one prefill goes: microseconds by phase, and by phase and part once `mark_parts` was called."""

    def __init__(self) -> None:
        self.phases: defaultdict[str, float] = defaultdict(float)
        self.parts: defaultdict[tuple[str, str], float] = defaultdict(float)
        self._phase, self._part, self._since = BEFORE, "loop", 0.0
        self.is_cold = False
        self._elsewhere = np.zeros(_MORE_THAN_CACHES, np.uint8)
        self._wrap(Staging, "send", lambda: None, self._after_send)
        self._wrap(DeviceResult, "token_ids", self._before_ids, self._after_ids)

    def begin(self) -> None:
        """Commands are about to be handed over."""
        self._chill()
        self.phases.clear()
        self.parts.clear()
        self._phase, self._part, self._since = BEFORE, "loop", time.perf_counter()

    def end(self) -> None:
        """All events are encoded."""
        self._note()

    def mark_parts(self) -> None:
        """From now on tell parts apart; marks cost time of their own."""
        for owner, name, part in _PARTS:
            call = getattr(owner, name)
            setattr(owner, name, self._marked(call, part))

    def _note(self) -> None:
        now = time.perf_counter()
        took = 1e6 * (now - self._since)
        self.phases[self._phase] += took
        self.parts[self._phase, self._part] += took
        self._since = now

    def _after_send(self) -> None:
        if self._phase == BEFORE:
            self._note()
            self._phase = BESIDE

    def _chill(self) -> None:
        if self.is_cold:
            self._elsewhere += 1

    def _before_ids(self) -> None:
        if self._phase == BESIDE:
            self._note()
            self._chill()
            self._since = time.perf_counter()

    def _after_ids(self) -> None:
        self._note()
        self._phase = BEHIND

    def _wrap(self, owner: type, name: str, first: Callable[[], None], then: Callable[[], None]) -> None:
        call = getattr(owner, name)

        @wraps(call)
        def wrapped(*args: Any, **named: Any) -> Any:  # noqa: ANN401
            first()
            result = call(*args, **named)
            then()
            return result

        setattr(owner, name, wrapped)

    def _marked(self, call: Callable[..., Any], part: str) -> Callable[..., Any]:
        @wraps(call)
        def marked(*args: Any, **named: Any) -> Any:  # noqa: ANN401
            self._note()
            outer, self._part = self._part, part
            result = call(*args, **named)
            self._note()
            self._part = outer
            return result

        return marked


def prefill_once(engine: Engine, clock: Clock, prompts: list[bytes], first_job: int) -> None:
    """Compute one token for each prompt, all together, and encode what the engine says."""
    commands = admits(prompts, 1, GREEDY, first_job)
    clock.begin()
    ipc.encode(engine.turn(commands))
    while engine.has_work:
        ipc.encode(engine.turn([]))
    clock.end()
    assert not engine.state.jobs


Shape = tuple[int, int]
Times = defaultdict[Shape, list[dict[Any, float]]]


def report(engine: Engine, prompts_of: Callable[[int, int], list[bytes]], rounds: int) -> None:
    """Print both parts for each shape. `prompts_of` makes that many packed prompts of a length, new ones each time."""
    clock, jobs = Clock(), count(1, max(num for num, _ in SHAPES))

    def measured(of: Callable[[], dict[Any, float]]) -> Times:
        times: Times = defaultdict(list)
        for _ in range(rounds):
            for shape in SHAPES:
                prefill_once(engine, clock, prompts_of(*shape), next(jobs))
                times[shape].append(dict(of()))
        return times

    warm = measured(lambda: clock.phases)
    clock.is_cold = True
    cold = measured(lambda: clock.phases)
    clock.is_cold = False
    clock.mark_parts()
    parts = measured(lambda: clock.parts)
    for shape in SHAPES:
        print("\n{} x {}, us, medians of {} rounds (lowest - highest)".format(*shape, rounds))
        for phase in (BEFORE, BESIDE, BEHIND):
            print(f"{phase:36} {spread(warm[shape], phase)}; cold {spread(cold[shape], phase)}")
            print_parts(phase, parts[shape])


def spread(times: list[dict[Any, float]], key: object) -> str:
    """Format the median, the lowest and the highest."""
    values = [each[key] for each in times]
    return f"{statistics.median(values):6.0f} ({min(values):.0f} - {max(values):.0f})"


def print_parts(phase: str, times: list[dict[Any, float]]) -> None:
    """Print the medians of a phase's parts, the longest first."""
    names = {name for each in times for at, name in each if at == phase}
    table = {name: statistics.median(each.get((phase, name), 0.0) for each in times) for name in names}
    for name, value in sorted(table.items(), key=lambda item: -item[1]):
        print(f"    {name:38} {value:7.1f}")
    print(f"    {'all of these, with marks':38} {sum(table.values()):7.1f}")
