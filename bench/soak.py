"""A soak: random arrivals, lengths, aborts and preemptions in a full pool, through the engine's loop, for a given time.

    python -m bench.soak [--seconds 600] [--backend cuda] [--json FILE]
    python -m bench.soak --backend cpu --seconds 60

Random weights: the Llama-3.1-8B shape in bfloat16 on a card, a small one in float32 on a CPU. A step's time is that of
a turn of the loop that reported one (on a CPU its processor time, so that other programs do not count); turns that only
wait, and the few that check integrity, are left out. Ends with status 1 and the reasons when something leaked, the pool
was not full, memory grew, or a step took more than 5 times the median (the first is free: it compiles); of such a step
it says what else happened in it. The device's memory may not grow at all; the host's may grow to its working set in the
first quarter, and little after. What has come to it since is told by kind, with the objects that are left or in cycles;
`--trace` tells where Python allocated it, at the price of slow steps.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.engine import SHAPE
from bench.soak_memory import Grown, HostGrowth, host_memory
from bench.soak_record import MOST_SLOWER, Record, full_from, slow_steps, violations
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
    device_growth_mib: float
    host: Grown
    """See Record."""


class Soak:
    """One engine, its traffic and what is seen of them."""

    def __init__(self, backend: str, pool_tokens: int | None, seed: int, *, trace: bool = False) -> None:
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
        self._trace = trace
        self._explained_from = 0.0
        """Seconds: of a step that takes longer it is noted what else happened in it."""
        self._clock = time.process_time if backend == "cpu" else time.perf_counter
        self._began = self._told = self._checked = time.monotonic()

    def run(self, seconds: float) -> None:
        """Soak, then end everything and look at what is left."""
        device_mib = device_memory_mib()
        host: HostGrowth | None = None
        while (now := time.monotonic()) - self._began < seconds:
            if now - self._checked > _CHECK_EVERY_S:
                self._check()
            if now - self._told > _TELL_EVERY_S:
                self._tell(now)
            if host is None and now - self._began > WARM_SHARE * seconds:
                host = HostGrowth(trace=self._trace)
            self._turn()
        self._drain()
        self.record.device_growth_mib = device_memory_mib() - device_mib
        if host is not None:
            self.record.host = host.end()

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
        record, counters, host = self.record, self.engine.state.counters, host_memory()
        print(
            f"{now - self._began:6.0f} s  {len(record.times)} steps, median {1e3 * np.median(record.times):.2f} ms, "
            f"longest {1e3 * max(record.times[1:], default=0):.2f}; pool {record.use[-1]:.1%} held; "
            f"{self.traffic.num_preempted} preempted, {counters.kept_sequences:.0f} to the host, "
            f"{counters.restored_sequences:.0f} back; host {host['resident']:.0f} MiB, "
            f"{host['blocks of Python']:.0f} blocks of Python; {len(record.problems)} problems",
            file=sys.stderr, flush=True,
        )  # fmt: skip


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
        device_growth_mib=record.device_growth_mib,
        host=record.host,
    )


def device_memory_mib() -> float:
    """What torch holds of the device."""
    if not torch.cuda.is_initialized():
        return 0.0
    held: int = torch.cuda.memory.memory_stats_as_nested_dict()["allocated_bytes"]["all"]["current"]
    return held / (1 << 20)


def _print(values: dict[str, Any], indent: str = "") -> None:
    for name, value in values.items():
        if isinstance(value, dict):
            print(f"{indent}{name}")
            _print(value, f"{indent}  ")
        else:
            print(f"{indent + name:32} {value:.3f}" if isinstance(value, float) else f"{indent + name:32} {value}")


def main() -> int:
    """Soak, print the report last; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--backend", choices=SETTINGS, default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--pool-tokens", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--trace", action="store_true", help="tell where Python allocated what is left at the end")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s: %(message)s", stream=sys.stderr)
    sys.setswitchinterval(1e-4)
    soak = Soak(options.backend, options.pool_tokens, options.seed, trace=options.trace)
    gc.collect()
    gc.freeze()
    gc.disable()  # as the engine process does
    soak.run(options.seconds)
    summed = report(soak, options.seconds)
    _print(asdict(summed))
    wrong = violations(soak.record)
    for line in wrong[:20]:
        print(f"VIOLATION {line}")
    if options.json:
        options.json.write_text(json.dumps(asdict(summed) | {"violations": wrong}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
