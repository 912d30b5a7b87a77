"""KV on its way out of a prefill engine: pages filled as chunks are computed, one push a placed job (R2, R3).

    Place ── KV computed so far ──> gather into free pages ──> KvSender ── all landed ──> PushDone
                                                                   └─ any other outcome ──> TransferFailed

A job may be placed before, during or after its compute, and again after a failure, under the key of the new attempt.
Its slots are free as soon as it ends, since UCX reads pages only; its Ended waits until those pages are back.
"""

import logging
import time
from collections import Counter
from dataclasses import dataclass

from services.common import ipc
from services.engine.jobs import Job, JobState
from services.engine.runner import Copy, Device
from services.engine.state import EngineState
from services.engine.transfer.events import PeerAddress, PeerLost, PeerProven, Pushed, PushOutcome
from services.engine.transfer.layout import PageLayout
from services.engine.transfer.pages import Page, PagePool
from services.engine.transfer.sender import KvSender

log = logging.getLogger(__name__)

_FAILURE_KINDS = {
    PushOutcome.DISCARDED: "refused",
    PushOutcome.CORRUPT: "verification",
    PushOutcome.LOST: "peer_lost",
    PushOutcome.DROPPED: "internal",
}


@dataclass(slots=True, eq=False)
class _Push:
    """One Place. `next_token` is the first one whose KV has not been gathered."""

    job: Job
    peer_id: str
    key: ipc.AttemptKey
    next_token: int
    began: float
    num_pages: int = 0
    """Gathered and not yet reported by the sender."""
    num_bytes: int = 0
    over: bool = False
    """Done, failed or replaced: what is still reported of it is only counted."""


@dataclass(frozen=True, slots=True)
class _Gathering:
    """A page that the device still fills."""

    push: _Push
    start: int
    num_tokens: int
    page: Page
    copy: Copy


class Pushes:
    """Owned by the loop of a prefill engine."""

    def __init__(self, state: EngineState, backend: Device, pool: PagePool, sender: KvSender, depth: int) -> None:
        self._state = state
        self._backend = backend
        self._pool = pool
        self._sender = sender
        self._depth = depth
        self._pages_of: Counter[str] = Counter()
        """Pages under way by peer: one that hangs does not take them all."""
        self._layout = PageLayout.of(backend.pool)
        self._page_tokens = self._layout.tokens_per_page(pool.page_bytes)
        self._active: dict[int, _Push] = {}  # by job id
        self._by_key: dict[ipc.AttemptKey, _Push] = {}
        self._gathering: list[_Gathering] = []
        self._computed_at: dict[int, float] = {}  # by job id: when its prompt was done

    @property
    def busy(self) -> bool:
        """Whether the device still fills pages."""
        return bool(self._gathering)

    def connect(self, command: ipc.ConnectPeer) -> None:
        """Reach and prove a decode engine: PeerProven or PeerLost follows."""
        address = PeerAddress(command.peer_id, command.host, command.ports[0], command.incarnation, command.group)
        self._sender.connect(address)

    def drop_peer(self, command: ipc.DropPeer) -> None:
        """Close a connection: PeerLost follows, and TransferFailed for its pushes."""
        self._sender.disconnect(command.peer_id)

    def place(self, command: ipc.Place) -> None:
        """Begin to push a job's KV; an earlier push of it ends."""
        job = self._state.jobs.get(command.job_id)
        if job is None or not job.hand_over or job.state is JobState.ENDING:
            return
        self._stop(job)
        push = _Push(job, command.peer_id, command.key, command.skip_tokens, time.monotonic())
        self._active[job.job_id] = self._by_key[command.key] = push
        log.debug("push of %s to %s", job.key.request_id, command.peer_id, extra={"request_id": job.key.request_id})

    def forget(self, job: Job) -> None:
        """The job ends: nothing more of it is gathered or sent."""
        self._stop(job)
        self._computed_at.pop(job.job_id, None)

    def computed(self, job: Job) -> None:
        """The job's prompt is done; time from here to the last byte is exposed."""
        self._computed_at[job.job_id] = time.monotonic()

    def turn(self) -> None:
        """Take what the sender reports, and gather what has been computed into free pages."""
        for event in self._sender.poll():
            match event:
                case Pushed():
                    self._pushed(event)
                case PeerProven():
                    self._state.events.append(ipc.PeerProven(event.peer_id, event.lane, event.gb_per_s))
                case PeerLost():
                    self._state.events.append(ipc.PeerLost(event.peer_id, f"{event.reason.value}: {event.detail}"))
        self._send_gathered()
        for push in list(self._active.values()):
            self._advance(push)
        self._send_gathered()

    def _advance(self, push: _Push) -> None:
        """Gather whole pages, and the rest of a chunk when nothing more of it can come."""
        job = push.job
        while push.next_token < job.num_computed:
            n = min(self._page_tokens, job.num_computed - push.next_token)
            page = self._pool.acquire() if self._pages_of[push.peer_id] < self._depth else None
            if page is None:
                return  # the sender's next report frees one
            assert job.holding is not None
            slots = job.holding.slots[push.next_token : push.next_token + n]
            copy = self._backend.gather(slots, self._layout.view(page.buffer, n))
            self._gathering.append(_Gathering(push, push.next_token, n, page, copy))
            push.next_token += n
            push.num_pages += 1
            self._pages_of[push.peer_id] += 1
            job.num_pages_moving += 1
        if push.num_pages == 0 and push.next_token >= len(job.tokens):
            self._done(push)  # nothing to send: the peer held it all

    def _send_gathered(self) -> None:
        waiting: list[_Gathering] = []
        for each in self._gathering:
            if not each.copy.done():
                waiting.append(each)
            elif each.push.over:
                each.page.release()
                self._page_is_back(each.push)
            else:
                num_bytes = each.num_tokens * self._layout.token_bytes
                push = each.push
                self._sender.push(push.peer_id, push.key, each.start, each.num_tokens, each.page, num_bytes)
        self._gathering = waiting

    def _pushed(self, event: Pushed) -> None:
        push = self._by_key.get(event.key)
        if push is None:
            return
        if not push.over:
            push.num_bytes += event.num_bytes
            if event.outcome is not PushOutcome.LANDED:
                self._fail(push, event.outcome)
        self._page_is_back(push)

    def _page_is_back(self, push: _Push) -> None:
        push.num_pages -= 1
        self._pages_of[push.peer_id] -= 1
        push.job.num_pages_moving -= 1
        if push.num_pages == 0:
            if push.over:
                self._by_key.pop(push.key, None)
            elif push.next_token >= len(push.job.tokens):
                self._done(push)
        if push.job.state is JobState.ENDING and push.job.num_pages_moving == 0:
            self._state.say_ended(push.job)

    def _done(self, push: _Push) -> None:
        now = time.monotonic()
        computed_at = self._computed_at.get(push.job.job_id, now)
        exposed = now - max(computed_at, push.began)
        self._state.events.append(ipc.PushDone(push.job.job_id, push.num_bytes, now - push.began, exposed))
        self._state.counters.pushed_bytes += push.num_bytes
        self._state.counters.pushes += 1
        self._end(push)

    def _fail(self, push: _Push, outcome: PushOutcome) -> None:
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

    def _end(self, push: _Push) -> None:
        push.over = True
        del self._active[push.job.job_id]
        if push.num_pages == 0:
            self._by_key.pop(push.key, None)
