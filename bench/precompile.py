"""Compiles kernels in parallel without a card: what a sweep launches later is then in Triton's cache."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction


@dataclass(frozen=True, slots=True)
class _NoDevice:
    """Stands in for the CUDA driver: names the target, runs nothing."""

    arch: int

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.arch, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _device: int | None = None) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


def launch_nothing(arch: int = 90) -> None:
    """From here on, whatever this process launches is compiled for compute capability `arch` / 10 instead."""
    torch.set_num_threads(1)
    driver.set_active(_NoDevice(arch))
    run = JITFunction.run

    def compile_only(self: JITFunction, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:  # noqa: ANN401, ARG001
        return run(self, *args, grid=grid, warmup=True, **kwargs)

    JITFunction.run = compile_only


def _one(launch: Callable[..., None], candidate: object) -> str | None:
    try:
        launch(candidate, torch.device("cpu"))
    except Exception as error:  # noqa: BLE001 - a candidate that does not compile is a result
        return f"{candidate}: {type(error).__name__}: {str(error)[:900]}"
    return None


def compile_all(launch: Callable[..., None], candidates: Iterable[Any]) -> None:
    """Call `launch(candidate, cpu)` for each candidate in worker processes; what it launches is compiled, not run."""
    with ProcessPoolExecutor(max(1, (os.cpu_count() or 2) - 1), initializer=launch_nothing) as pool:
        for failure in pool.map(partial(_one, launch), list(candidates), chunksize=2):
            if failure:
                print("does not compile:", failure, flush=True)
