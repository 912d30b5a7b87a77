"""Which attempts there are, by name and by the workers that should hold them."""

from services.common.ipc import AttemptKey
from services.common.messages import Reconcile, WorkerRef
from services.pd_master.inflight import MasterAttempt, Stage
from services.pd_master.pending_load import PendingLoad


class AttemptIndex:
    """Part of `Attempts`. Invariant: an attempt is under its key, under its decode worker, and under its prefill worker
    until that is done."""

    def __init__(self, pending: PendingLoad) -> None:
        self._by_key: dict[AttemptKey, MasterAttempt] = {}
        self._on: dict[WorkerRef, dict[AttemptKey, MasterAttempt]] = {}
        self._pending = pending

    def __len__(self) -> int:
        return len(self._by_key)

    def find(self, key: AttemptKey, worker: WorkerRef) -> MasterAttempt | None:
        """The attempt of this name, if this worker has to do with it."""
        attempt = self._by_key.get(key)
        if attempt is None or worker not in attempt.workers:
            return None
        return attempt

    def on(self, worker: WorkerRef) -> dict[AttemptKey, MasterAttempt]:
        """What this worker should hold, or will soon."""
        return self._on.get(worker, {})

    def reconcile(self, worker: WorkerRef) -> Reconcile:
        """The same, as the worker is told."""
        return Reconcile([attempt.live() for attempt in self.on(worker).values()])

    def add(self, attempt: MasterAttempt) -> None:
        """An attempt starts."""
        self._by_key[attempt.key] = attempt
        for worker in {attempt.pair.prefill, attempt.decode} - {None}:
            assert worker is not None
            self._on.setdefault(worker, {})[attempt.key] = attempt
            self._pending.sent(worker, attempt.key, _num_tokens(attempt))

    def reached(self, attempt: MasterAttempt, stage: Stage) -> None:
        """Its workers say that it has come so far; it never goes back."""
        if stage <= attempt.stage:
            return
        attempt.stage = stage
        arrived = attempt.decode if stage >= Stage.PLACED else attempt.pair.prefill
        if arrived is not None:
            self._pending.arrived(arrived, attempt.key)

    def prefill_done(self, attempt: MasterAttempt) -> None:
        """The prefill worker has nothing more to do with it."""
        attempt.is_prefill_done = True
        self._forget(attempt.pair.prefill, attempt)

    def remove(self, attempt: MasterAttempt) -> bool:
        """An attempt is over. False when it was over already."""
        if self._by_key.pop(attempt.key, None) is None:
            return False
        self._forget(attempt.pair.prefill, attempt)
        if attempt.decode is not None:
            self._forget(attempt.decode, attempt)
        return True

    def _forget(self, worker: WorkerRef, attempt: MasterAttempt) -> None:
        held = self._on.get(worker)
        if held is None or held.pop(attempt.key, None) is None:
            return
        self._pending.ended(worker, attempt.key, _num_tokens(attempt))
        if not held:
            del self._on[worker]


def _num_tokens(attempt: MasterAttempt) -> int:
    """Of prompt and output, as far as they have come."""
    return len(attempt.branch.inflight.request.prompt_ids) + attempt.branch.num_delivered
