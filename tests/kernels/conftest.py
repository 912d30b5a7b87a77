"""The same tests run on a card and, without one, under Triton's interpreter on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from triton.runtime import interpreter

DTYPES = [torch.float32, torch.float16, torch.bfloat16]

_patch_lang_tensor = interpreter._patch_lang_tensor


def _patch_with_item(tensor: Any, scope: Any) -> None:  # noqa: ANN401 - the interpreter's own
    """Let scalars of the interpreter be indices under numpy 2.4, which no longer turns a one-element array into one."""
    _patch_lang_tensor(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))


interpreter._patch_lang_tensor = _patch_with_item


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(params=DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    chosen: torch.dtype = request.param
    return chosen
