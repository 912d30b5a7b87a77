"""A soak: random arrivals, lengths, aborts and preemptions in a full pool, through the engine's loop, for a given time.

    python -m bench.soak [--seconds 600] [--backend cuda] [--json FILE]
    python -m bench.soak --backend cpu --seconds 60

Random weights: the Llama-3.1-8B shape in bfloat16 on a card, a small one in float32 on a CPU. A step's time is that of
a turn of the loop that reported one (on a CPU its processor time, so that other programs do not count); turns that only
wait, and the few that check integrity, are left out. Ends with status 1 and the reasons when something leaked, the pool
was not full, memory grew, or a step took more than 5 times the median (the first is free: it compiles); of such a step
it says what else happened in it. The device's memory may not grow at all; the host's may grow to its working set in the
first quarter, and little after.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import resource
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.engine import SHAPE
from bench.soak_traffic import Mix, Traffic
from bench.soak_watch import Watch, changes
from services.common import ipc
from services.engine.config import EngineConfig
from services.engine.load import load_model
from services.engine.loop import Engine

SMALL_SHAPE = SHAPE | {
    "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 4096, "max_position_embeddings": 4096, "dtype": "float32",
}  # fmt: skip
MOST_SLOWER = 5.0
LEAST_USE = 0.95
MOST_HOST_GROWTH_MIB = 256.0
WARM_SHARE = 0.25
"""Of the time: larger batches than before still come, and with them larger buffers."""
_CHECK_EVERY_S, _TELL_EVERY_S = 5.0, 5.0
_LEARN_EVERY_STEPS = 50


@dataclass(frozen=True, slots=True)
class Setting:
    """One backend's defaults."""

    shape: dict[str, Any]
    pool_tokens: int
    rows: int
    chunk_tokens: int
    host_cache_gib: float
    mix: Mix


SETTINGS = {
    "cuda": Setting(SHAPE, 100_000, 192, 512, 4.0, Mix((32, 4096), (16, 1024), 128_000)),
    "cpu": Setting(SMALL_SHAPE, 4096, 48, 64, 0.02, Mix((8, 512), (8, 256), 4096)),
}


@dataclass(slots=True)
class Record:
    """One entry a counted step, and what was found wrong."""

    times: list[float] = field(default_factory=list)
    use: list[float] = field(default_factory=list)
    """Share of the pool that somebody holds; cached prefixes do not count."""
    what: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    host_growth_mib: float = 0.0
    """Of the process's largest size, from the end of the warm-up."""
    device_growth_mib: float = 0.0
    """From before the first step to after the last job."""


@dataclass(frozen=True, slots=True)
class Report:
    """What is printed."""

    device: str
    seconds: float
    steps: int
    median_ms: float
    p99_ms: float
    max_ms: float
    slow_steps: int
    pool_use: float
    """Mean from the moment the pool was first full."""
    preemptions: int
    aborted: int
    finished_early: int
    counters: dict[str, float]
    host_growth_mib: float
    """See Record."""
    device_growth_mib: float


class Soak:
    """One engine, its traffic and what is seen of them."""

    def __init__(self, backend: str, pool_tokens: int | None, seed: int) -> None:
        setting = SETTINGS[backend]
        pool_tokens = pool_tokens or setting.pool_tokens
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps(setting.shape))
            config = EngineConfig(
                endpoint="", model=folder, load_format="random", backend=backend,  # type: ignore[arg-type]
                max_running_requests=setting.rows, num_kv_tokens=pool_tokens, max_context_tokens=pool_tokens // 4,
                chunk_tokens=setting.chunk_tokens, host_cache_gib=setting.host_cache_gib,
            )  # fmt: skip
            self.engine = Engine(config, load_model(config))
        self.traffic = Traffic(setting.mix, pool_tokens, seed)
        self.record = Record()
        self._watch = Watch(self.engine)
        self._explained_from = 0.0
        """Seconds: of a step that takes longer it is noted what else happened in it."""
        self._clock = time.process_time if backend == "cpu" else time.perf_counter
        self._began = self._told = self._checked = time.monotonic()

    def run(self, seconds: float) -> None:
        """Soak, then end everything and look at what is left."""
        host_mib, device_mib = memory_mib()
        is_warm = False
        while (now := time.monotonic()) - self._began < seconds:
            if now - self._checked > _CHECK_EVERY_S:
                self._check()
            if now - self._told > _TELL_EVERY_S:
                self._tell(now)
            if not is_warm and now - self._began > WARM_SHARE * seconds:
                is_warm, host_mib = True, memory_mib()[0]
            self._turn()
        self._drain()
        after = memory_mib()
        self.record.host_growth_mib, self.record.device_growth_mib = after[0] - host_mib, after[1] - device_mib

    def _turn(self) -> None:
        commands = self.traffic.commands()
        num_preempted, before = self.traffic.num_preempted, self._watch.counts()
        began = self._clock()
        events = self.engine.turn(commands)
        took = self._clock() - began
        more = changes(before, self._watch.counts()) if took > self._explained_from else ""
        self.traffic.take(events)
        about = f"{len(commands)} commands, {self.traffic.num_preempted - num_preempted} preempted; {more}"
        for event in events:
            if isinstance(event, ipc.StepDone) and event.step:
                self._note(took, event, about)

    def _note(self, took: float, step: ipc.StepDone, about: str) -> None:
        record = self.record
        record.times.append(took)
        record.use.append(step.usage.held_slots / step.usage.num_slots)
        record.what.append(
            f"step {step.step}: {step.num_decode_rows} rows, {step.num_prefill_tokens} prompt tokens, {about}"
        )
        if len(record.times) % _LEARN_EVERY_STEPS == 0:
            self._explained_from = MOST_SLOWER / 2 * float(np.median(record.times[-_LEARN_EVERY_STEPS:]))

    def _check(self) -> ipc.Integrity:
        events = self.engine.turn([ipc.CheckIntegrity(1)])
        self.traffic.take(events)
        (answer,) = (event for event in events if isinstance(event, ipc.Integrity))
        self.record.problems += answer.problems
        self._checked = time.monotonic()
        return answer

    def _drain(self) -> None:
        self.traffic.take(self.engine.turn(self.traffic.end_all()))
        while self.engine.has_work:
            self.traffic.take(self.engine.turn([]))
        self.traffic.take(self.engine.turn(self.traffic.end_all()))
        left = self._check()
        usage = left.usage
        if left.num_jobs or usage.held_slots or usage.reserved_slots or usage.host_pages_in_use:
            self.record.problems.append(f"left when all had ended: {left.num_jobs} jobs, {usage}")

    def _tell(self, now: float) -> None:
        self._told = now
        if not self.record.times:
            print(f"{now - self._began:6.0f} s  no step yet", file=sys.stderr, flush=True)
            return
        record, counters = self.record, self.engine.state.counters
        print(
            f"{now - self._began:6.0f} s  {len(record.times)} steps, median {1e3 * np.median(record.times):.2f} ms, "
            f"longest {1e3 * max(record.times[1:], default=0):.2f}; pool {record.use[-1]:.1%} held; "
            f"{self.traffic.num_preempted} preempted, {counters.kept_sequences:.0f} to the host, "
            f"{counters.restored_sequences:.0f} back; {len(record.problems)} problems", file=sys.stderr, flush=True,
        )  # fmt: skip


def full_from(use: list[float]) -> list[float]:
    """What follows the first moment at which the pool was full."""
    first = next((i for i, share in enumerate(use) if share >= LEAST_USE), len(use))
    return use[first:]


def violations(record: Record) -> list[str]:
    """What the soak must not show; empty when all is well."""
    found = list(record.problems)
    if record.device_growth_mib > 0:
        found.append(f"the device's memory grew by {record.device_growth_mib:.3f} MiB")
    if record.host_growth_mib > MOST_HOST_GROWTH_MIB:
        found.append(f"the host's memory grew by {record.host_growth_mib:.0f} MiB; {MOST_HOST_GROWTH_MIB:.0f} may be")
    full = full_from(record.use)
    if not full or np.mean(full) < LEAST_USE:
        found.append(f"the pool was {np.mean(full or [0]):.1%} full; {LEAST_USE:.0%} is asked for")
    found += [f"slow: {1e3 * record.times[i]:.1f} ms, {record.what[i]}" for i in slow_steps(record.times)]
    return found


def slow_steps(times: list[float]) -> list[int]:
    """Steps of more than 5 times the median, but the first."""
    limit = MOST_SLOWER * float(np.median(times))
    return [i for i, took in enumerate(times) if i and took > limit]


def report(soak: Soak, seconds: float) -> Report:
    """Sum up."""
    record, traffic, backend = soak.record, soak.traffic, soak.engine._runner.backend
    times = 1e3 * np.array(record.times[1:])
    wanted = ("kept_", "restored_", "host_", "tokens_past_end", "evicted")
    counters = {k: v for k, v in soak.engine.state.counters.values().items() if k.startswith(wanted)}
    return Report(
        device=torch.cuda.get_device_name() if backend.name == "cuda" else "cpu",
        seconds=seconds,
        steps=len(record.times),
        median_ms=float(np.median(times)),
        p99_ms=float(np.percentile(times, 99)),
        max_ms=float(times.max()),
        slow_steps=len(slow_steps(record.times)),
        pool_use=float(np.mean(full_from(record.use) or [0.0])),
        preemptions=traffic.num_preempted,
        aborted=traffic.num_aborted,
        finished_early=traffic.num_finished,
        counters=counters,
        host_growth_mib=record.host_growth_mib,
        device_growth_mib=record.device_growth_mib,
    )


def memory_mib() -> tuple[float, float]:
    """The process's largest size so far, and what torch holds of the device."""
    device = torch.cuda.memory_allocated() if torch.cuda.is_available() else 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, device / (1 << 20)


def main() -> int:
    """Soak, print the report last; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--backend", choices=SETTINGS, default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--pool-tokens", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s: %(message)s", stream=sys.stderr)
    sys.setswitchinterval(1e-4)
    soak = Soak(options.backend, options.pool_tokens, options.seed)
    gc.collect()
    gc.freeze()
    gc.disable()  # as the engine process does
    soak.run(options.seconds)
    summed = report(soak, options.seconds)
    for name, value in asdict(summed).items():
        print(f"{name:18} {value:.3f}" if isinstance(value, float) else f"{name:18} {value}")
    wrong = violations(soak.record)
    for line in wrong[:20]:
        print(f"VIOLATION {line}")
    if options.json:
        options.json.write_text(json.dumps(asdict(summed) | {"violations": wrong}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
