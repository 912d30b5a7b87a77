"""What else happened in a turn of the loop: what a slow step is to be blamed on."""

from __future__ import annotations

import gc
import resource
import time

import torch
import triton

from services.engine.loop import Engine


class Watch:
    """Of one engine in this process; makes Triton tell of each kernel variant that is loaded from then on."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._variants = 0
        triton.knobs.runtime.jit_post_compile_hook = self._loaded

    def counts(self) -> dict[str, float]:
        """Totals so far, by what a person would call them."""
        switches = resource.getrusage(resource.RUSAGE_THREAD)
        found = {
            "kernel variants compiled or loaded": self._variants,
            "garbage collections": sum(each["collections"] for each in gc.get_stats()),
            "ms of processor": 1e3 * time.thread_time(),
            "times another thread was run instead": switches.ru_nivcsw,
            "pages touched first": switches.ru_minflt,
            "pages read from disk": switches.ru_majflt,
        }
        return found | self._device_counts() if torch.cuda.is_initialized() else found

    def _device_counts(self) -> dict[str, float]:
        # The flat forms of torch 2.13 and before leave all they say in a reference cycle: 30 KB a turn, uncollected.
        device = torch.cuda.memory.memory_stats_as_nested_dict()
        host = torch.cuda.memory.host_memory_stats_as_nested_dict()
        return {
            "ms waited for the device": 1e3 * self._engine._runner.waiting.seconds,  # type: ignore[attr-defined]
            "device allocations": device["num_device_alloc"],
            "MiB of the device taken": device["reserved_bytes"]["all"]["current"] / (1 << 20),
            "pinned allocations": host.get("num_host_alloc", 0),
            "ms of pinned allocations": host.get("host_alloc_time", {}).get("total", 0) / 1e3,
        }

    def _loaded(self, *_args: object, **_named: object) -> None:
        self._variants += 1


def changes(before: dict[str, float], after: dict[str, float]) -> str:
    """What there was more of, with the differences."""
    more = {name: value - before.get(name, 0.0) for name, value in after.items()}
    return ", ".join(f"{name} {value:.4g}" for name, value in more.items() if value)
