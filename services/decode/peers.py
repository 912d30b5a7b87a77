"""The prefill workers of a decode worker: one session from each start that is alive."""

import itertools
import logging
from typing import cast

from services.common.messages import PROTOCOL, Peer, ProvenPair, WorkerRef
from services.common.peer_messages import DecodeHello, DecodeMessage, PrefillHello, PrefillMessage
from services.decode.reservation_edge import PeerSession
from services.decode.reservations import DecodeReservations
from services.worker.service import WorkerService
from services.worker.session_errors import LeavingError, ProtocolMismatchError, SupersededError

log = logging.getLogger(__name__)


class PrefillPeers:
    """`PeerPort` and `PeerHandler` of a decode worker; one per process, on its event loop."""

    def __init__(self, hello: DecodeHello, core: DecodeReservations, service: WorkerService) -> None:
        assert hello.protocol == PROTOCOL
        self._hello = hello
        self._core = core
        self._service = service
        self._numbers = itertools.count(1)
        self._sessions: dict[str, tuple[int, PeerSession]] = {}
        """By worker id: the latest session and its number."""

    def open_peer(self, hello: PrefillHello) -> PeerSession:
        """A prefill worker came. Raises ProtocolMismatchError when it is of another group."""
        if hello.group != self._hello.group:
            raise ProtocolMismatchError(f"this worker is of group {self._hello.group}, the other of {hello.group}")
        before = self._sessions.get(hello.worker.worker_id)
        if before is not None:
            before[1].outbox.close(SupersededError("a newer session of this worker took its place"))
        session, number = PeerSession(hello.worker), next(self._numbers)
        self._sessions[hello.worker.worker_id] = (number, session)
        session.outbox.say(self._hello)
        log.info("session from prefill worker %s", hello.worker.worker_id)
        self._service.hand_in(lambda now: self._core.peer_hello(hello.worker, number, now))
        return session

    def peer_said(self, session: PeerSession, message: PrefillMessage) -> None:
        """A message came; those of a superseded session are dropped."""
        if self._number(session) is not None:
            self._service.hand_in(lambda now: self._core.from_peer(session.worker, message, now))

    def peer_lost(self, session: PeerSession) -> None:
        """A stream is gone; the leases of what it asked for run."""
        number = self._number(session)
        if number is not None:
            del self._sessions[session.worker.worker_id]
            log.info("no session from prefill worker %s", session.worker.worker_id)
            self._service.hand_in(lambda now: self._core.peer_closed(session.worker, number))  # noqa: ARG005

    def _number(self, session: PeerSession) -> int | None:
        number, current = self._sessions.get(session.worker.worker_id, (0, None))
        return number if current is session else None

    def send(self, worker: WorkerRef, message: PrefillMessage | DecodeMessage) -> None:
        """Say something; dropped without a session to exactly this start."""
        _, session = self._sessions.get(worker.worker_id, (0, None))
        if session is not None and session.worker == worker:
            session.outbox.say(cast(DecodeMessage, message))

    def close(self) -> None:
        """End all sessions once what waits has been written."""
        for _, session in self._sessions.values():
            session.outbox.close(LeavingError("this worker leaves"))

    def want(self, peers: tuple[Peer, ...]) -> None:
        """Prefill workers come by themselves."""

    def proven(self) -> list[ProvenPair]:
        """Pairs are proven from the prefill side."""
        return []
