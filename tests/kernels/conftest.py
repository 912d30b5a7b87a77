"""The same tests run on a card and, without one, under Triton's interpreter on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from triton.runtime import interpreter

from services.engine import load
from services.engine.backends.cuda import prefill_graphs, recipe
from services.engine.backends.cuda.padded_chunks import PaddedShape
from services.engine.backends.cuda.runner import CudaRunner
from tests.engine.driver import Driver

HAS_CARD = torch.cuda.is_available()
Engines = Callable[..., Driver]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]

_patch_lang_tensor = interpreter._patch_lang_tensor


def _patch_with_item(tensor: Any, scope: Any) -> None:  # noqa: ANN401 - the interpreter's own
    """Let scalars of the interpreter be indices under numpy 2.4, which no longer turns a one-element array into one."""
    _patch_lang_tensor(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))


interpreter._patch_lang_tensor = _patch_with_item


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cuda" if HAS_CARD else "cpu")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(params=DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    chosen: torch.dtype = request.param
    return chosen


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engines:
    """Make an engine on the cuda backend, with rows for few requests: every row count has its graph."""

    def make(folder: Path, **changes: Any) -> Driver:
        if not HAS_CARD:
            monkeypatch.setattr(load, "make_runner", CudaRunner)
            # Each interpreted program costs time, also one that finds nothing to do: launch few more than are needed.
            monkeypatch.setattr(recipe, "PROGRAMS", 8)
            monkeypatch.setattr(prefill_graphs, "SHAPES", (PaddedShape(8, 3), PaddedShape(24, 3), PaddedShape(24, 6)))
        backend = "cuda" if HAS_CARD else "cpu"
        return Driver(folder, backend=backend, **{"max_running_requests": 6, "max_context_tokens": 160} | changes)

    return make
