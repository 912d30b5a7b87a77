"""KV on its way out of a prefill engine: pages filled as chunks are computed, one push a placed job (R2, R3).

    Place ── KV launched so far ──> gather into free pages ──> KvSender ── all landed, from every rank ──> PushDone
                                                                   └─ any other outcome, of any rank ──> TransferFailed

A gather is launched while the step that writes its slots is the next to end on the device (`written`), and runs beside
the step behind it. Its page goes to the sender at once, whose thread sends it when the device has filled it: the loop
may wait for a step meanwhile. When pages are short, it gathers while it waits (`pump_until`).

A job may be placed before, during or after its compute, and again after a failure, under the key of the new attempt.
Its slots are free as soon as it ends, since UCX reads pages only and steps launched later wait for gathers that are not
done; its Ended waits until those pages are back.

Each rank sends the KV heads that it holds, to those ranks of the peer that hold them too: to its counterpart, to
several, or to one that others send to as well. How far it is with that is its own; that a push is done or has failed is
a note that all ranks hear.
"""

import logging
import select
import time
from collections import Counter

from services.common import ipc
from services.engine.batch import Batch
from services.engine.jobs import Job, JobState
from services.engine.notes import PagesBack, PairLost, PairProven, PushOver
from services.engine.pairs import Pairs
from services.engine.push import Push, Stream
from services.engine.runner import Copy, Device
from services.engine.state import EngineState
from services.engine.transfer.events import PeerLost, PeerProven, Pushed, PushOutcome
from services.engine.transfer.layout import PageLayout
from services.engine.transfer.pages import PagePool
from services.engine.transfer_setup import TransferEnd, pages_a_peer
from services.engine.written import Part, Written

log = logging.getLogger(__name__)

_LOOK_S = 5e-4
"""How often a step is looked at while pages are short: its results are read so much later at most."""

_FAILURE_KINDS = {
    PushOutcome.DISCARDED: "refused",
    PushOutcome.CORRUPT: "verification",
    PushOutcome.LOST: "peer_lost",
    PushOutcome.DROPPED: "internal",
}


class Pushes:
    """Owned by the loop of a prefill engine."""

    def __init__(self, state: EngineState, backend: Device, transfer: TransferEnd) -> None:
        assert transfer.sender is not None
        self._state = state
        self._backend = backend
        self._pool: PagePool = transfer.pages
        self._sender = transfer.sender
        self._pages_a_peer = pages_a_peer(len(transfer.pages))
        self._ranks = state.agreement.count
        tell = state.agreement.tell
        self._pairs = Pairs(transfer.sender, transfer.num_kv_heads, state.agreement.rank, self._ranks, tell, state.say)
        self._tell = tell
        self._pages_of: Counter[str] = Counter()
        """Pages under way by connection: one that hangs does not take them all."""
        self._layout = PageLayout.of(backend.pool)
        self._active: dict[int, Push] = {}  # by job id
        self._by_key: dict[ipc.AttemptKey, Push] = {}
        self._written = Written()
        self._is_short = False
        self._computed_at: dict[int, float] = {}  # by job id: when its prompt was done
        self._num_ranks_clear: Counter[int] = Counter()  # by job id, of jobs that have ended

    def connect(self, command: ipc.ConnectPeer) -> None:
        """Reach and prove a decode engine: PeerProven or PeerLost follows."""
        self._pairs.connect(command)

    def drop_peer(self, command: ipc.DropPeer) -> None:
        """Close a connection: PeerLost follows, and TransferFailed for its pushes."""
        self._pairs.drop(command.peer_id)

    def place(self, command: ipc.Place) -> None:
        """Begin to push a job's KV; an earlier push of it ends."""
        job = self._state.jobs.get(command.job_id)
        if job is None or not job.hand_over or job.state is JobState.ENDING:
            return
        self._stop(job)
        streams = tuple(
            Stream(each.name, each.first_head, self._layout.of_heads(each.num_heads), command.skip_tokens)
            for each in self._pairs.remotes(command.peer_id)
        )
        push = Push(job, command.peer_id, command.key, streams, time.monotonic())
        self._active[job.job_id] = self._by_key[command.key] = push
        if not streams:
            self._tell_over(push, PushOutcome.LOST)
        log.debug("push of %s to %s", job.key.request_id, command.peer_id, extra={"request_id": job.key.request_id})

    def end(self, job: Job) -> None:
        """The job ends: nothing more of it is gathered or announced; Ended is said once all pages of it are back.

        All may have landed, and the transfer's own word of that still be on its way: the peer's join, or the end of the
        whole request, can come sooner by another way. PushDone then comes before Ended.
        """
        push = self._active.get(job.job_id)
        if push is not None:
            self._sender.drop(push.key)
            if not push.is_gathered:
                self._end(push)
            elif push.num_pages == 0:
                self._tell_over(push, None)
        self._written.forget(job)
        if job.num_pages_moving == 0:
            self._tell(PagesBack(job.job_id))
        else:
            self.leave_slots()

    def leave_slots(self) -> None:
        """Slots that may still be gathered are given back: what writes them next waits, on the device."""
        self._backend.end_gathers()

    def computing(self, batch: Batch, written: Copy) -> None:
        """A launched step is the next to end on the device."""
        self._written.computing(batch, written)

    def computed(self, job: Job) -> None:
        """The job's prompt is done; time from here to the last byte is exposed."""
        self._computed_at[job.job_id] = time.monotonic()

    def pump(self) -> None:
        """Take what the sender reports, and gather what has been computed into free pages."""
        for event in self._sender.poll():
            match event:
                case Pushed():
                    self._pushed(event)
                case PeerProven():
                    self._pairs.on_proven(event)
                case PeerLost():
                    self._pairs.on_lost(event)
        self._is_short = False
        for push in self._active.values():
            self._advance(push)

    def pump_until(self, step: Copy) -> None:
        """Gather as pages come back, while the loop would only wait for `step`; returns once no push wants a page."""
        self.pump()
        while self._is_short and not step.done():
            select.select([self._sender.wake_fd], [], [], _LOOK_S)
            self.pump()

    def hear(self, note: PairProven | PairLost | PushOver | PagesBack) -> None:
        """What a rank told."""
        match note:
            case PushOver():
                self._hear_over(note)
            case PagesBack(job_id=job_id):
                self._num_ranks_clear[job_id] += 1
                if self._num_ranks_clear[job_id] == self._ranks:
                    del self._num_ranks_clear[job_id]
                    self._clear(self._state.jobs[job_id])
            case _:
                self._pairs.hear(note)

    def _clear(self, job: Job) -> None:
        """All pages of a job that has ended are back, on every rank."""
        self._stop(job)  # some rank's part of a push may not have landed
        self._computed_at.pop(job.job_id, None)
        self._state.say_ended(job)

    def _advance(self, push: Push) -> None:
        """Gather whole pages, and the rest of a chunk when nothing more of it can come."""
        if push.told:
            return
        for stream in push.streams:
            while (part := self._written.after(push.job, stream.next_token)) and self._gather(push, stream, part):
                pass
            self._is_short |= part is not None
        if push.num_pages == 0 and push.is_gathered:
            self._tell_over(push, None)  # nothing to send: the peer held it all

    def _gather(self, push: Push, stream: Stream, part: Part) -> bool:
        """Gather one page of `part`; False when there is none: the sender's next report frees one."""
        job, start, layout = push.job, stream.next_token, stream.layout
        page = self._pool.acquire() if self._pages_of[stream.remote] < self._pages_a_peer else None
        if page is None:
            return False
        n = min(layout.tokens_per_page(self._pool.page_bytes), part.end - start)
        assert job.holding is not None
        copy = self._backend.gather(
            job.holding.slots[start : start + n], layout.view(page.buffer, n), stream.first_head, part.written
        )
        self._sender.push(stream.remote, push.key, start, n, page, n * layout.token_bytes, copy.done)
        stream.next_token += n
        push.num_pages += 1
        self._pages_of[stream.remote] += 1
        job.num_pages_moving += 1
        return True

    def _pushed(self, event: Pushed) -> None:
        push = self._by_key.get(event.key)
        if push is None:
            return
        push.num_bytes += event.num_bytes
        if event.outcome is not PushOutcome.LANDED and not push.over:
            self._tell_over(push, event.outcome)
        self._page_is_back(push, event.peer_id)

    def _page_is_back(self, push: Push, remote: str) -> None:
        push.num_pages -= 1
        self._pages_of[remote] -= 1
        push.job.num_pages_moving -= 1
        if push.num_pages == 0:
            if push.over:
                self._by_key.pop(push.key, None)
            elif push.is_gathered:
                self._tell_over(push, None)
        if push.job.state is JobState.ENDING and push.job.num_pages_moving == 0:
            self._tell(PagesBack(push.job.job_id))

    def _tell_over(self, push: Push, failure: PushOutcome | None) -> None:
        """All of this rank's part has landed, or some of it never will; the first word stands."""
        if not push.told:
            push.told = True
            self._tell(PushOver(push.key, push.num_bytes, None if failure is None else failure.value))

    def _hear_over(self, note: PushOver) -> None:
        push = self._by_key.get(note.key)
        if push is None or push.over:
            return
        if note.failure is not None:
            if not push.job.is_over:  # else nobody waits for it
                self._fail(push, PushOutcome(note.failure))
            return
        push.num_ranks_done += 1
        push.total_bytes += note.num_bytes
        if push.num_ranks_done == self._ranks:
            self._done(push)

    def _done(self, push: Push) -> None:
        now = time.monotonic()
        computed_at = self._computed_at.get(push.job.job_id, now)
        exposed = now - max(computed_at, push.began)
        self._state.events.append(ipc.PushDone(push.job.job_id, push.total_bytes, now - push.began, exposed))
        self._state.counters.pushed_bytes += push.total_bytes
        self._state.counters.pushes += 1
        self._end(push)

    def _fail(self, push: Push, outcome: PushOutcome) -> None:
        kind = _FAILURE_KINDS[outcome]
        message = f"KV of {push.key.request_id} to {push.peer_id}: {outcome.value}"
        log.warning("%s", message, extra={"request_id": push.key.request_id})
        self._state.events.append(ipc.TransferFailed(push.job.job_id, kind, message))
        self._state.counters.failed_pushes += 1
        self._sender.drop(push.key)
        self._end(push)

    def _stop(self, job: Job) -> None:
        push = self._active.get(job.job_id)
        if push is not None:
            self._sender.drop(push.key)
            self._end(push)

    def _end(self, push: Push) -> None:
        push.over = True
        del self._active[push.job.job_id]
        if push.num_pages == 0:
            self._by_key.pop(push.key, None)
