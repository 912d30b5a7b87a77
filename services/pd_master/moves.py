"""Moving sequences off a worker that is still there: it drains (R17), or its engine stands still.

Nothing is lost by either, so nothing is given up for it: the next attempt starts where there is a place, and the one
before goes on until the new one's first token. Without a place all stays as it is; a stalled engine may come to itself,
and if not, the worker's restart is a crash like any other. A stall counts towards R12: a request whose engines stood
still or crashed twice is not taken to a third.
"""

from services.common.messages import WorkerRef
from services.pd_master.attempt_index import AttemptIndex
from services.pd_master.inflight import MasterAttempt, Stage
from services.pd_master.recovery import MAX_CRASHES, Recovery


class Moves:
    """Part of `Attempts`."""

    def __init__(self, index: AttemptIndex, recovery: Recovery) -> None:
        self._index = index
        self._recovery = recovery

    def hand_over(self, worker: WorkerRef, left_s: float, now: float) -> None:
        """Start the sequences of a worker that will end elsewhere, a share each second."""
        decoding = [attempt for attempt in self._index.on(worker).values() if _decodes_on(attempt, worker)]
        share = -(-len(decoding) // max(int(left_s) - 1, 1))
        for attempt in decoding[:share]:
            attempt.branch.excluded.add(worker)
            self._go_on_elsewhere(attempt, now)

    def leave_stalled(self, worker: WorkerRef, now: float) -> None:
        """Take all that has a place elsewhere off a worker whose engine stands still and that takes no work meanwhile.
        Called each second."""
        alone = [attempt for attempt in self._index.on(worker).values() if _is_alone(attempt)]
        leaving = [attempt for attempt in alone if self._may_stall_again(attempt, worker)]
        is_anyone_there = bool(leaving) and self._recovery.is_anyone_there(leaving[0].branch.inflight.request)
        for attempt in leaving:
            if worker == attempt.decode and attempt.stage < Stage.JOINED and not attempt.is_prefill_done:
                self._recovery.redirect_if_possible(attempt)
            elif is_anyone_there:
                self._go_on_elsewhere(attempt, now)

    @staticmethod
    def _may_stall_again(attempt: MasterAttempt, worker: WorkerRef) -> bool:
        inflight = attempt.branch.inflight
        if attempt.was_inside(worker):
            inflight.stalls.add(str(worker))
        return inflight.num_engines_down < MAX_CRASHES

    def _go_on_elsewhere(self, attempt: MasterAttempt, now: float) -> None:
        branch = attempt.branch
        place = self._recovery.place_for(branch)
        if place is None:
            return
        if len(branch.unfinished()) == 1:
            self._recovery.overlap(branch, place, now)
        else:
            self._recovery.lost(attempt, now, place=place)


def _is_alone(attempt: MasterAttempt) -> bool:
    """Whether it is its branch's only attempt: no other one has been started beside it."""
    return attempt is attempt.branch.current and attempt.branch.previous is None


def _decodes_on(attempt: MasterAttempt, worker: WorkerRef) -> bool:
    if attempt.decode is None:
        return _is_alone(attempt) and attempt.stage >= Stage.PREFILLING
    return _is_alone(attempt) and worker == attempt.decode and attempt.stage is Stage.JOINED
