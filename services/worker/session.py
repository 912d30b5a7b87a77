"""A worker's end of one stream to one master: what waits to be said, merged when the stream is slow (R15).

Events are said in order; of heartbeats only the last one counts, and changes of the prefix cache go with it. Output is
not queued: the session knows how far it has sent each choice, and when the stream can take a frame it cuts what is new
from the choices' logs. So a slow stream gets fewer, longer frames, and what waits is bounded by the logs that are kept
anyway.
"""

from dataclasses import dataclass

from services.common.ipc import AttemptKey
from services.common.messages import (
    AttemptDelta,
    AttemptEvent,
    Deltas,
    Heartbeat,
    MasterHello,
    Queued,
    WorkerMessage,
)
from services.common.metrics import SessionMetrics
from services.worker.cache_account import CacheJournal, CacheReport
from services.worker.outbox import Outbox
from services.worker.protocol.effects import OutputLog


@dataclass(slots=True)
class _Cursor:
    log: OutputLog
    next_index: int
    finish_sent: bool = False


class MasterSession:
    """One stream. The service speaks into it; the RPC writes what `outbox` gives until the stream ends."""

    def __init__(self, hello: MasterHello, metrics: SessionMetrics, cache: CacheJournal) -> None:
        self.master = hello.master
        self.in_batches = hello.reads_batches
        """How what is said at once is written."""
        self._in_columns = hello.reads_columns
        self.cache = CacheReport(cache)
        self.outbox: Outbox[WorkerMessage] = Outbox(f"master {self.master.master_id}", self._cut)
        self._metrics = metrics
        self._cursors: dict[tuple[AttemptKey, int], _Cursor] = {}
        self._grown: dict[tuple[AttemptKey, int], _Cursor] = {}
        self._heartbeat: Heartbeat | None = None

    def follow(self, key: AttemptKey, choice: int, log: OutputLog, next_index: int) -> None:
        """Send this choice's output from an output position on, and all that comes after it."""
        self._cursors[key, choice] = _Cursor(log, next_index)
        self.grown(key, choice)

    def grown(self, key: AttemptKey, choice: int) -> None:
        """The choice's log has something new."""
        cursor = self._cursors.get((key, choice))
        if cursor is not None:
            self._grown[key, choice] = cursor
            self.outbox.poke()

    def forget(self, key: AttemptKey, choices: tuple[int, ...]) -> None:
        """Nothing more of this attempt is sent."""
        for choice in choices:
            self._cursors.pop((key, choice), None)
            self._grown.pop((key, choice), None)

    def event(self, event: AttemptEvent) -> None:
        """Say what became of an attempt. That it waits in the queue is soon followed by more, if it matters little."""
        self.outbox.say(event, can_wait=isinstance(event, Queued))

    def beat(self, heartbeat: Heartbeat) -> None:
        """Say how the worker is; one that still waits is out of date and dropped."""
        self._heartbeat = heartbeat
        self.outbox.poke()

    def _cut(self) -> list[WorkerMessage]:
        messages: list[WorkerMessage] = []
        if self._heartbeat is not None:
            messages = [self._heartbeat, *self.cache.messages()]
            self._heartbeat = None
        frame = self._cut_deltas()
        return messages if frame is None else [*messages, frame]

    def _cut_deltas(self) -> Deltas | None:
        grown, self._grown = self._grown, {}
        deltas = []
        for (key, _), cursor in grown.items():
            delta = None if cursor.finish_sent else cursor.log.since(cursor.next_index)
            if delta is None:
                continue
            cursor.next_index = delta.first_index + len(delta.token_ids)
            cursor.finish_sent = delta.finish is not None
            deltas.append(AttemptDelta(key, delta))
        if not deltas:
            return None
        self._metrics.frames.inc()
        self._metrics.deltas.inc(len(deltas))
        return Deltas(deltas, self._in_columns)
