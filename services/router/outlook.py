"""What a Router expects: output lengths, the quantile to plan with, and how long the queue will wait."""

from __future__ import annotations

import numpy as np

from services.router.output_length import ALL, OutputLengths
from services.router.peak_memory import IntArray, Joiners
from services.router.quantile_control import QuantileControl
from services.router.running import LetIn, RunningSet, Stage
from services.router.survival import FloatArray
from services.router.wait_time import Backlog, Rates, predicted_waits_s
from services.router.waiting import WaitingQueue
from services.router.work import QueuedWork, RouterConfig


class Outlook:
    """Owned by one Router; learns from what ends, and predicts what runs and what waits."""

    def __init__(self, config: RouterConfig, lengths: OutputLengths) -> None:
        self.lengths = lengths
        self.rates = Rates()
        self._config = config
        self._control = QuantileControl(config.quantile)
        self._rebuilt_at: int | None = None
        """Decode step of the last rebuild of the length tables."""
        self._corrected_at = 0
        """Decode step of the last new predictions for what outlived its own; until then it counts as ending now."""
        self._left: IntArray | None = None
        self._left_for: object = None
        """The queue arrays that `_left` was predicted for."""

    @property
    def level(self) -> float:
        """The quantile in use."""
        return self._control.level

    def group(self, work: QueuedWork) -> int:
        """Whose evidence counts for this work: its key's, else its priority's where that is not the usual one."""
        by_priority = f"priority {work.priority}" if work.priority else ""
        return self.lengths.group(work.evidence_key or by_priority) if work.grows else ALL

    def ended(self, one: LetIn, num_output_tokens: int, now: int, *, natural: bool) -> None:
        """A sequence that decodes here ended at step `now`."""
        if one.entry.work.grows:
            self.lengths.observe(num_output_tokens, now, one.entry.group, natural=natural)
            self._control.observe(preempted=False)

    def preempted(self) -> None:
        """A sequence lost its slots: lengths were taken too short."""
        self._control.observe(preempted=True)

    def aborted(self, running: RunningSet, one: LetIn) -> None:
        """Work is about to leave before its end; how far its sequences got is evidence all the same."""
        if one.stage is Stage.DECODING:
            for choice in one.live:
                produced = running.produced(one, choice)
                self.lengths.observe(produced, running.ledger.now, one.entry.group, natural=False)

    def predict(self, running: RunningSet) -> None:
        """Bring predictions up to date: all of them every `refresh_steps`, more often of those that outlived theirs."""
        now = running.ledger.now
        if self._rebuilt_at is None or now - self._rebuilt_at >= self._config.refresh_steps:
            running.predict(self.level, all_of_them=True)
            self._rebuilt_at = self._corrected_at = now
            self._left = None
        elif now - self._corrected_at >= self._config.refresh_steps // 4:
            running.predict(self.level, all_of_them=False)
            self._corrected_at = now

    def joiners(self, queue: WaitingQueue, running: RunningSet) -> Joiners:
        """What waits, as it would join the pool now."""
        arrays = queue.arrays()
        if self._left is None or self._left_for is not arrays:
            left = self.lengths.remaining(arrays.lengths, self.level)
            self._left, self._left_for = np.where(arrays.growth > 0, left + running.join_steps, left), arrays
        return Joiners(arrays.held, self._left, arrays.growth)

    def waits_s(self, queue: WaitingQueue, running: RunningSet, capacity: int) -> FloatArray:
        """[k + 1] predicted wait of each entry of the queue, and of one that would come now."""
        backlog = Backlog(self.joiners(queue, running), queue.arrays().compute_tokens, running.computing_tokens)
        if not len(queue) and not running.computing_tokens:
            return np.zeros(1)
        return predicted_waits_s(running.ledger.curve(), backlog, capacity, self.rates)
