"""Ways of letting UCX work, to compare."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import ucxx._lib.libucxx as ucx


class Way(NamedTuple):
    """How both sides' fabrics are made."""

    hot_s: float
    """Of TransferConfig."""
    is_queued: bool
    """Whether a hot fabric queues what it starts; else it enters UCX beside the thread that polls."""

    @contextmanager
    def making(self) -> Iterator[None]:
        """A fabric made within goes this way."""
        made = ucx.UCXWorker

        def direct(context: object, **options: bool) -> object:
            return made(context, **(options | {"enable_delayed_submission": False}))

        ucx.UCXWorker = made if self.is_queued else direct
        yield
        ucx.UCXWorker = made


WAYS = {"calm": Way(0.0, True), "hot": Way(0.02, True), "direct": Way(0.02, False)}
