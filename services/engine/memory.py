"""Out of memory at start as a message that a person can act on."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from services.engine.config import ConfigError

_GIB = 1 << 30


@contextmanager
def fits(device: torch.device, what: str, advice: str) -> Iterator[None]:
    """Raise ConfigError, with what the device has and what to change, where `what` does not fit its memory."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise ConfigError(f"{what} does not fit the memory of {device} ({_has(device)}); {advice}") from error


def _has(device: torch.device) -> str:
    if device.type != "cuda":
        return "see the system's own figures"
    free, total = torch.cuda.mem_get_info(device)
    return f"{free / _GIB:.1f} of {total / _GIB:.1f} GiB are free"
