"""Pairs between which KV keeps failing to move, though their test page crossed: what a test page does not find.

Such a decode worker holds nothing, so that it looks the emptiest: without a memory of it each request would try it
first, and pay for the failure anew. A pair whose hand-overs failed `LEAST` times in a row gets none for `REST_S`; then
it may show that it works again, and rests anew with the first failure. Refusals for load are no faults, and a pair
rests only where others of its group take its requests: a fault of the network between all of them rests nobody.
"""

from dataclasses import dataclass

import msgspec

from services.common.messages import RefusalReason, Role, WorkerRef
from services.pd_master.selector import Snapshot, WorkerView

LEAST = 3
REST_S = 10.0
_FORGOTTEN_S = 600.0
_FAULTS = frozenset({RefusalReason.TRANSFER, RefusalReason.MISMATCH})

_Pair = tuple[WorkerRef, WorkerRef]


@dataclass(slots=True)
class _Faults:
    in_a_row: int
    last_s: float


class PairFaults:
    """One for a master. Told by `Attempts` what became of hand-overs; asked before each choice."""

    def __init__(self) -> None:
        self._faults: dict[_Pair, _Faults] = {}

    def refused(self, prefill: WorkerRef, decode: WorkerRef, reason: RefusalReason, now: float) -> None:
        """The decode worker did not take what the prefill worker had for it."""
        if reason not in _FAULTS:
            return
        self._faults = {pair: one for pair, one in self._faults.items() if now - one.last_s < _FORGOTTEN_S}
        one = self._faults.setdefault((prefill, decode), _Faults(0, now))
        one.in_a_row, one.last_s = one.in_a_row + 1, now

    def joined(self, prefill: WorkerRef, decode: WorkerRef) -> None:
        """All of it arrived."""
        if self._faults:
            self._faults.pop((prefill, decode), None)

    def without(self, snapshot: Snapshot, now: float) -> Snapshot:
        """The snapshot in which pairs that rest are not proven, where others are."""
        resting = {pair for pair, one in self._faults.items() if one.in_a_row >= LEAST and now - one.last_s < REST_S}
        if not resting:
            return snapshot
        decode = {
            (view.group, view.worker) for view in snapshot.workers if view.takes_work and view.role is Role.DECODE
        }
        views = [_rested(view, resting) for view in snapshot.workers]
        served = {
            view.group for view in views if view.takes_work and any((view.group, one) in decode for one in view.proven)
        }
        kept = [
            rested if rested.group in served else view for rested, view in zip(views, snapshot.workers, strict=True)
        ]
        return Snapshot(tuple(kept), snapshot.draw, snapshot.cached_tokens)


def _rested(view: WorkerView, resting: set[_Pair]) -> WorkerView:
    if not any((view.worker, decode) in resting for decode in view.proven):
        return view
    left = {decode: rate for decode, rate in view.proven.items() if (view.worker, decode) not in resting}
    return msgspec.structs.replace(view, proven=left)
