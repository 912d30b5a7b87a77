"""Where the host's memory is, and which of Python's objects are left over: what a soak blames growth on."""

from __future__ import annotations

import ctypes
import gc
import resource
import sys
import tracemalloc
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import torch

_MIB = 1 << 20
_RESIDENT = {"RssAnon": "anonymous", "RssFile": "of files", "RssShmem": "shared"}
_MALLOC = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
_MOST_TOLD = 12


class _MallInfo(ctypes.Structure):
    """glibc's `struct mallinfo2`, over all arenas."""

    _fields_ = [(name, ctypes.c_size_t) for name in _MALLOC]


_ask_malloc = getattr(ctypes.CDLL(None), "mallinfo2", None)  # glibc 2.33 and later
if _ask_malloc is not None:
    _ask_malloc.restype = _MallInfo


@dataclass(frozen=True, slots=True)
class Left:
    """Objects made since `gc.freeze`: how many of each type, the most frequent. Only what could be in cycles counts."""

    alive: dict[str, int] = field(default_factory=dict)
    num_unreachable: int = 0
    """In reference cycles. Where nothing is collected, as in the engine's process under load, they are a leak."""
    unreachable: dict[str, int] = field(default_factory=dict)
    made_by: dict[str, int] = field(default_factory=dict)
    """Of the unreachable, functions by name: a closure mostly says where its cycle was made."""


@dataclass(frozen=True, slots=True)
class Grown:
    """What came to the process between two moments."""

    peak_mib: float = 0.0
    """By how much its largest size is larger."""
    kinds: dict[str, float] = field(default_factory=dict)
    """Differences of `host_memory`."""
    left: Left = field(default_factory=Left)
    traced: list[str] = field(default_factory=list)
    """Where Python allocated most of what is left, where that was traced."""


class HostGrowth:
    """Of this process, from when it is made on."""

    def __init__(self, *, trace: bool = False) -> None:
        """`trace`: note where Python allocates, which slows it down. Freezes what there is, cycles too."""
        self._peak, self._kinds, self._trace = _peak_mib(), host_memory(), trace
        gc.freeze()
        if trace:
            tracemalloc.start()

    def end(self) -> Grown:
        """Until now; may take seconds, and leaves nothing frozen."""
        peak, kinds = _peak_mib() - self._peak, host_memory()
        grown = {name: round(kinds[name] - self._kinds.get(name, 0.0), 3) for name in kinds}
        traced = []
        if self._trace:
            traced = [str(each) for each in tracemalloc.take_snapshot().statistics("lineno")[:_MOST_TOLD]]
            tracemalloc.stop()
        left = _left_over()
        gc.unfreeze()
        return Grown(peak, grown, left, traced)


def host_memory() -> dict[str, float]:
    """MiB of this process by kind, and the number of Python's memory blocks.

    `resident` is the sum of the three kinds that follow it, where the kernel tells them apart. The others overlap them:
    Python's blocks of up to 512 bytes lie in arenas of its own, larger ones are malloc's, and whether pinned memory is
    resident is for the driver to say.
    """
    num_pages = int(Path("/proc/self/statm").read_text().split()[1])
    found = {"resident": num_pages * resource.getpagesize() / _MIB}
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    found |= {name: int(status[key].split()[0]) / 1024 for key, name in _RESIDENT.items() if key in status}
    found |= _malloc()
    if torch.cuda.is_initialized():
        pinned = torch.cuda.memory.host_memory_stats_as_nested_dict()
        found["pinned by torch"] = pinned.get("allocated_bytes", {}).get("current", 0) / _MIB
    return found | {"blocks of Python": float(sys.getallocatedblocks())}


def _malloc() -> dict[str, float]:
    if _ask_malloc is None:
        return {}
    info = _ask_malloc()
    return {"malloc's in use": (info.uordblks + info.hblkhd) / _MIB, "malloc's free": info.fordblks / _MIB}


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _left_over() -> Left:
    """Count what is not frozen, and free the unreachable."""
    flags, known = gc.get_debug(), len(gc.garbage)
    gc.set_debug(gc.DEBUG_SAVEALL)
    num_unreachable = gc.collect()
    gc.set_debug(flags)
    garbage = gc.garbage[known:]
    del gc.garbage[known:]
    unreachable = _most(type(each).__qualname__ for each in garbage)
    made_by = _most(f"{each.__module__}.{each.__qualname__}" for each in garbage if hasattr(each, "__code__"))
    garbage.clear()
    gc.collect()
    return Left(_most(type(each).__qualname__ for each in gc.get_objects()), num_unreachable, unreachable, made_by)


def _most(names: Iterable[str]) -> dict[str, int]:
    return dict(Counter(names).most_common(_MOST_TOLD))
