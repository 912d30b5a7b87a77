"""The workers behind a front: what the APIs ask of the registry, and what the workers say about requests' stages.

It stands between the registry and the dispatcher as the registry's handler: everything passes through unchanged, and
the events that a user's waiting consists of are noted on the way.
"""

from collections.abc import Sequence

from services.common.gateway_messages import WorkerCard
from services.common.messages import Joined, MasterRef, Prefilling, Reconcile, Role, WorkerMessage, WorkerRef
from services.pd_master.backend import ServedModel, StageListener, TokenLoad
from services.pd_master.registry import Registry
from services.pd_master.roster import WorkHandler
from services.pd_master.selector import count_pairs, most_slots


class Fleet:
    """One per master process. Fits `backend.Models` and the registry's `WorkHandler`."""

    def __init__(self, master: MasterRef, registry: Registry, dispatcher: WorkHandler) -> None:
        self.master_id = master.master_id
        self._registry = registry
        self._dispatcher = dispatcher
        self.stages: StageListener | None = None
        """Set by the front."""

    # ------------------------------------------------------------------------------------------------------- questions

    def models(self) -> Sequence[ServedModel]:
        """All models, by name."""
        return self._registry.models.models()

    def model(self, name: str) -> ServedModel:
        """Raises ModelNotFoundError."""
        return self._registry.models.model(name)

    def workers(self) -> list[WorkerCard]:
        """Every worker there is a session to."""
        return [
            WorkerCard(
                worker_id=view.worker.worker_id,
                role=view.role.value,
                model=view.model,
                ready=view.takes_work,
                draining=view.draining,
                running_requests=view.load.running_requests,
                queued_requests=view.load.queued_requests,
                demand_ratio=view.load.demand_ratio,
                admitted_peak_ratio=view.load.admitted_peak_ratio,
                held_slots=view.load.held_slots,
                num_slots=view.load.num_slots,
            )
            for view in self._registry.snapshot().workers
        ]

    def token_load(self) -> TokenLoad:
        """The fuller of the two stages; within a stage its workers' mean."""
        views = self._registry.snapshot().workers
        stages = [[view.load for view in views if view.role is not other] for other in (Role.PREFILL, Role.DECODE)]
        loads = [
            TokenLoad(
                current=_mean([load.held_slots / max(load.num_slots, 1) for load in stage]),
                admitted_peak=_mean([load.admitted_peak_ratio for load in stage]),
                demand=_mean([load.demand_ratio for load in stage]),
            )
            for stage in stages
        ]
        return max(loads, key=lambda load: load.demand)

    def num_slots(self, name: str) -> int:
        """Slots of the largest pool that decodes for a model now; 0 when there is none."""
        return most_slots(name, self._registry.snapshot())

    def num_pairs(self) -> int:
        """Proven pairs and mixed workers that take requests now."""
        return count_pairs(self._registry.snapshot())

    # ------------------------------------------------------------------------------------------------ from the registry

    def reconcile(self, worker: WorkerRef) -> Reconcile:
        """As the dispatcher's."""
        return self._dispatcher.reconcile(worker)

    def worker_said(self, worker: WorkerRef, message: WorkerMessage) -> None:
        """As the dispatcher's."""
        if self.stages is not None:
            if isinstance(message, Prefilling):
                self.stages.prefilling(message.key.request_id)
            elif isinstance(message, Joined):
                self.stages.joined(message.key.request_id)
        self._dispatcher.worker_said(worker, message)

    def worker_lost(self, worker: WorkerRef, *, crashed: bool) -> None:
        """As the dispatcher's."""
        self._dispatcher.worker_lost(worker, crashed=crashed)

    def worker_stalled(self, worker: WorkerRef) -> None:
        """As the dispatcher's."""
        self._dispatcher.worker_stalled(worker)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
