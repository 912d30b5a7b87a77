"""Uploads of what has no elements: there is nothing to pin, whatever the shape."""

import pytest
import torch

from services.engine.upload import upload


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)])
def test_nothing_is_pinned_of_nothing(shape: tuple[int, ...]) -> None:
    there = upload(torch.empty(shape, dtype=torch.int64), torch.device("meta"))
    assert (there.shape, there.device.type) == (shape, "meta")
