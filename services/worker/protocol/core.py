"""What the cores of all roles share: the door to masters, and the list that effects gather in."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic

from services.common.errors import SluiceError
from services.common.ipc import AttemptKey
from services.common.messages import LiveAttempt, MasterMessage, MasterRef, RefusalReason, Refused, Submit
from services.worker.jobs import GivenUp, JobEvent
from services.worker.protocol.attempt import OpenLog
from services.worker.protocol.effects import Effect, SendToMaster
from services.worker.protocol.masters import A, Masters
from services.worker.protocol.times import Times

DEFAULT_TIMES = Times()


class ProtocolCore(ABC, Generic[A]):
    """One per worker process, on its event loop. Every public method returns the effects to be carried out, in order.

    open_log: opens a choice's output. new_id: makes a job id never used in the engine's life.
    """

    def __init__(
        self, open_log: OpenLog, new_id: Callable[[], int], eos_token_ids: tuple[int, ...], times: Times = DEFAULT_TIMES
    ) -> None:
        self.draining = False
        """Nothing new is taken; set by `drain`."""
        self._effects: list[Effect] = []
        self._open_log = open_log
        self._new_id = new_id
        self._eos_token_ids = eos_token_ids
        self._masters: Masters[A] = Masters(self._emit, self._end_for_master, times)

    @property
    def num_attempts(self) -> int:
        """Attempts that are known, ended but not forgotten ones included."""
        return len(self._masters.attempts)

    @property
    def num_tombstones(self) -> int:
        """Ended attempts that are remembered."""
        return len(self._masters.tombstones)

    def held(self, ref: MasterRef) -> list[AttemptKey]:
        """For the heartbeat to this master."""
        return self._masters.held(ref)

    def master_hello(self, ref: MasterRef, session: int, live: list[LiveAttempt], now: float) -> list[Effect]:
        """A session to a master begins; `session` is a number the edge never uses twice."""
        self._masters.hello(ref, session, live, now)
        return self._take()

    def master_closed(self, ref: MasterRef, session: int, now: float) -> list[Effect]:
        """That session ended."""
        self._masters.closed(ref, session, now)
        return self._take()

    @abstractmethod
    def from_master(self, ref: MasterRef, message: MasterMessage, now: float) -> list[Effect]:
        """Anything but a hello."""

    def job_refused(self, job_id: int, error: SluiceError, now: float) -> list[Effect]:
        """The Router refused a job that was started."""
        return self.job_event(GivenUp(job_id, error), now)

    @abstractmethod
    def job_event(self, event: JobEvent, now: float) -> list[Effect]:
        """One event of the engine or the Router, in their order. Those of forgotten jobs have no effect."""

    @abstractmethod
    def tick(self, now: float) -> list[Effect]:
        """Sweep. Each second, on a timer of its own (R8)."""

    @abstractmethod
    def drain(self, now: float) -> list[Effect]:
        """Take nothing new, and give back what waits (R17)."""

    @abstractmethod
    def _end_for_master(self, attempt: A, now: float) -> None:
        """Its master does not want it any more: give back what it holds and forget it."""

    def _is_new(self, ref: MasterRef, submit: Submit) -> bool:
        """Whether an attempt is to be taken; one that is stale, or comes while this worker drains, is refused here."""
        if self._masters.find(submit.key) is not None:
            return False
        if self._masters.is_stale(submit.key):
            self._refuse(ref, submit.key, RefusalReason.STALE)
        elif self.draining:
            self._refuse(ref, submit.key, RefusalReason.DRAINING)
        else:
            return True
        return False

    def _refuse(self, ref: MasterRef, key: AttemptKey, reason: RefusalReason, text: str = "") -> None:
        self._emit(SendToMaster(ref, Refused(key, reason, message=text)))

    def _emit(self, effect: Effect) -> None:
        self._effects.append(effect)

    def _take(self) -> list[Effect]:
        effects = self._effects[:]
        self._effects.clear()
        return effects
