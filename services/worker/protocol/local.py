"""The protocol of a `mixed` worker: both halves of a request in one pool, no transfer.

              Submit             engine: Admitted            all choices finished
    (nothing) -----> QUEUED ----------------------> RUNNING ---------------------> DONE
               waits in the Router     computes and decodes, is preempted,     output is kept for
                                       resumes (`decoding`)                    its master
    Abort, not named by its master, master silent: from any state back to nothing, with a tombstone.

Pure: messages, events and `now` in, effects out (`effects`). The caller is the mixed service, in the control process,
on its event loop.
"""

from collections.abc import Callable

from services.common.messages import Abort, MasterMessage, MasterRef, Reconcile, Submit
from services.worker.jobs import JobEvent
from services.worker.protocol.attempt import Attempt, OpenLog
from services.worker.protocol.computing import Computing
from services.worker.protocol.core import DEFAULT_TIMES, ProtocolCore
from services.worker.protocol.decoding import Decoding
from services.worker.protocol.effects import Effect
from services.worker.protocol.times import Times


class LocalAttempts(ProtocolCore[Attempt]):
    """All attempts of one mixed worker."""

    def __init__(
        self, open_log: OpenLog, new_id: Callable[[], int], eos_token_ids: tuple[int, ...], times: Times = DEFAULT_TIMES
    ) -> None:
        super().__init__(open_log, new_id, eos_token_ids, times)
        self._decoding = Decoding(self._masters, self._emit, open_log, new_id, eos_token_ids)
        self._computing = Computing(self._masters, self._decoding, self._emit, new_id, eos_token_ids)

    @property
    def num_jobs(self) -> int:
        """Jobs that Router or engine have of them."""
        return len(self._computing) + len(self._decoding)

    def from_master(self, ref: MasterRef, message: MasterMessage, now: float) -> list[Effect]:
        """Anything but a hello."""
        match message:
            case Submit():
                self._submit(ref, message, now)
            case Abort(keys=keys):
                self._masters.abort(keys, now)
            case Reconcile(live=live):
                self._masters.reconcile(ref, live, now)
        return self._take()

    def _submit(self, ref: MasterRef, submit: Submit, now: float) -> None:
        if self._is_new(ref, submit):
            self._computing.submit(Attempt.of_submit(ref, submit, now), now)

    def job_event(self, event: JobEvent, now: float) -> list[Effect]:  # noqa: ARG002 - the cores are alike
        """One event of the engine or the Router, in their order. Those of forgotten jobs have no effect."""
        if not self._computing.takes(event):
            self._decoding.event(event)
        return self._take()

    def tick(self, now: float) -> list[Effect]:
        """Sweep: silent masters and tombstones. Each second (R8)."""
        self._masters.tick(now)
        return self._take()

    def drain(self, now: float) -> list[Effect]:  # noqa: ARG002 - the cores are alike
        """Take nothing new, and give back what waits; what runs goes on (R17)."""
        self.draining = True
        self._computing.drain()
        return self._take()

    def _end_for_master(self, attempt: Attempt, now: float) -> None:
        """The one way out: whatever is held is given back."""
        self._computing.end(attempt)
        self._decoding.stop(attempt)
        self._masters.remove(attempt, now)
