"""KV on its way into a decode engine: slots reserved, pages scattered between steps, jobs joined when all is there.

    Reserve ──> RESERVED ── Join ──> JOINING ── every token scattered, on every rank ──> Joined, DECODING
                   └─ Revoked, Abort: the receiver forgets the key and throws away what still comes

Each rank receives the KV heads that it holds, from one rank of the peer or from several. That all of it is here is a
note; a job joins in the turn in which all ranks have heard it of all. Only this module's scatter writes received KV,
into slots that the job owns and never into the prefix it shares; the prefix cache gets them after Joined (R2).
"""

import logging
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.common import ipc
from services.engine.admission import BadJobError, read_ids
from services.engine.jobs import Job, JobState, Sequence
from services.engine.notes import KvCame, KvFailed, PeerGone
from services.engine.results import end_at_length
from services.engine.runner import Copy, Runner
from services.engine.state import EngineState
from services.engine.transfer.events import Damaged, PeerLost, PeerProven, Received
from services.engine.transfer.layout import PageLayout
from services.engine.transfer.pages import Page
from services.engine.transfer_setup import TransferEnd

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Arrival:
    """What has come of one reservation."""

    job: Job
    here: NDArray[np.bool_]
    """[num_kv_heads, num_tokens] of this rank: KV is in its slot, or a launched scatter puts it there."""
    first_tokens: dict[int, int]
    peer_id: str | None = None
    has_bytes: bool = False
    """Of this rank."""
    num_ranks_here: int = 0
    """Ranks that have told that all is there."""
    has_failed: bool = False


@dataclass(frozen=True, slots=True)
class _Scattering:
    """A page that the device still reads."""

    page: Page
    copy: Copy


class Arrivals:
    """Owned by the loop of a decode engine."""

    def __init__(self, state: EngineState, runner: Runner, transfer: TransferEnd, vocab_size: int) -> None:
        assert transfer.receiver is not None
        self._state = state
        self._runner = runner
        self._receiver = transfer.receiver
        self._first_head = transfer.heads.first
        self._ranks = state.agreement.count
        self._tell = state.agreement.tell
        self._vocab_size = vocab_size
        self._layout = PageLayout.of(runner.backend.pool)
        self._arrivals: dict[ipc.AttemptKey, _Arrival] = {}
        self._scattering: list[_Scattering] = []

    @property
    def busy(self) -> bool:
        """Whether the device still reads pages."""
        return bool(self._scattering)

    @property
    def can_join(self) -> bool:
        """Whether a job could join now that waited for rows."""
        return any(self._can_join(arrival) for arrival in self._arrivals.values())

    def reserve(self, command: ipc.Reserve) -> None:
        """Answer Reserved or Deferred, or Ended alone for ids that can never run here."""
        try:
            tokens = read_ids(command.token_ids, self._vocab_size)
            if not 0 < len(tokens) < self._state.rows.width:
                raise BadJobError(f"it has {len(tokens)} tokens; a context holds {self._state.rows.width}")
        except BadJobError as error:
            self._state.refuse(command.job_id, command.key, str(error))
            return
        before = self._state.kv.num_pinned
        # Decoding needs the KV of every token and no logits of them, so all of it may come from the cache.
        holding = self._state.kv.acquire(tokens, len(tokens), reserved=True)
        if holding is None:
            self._state.defer(command.job_id)
            return
        cached = holding.num_shared
        job = Job(
            job_id=command.job_id,
            key=command.key,
            arrival=command.arrival,
            tokens=tokens,
            num_prompt_tokens=len(tokens),
            state=JobState.RESERVED,
            holding=holding,
            cached_tokens=cached,
        )
        self._state.add(job)
        if command.grammar is not None:
            self._state.grammars.want(job, command.grammar)
        here = np.zeros((self._layout.num_kv_heads, len(tokens)), np.bool_)
        here[:, :cached] = True
        self._arrivals[command.key] = arrival = _Arrival(job, here, {})
        if here.all():
            arrival.num_ranks_here = self._ranks  # all of them hold the same prefixes
        self._receiver.expect(command.key)
        self._state.events.append(ipc.Reserved(job.job_id, cached, self._state.kv.num_pinned - before))

    def join(self, command: ipc.Join) -> None:
        """All KV has been announced: the job joins in this or a later turn."""
        job = self._state.jobs.get(command.job_id)
        if job is None or job.state is not JobState.RESERVED:
            return
        job.state = JobState.JOINING
        job.num_prompt_tokens = command.num_prompt_tokens
        job.sampling, job.stop = command.sampling, command.stop
        job.stop_token_ids = frozenset(command.stop.stop_token_ids)
        if command.sampling.grammar is not None:
            self._state.grammars.want(job, command.sampling.grammar)
        job.choices = tuple(command.first_tokens)
        job.max_outputs = min(command.stop.max_new_tokens, self._state.rows.width - command.num_prompt_tokens)
        self._arrivals[job.key].first_tokens = command.first_tokens

    def forget(self, job: Job) -> None:
        """The job ends, or has joined: nothing more of it is wanted."""
        if self._arrivals.pop(job.key, None) is not None:
            self._receiver.forget(job.key)

    def pump(self) -> None:
        """Scatter what has come."""
        for event in self._receiver.poll():
            match event:
                case Received():
                    self._received(event)
                case Damaged(key=key):
                    self._tell(KvFailed(key, "verification", "its checksum differs"))
                case PeerLost():
                    self._peer_lost(event)
                case PeerProven():
                    log.info("peer %s proven over %s", event.peer_id, event.lane)
        self._release_pages()

    def hear(self, note: KvCame | KvFailed | PeerGone) -> None:
        """What a rank told."""
        match note:
            case PeerGone():
                self._state.say(ipc.PeerLost(note.peer_id, note.reason))
            case KvFailed():
                self._fail(note)
            case KvCame():
                arrival = self._arrivals.get(note.key)
                if arrival is not None:
                    arrival.job.has_bytes = True
                    arrival.num_ranks_here += note.complete

    def join_complete(self) -> None:
        """Join the jobs whose KV is there on every rank."""
        for arrival in list(self._arrivals.values()):
            if self._can_join(arrival):
                self._join(arrival)

    def _can_join(self, arrival: _Arrival) -> bool:
        """Joined by the control process, complete, able to sample, and with a row for each choice."""
        joining = arrival.job.state is JobState.JOINING and arrival.num_ranks_here == self._ranks
        return joining and arrival.job.may_sample and self._state.rows.num_free >= len(arrival.first_tokens)

    def _received(self, event: Received) -> None:
        """Scatter a page; the receiver gives out nothing of keys that were forgotten."""
        arrival = self._arrivals[event.key]
        job, start, end = arrival.job, event.token_start, event.token_start + event.num_tokens
        assert job.holding is not None
        arrival.peer_id = event.peer_id
        layout = self._layout.of_heads(event.heads.num_heads)
        if not 0 <= start < end <= len(job.tokens) or event.num_bytes != event.num_tokens * layout.token_bytes:
            event.page.release()
            why = f"tokens [{start}, {end}) of {len(job.tokens)} in {event.num_bytes} bytes"
            self._tell(KvFailed(event.key, "verification", why))
            return
        page = layout.view(event.page.buffer, event.num_tokens)
        first_head = event.heads.first - self._first_head
        own = max(start, job.holding.num_shared)  # what the prefix cache holds already is not written again
        copy = self._runner.backend.scatter(page[:, own - start :], job.holding.slots[own:end], first_head)
        self._scattering.append(_Scattering(event.page, copy))
        was_empty = not arrival.has_bytes
        arrival.has_bytes = True
        arrival.here[first_head : first_head + event.heads.num_heads, own:end] = True
        complete = bool(arrival.here.all())
        if was_empty or complete:
            self._tell(KvCame(event.key, complete))
        self._state.counters.received_bytes += event.num_bytes

    def _release_pages(self) -> None:
        waiting: list[_Scattering] = []
        for each in self._scattering:
            if each.copy.done():
                each.page.release()
            else:
                waiting.append(each)
        self._scattering = waiting

    def _join(self, arrival: _Arrival) -> None:
        """Start the job's choices, which `_can_join`."""
        job, state = arrival.job, self._state
        assert job.holding is not None
        for choice, token_id in arrival.first_tokens.items():
            job.sequences[choice] = Sequence(job, choice, [*job.given_outputs(), token_id], row=state.rows.take())
        self.forget(job)
        state.kv.join(job.holding)
        state.kv.share(job.holding, job.tokens)
        sequences = list(job.sequences.values())
        state.begin_decoding(job, num_sampled=1)
        rows = [s.row for s in sequences if s.row is not None]
        self._runner.set_next_ids(rows, list(arrival.first_tokens.values()))
        state.events.append(ipc.Joined(job.job_id))
        state.counters.joins += 1
        for sequence in sequences:
            if len(sequence.outputs) >= job.max_outputs:
                end_at_length(state, sequence)

    def _peer_lost(self, event: PeerLost) -> None:
        self._tell(PeerGone(event.peer_id, f"{event.reason.value}: {event.detail}"))
        for key, arrival in self._arrivals.items():
            if arrival.peer_id == event.peer_id and not arrival.here.all():
                self._tell(KvFailed(key, "peer_lost", f"{event.peer_id} was lost: {event.reason.value}"))

    def _fail(self, note: KvFailed) -> None:
        """Tell the control process, once, which ends the job by Abort."""
        arrival = self._arrivals.get(note.key)
        if arrival is None or arrival.has_failed:
            return
        arrival.has_failed = True
        request_id = note.key.request_id
        log.warning("KV of %s: %s", request_id, note.why, extra={"request_id": request_id})
        self._state.say(ipc.TransferFailed(arrival.job.job_id, note.kind, f"KV of {request_id}: {note.why}"))
        self._state.counters.failed_arrivals += 1
