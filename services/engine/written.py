"""How much of each prompt's KV may be read for its push, and after which point on the device.

Launched steps are told of when they are the next to end on the device: pages that waited for a later one could carry
nothing meanwhile. Until a prompt's last step is launched, its slots are its own, and a part of it may be read once the
step that wrote it has ended. Then the prefix cache may have put another prompt's slots in their place, which a step up
to the last one wrote: from there on all that is left waits for the last one.
"""

from typing import NamedTuple

from services.engine.batch import Batch
from services.engine.jobs import Job, JobState
from services.engine.runner import Copy


class Part(NamedTuple):
    """Tokens of a prompt up to `end` may be read after the device has passed `written`."""

    end: int
    written: Copy


class Written:
    """Owned by the pushes of a prefill engine."""

    def __init__(self) -> None:
        self._parts: dict[int, list[Part]] = {}  # by job id, in the order of their steps
        self._last_step = -1

    def computing(self, batch: Batch, written: Copy) -> None:
        """`batch` is the next to end on the device, which has passed `written` then; told again, it is ignored."""
        if batch.step <= self._last_step:
            return
        self._last_step = batch.step
        for chunk in batch.chunks:
            if chunk.job.hand_over and not chunk.job.is_over:
                self._parts.setdefault(chunk.job.job_id, []).append(Part(chunk.end, written))

    def forget(self, job: Job) -> None:
        """It has ended."""
        self._parts.pop(job.job_id, None)

    def after(self, job: Job, start: int) -> Part | None:
        """The part that begins at token `start`; None while the device does not compute it."""
        parts = self._parts.get(job.job_id, [])
        if job.state is JobState.HOLDING:
            parts = [part for part in parts[-1:] if part.end == len(job.tokens)]
        return next((part for part in parts if start < part.end), None)
