"""Which workers of the other role have a session to this one now."""

from services.common.messages import WorkerRef


class Peers:
    """worker id -> its start and the session to it. Used by the cores of both ends."""

    def __init__(self) -> None:
        self._sessions: dict[str, tuple[WorkerRef, int]] = {}

    def hello(self, worker: WorkerRef, session: int) -> None:
        """A session begins; it takes the place of any other to this worker. `session` is a number never used twice."""
        self._sessions[worker.worker_id] = (worker, session)

    def closed(self, worker: WorkerRef, session: int) -> None:
        """That session ended; nothing happens when another has taken its place."""
        if self._sessions.get(worker.worker_id) == (worker, session):
            del self._sessions[worker.worker_id]

    def is_present(self, worker: WorkerRef) -> bool:
        """Whether there is a session to exactly this start of the worker."""
        session = self._sessions.get(worker.worker_id)
        return session is not None and session[0] == worker

    def present(self) -> list[WorkerRef]:
        """All that have a session."""
        return [worker for worker, _ in self._sessions.values()]
