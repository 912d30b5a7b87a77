"""What the log says of an address that gives no session: each reason once, and nothing of a worker that still loads."""

import logging

import grpc
import grpc.aio
import pytest

from services.common.wire import WireError
from services.pd_master.unreached import PATIENCE_S, Unreached


class Clock:
    """A clock that stands where it is put."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def _refused() -> grpc.aio.AioRpcError:
    nothing = grpc.aio.Metadata()
    details = "failed to connect to all addresses: Connection refused"
    return grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, nothing, nothing, details)


def _no_name() -> grpc.aio.AioRpcError:
    nothing = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, nothing, nothing, "DNS resolution failed")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def unreached(clock: Clock, caplog: pytest.LogCaptureFixture) -> Unreached:
    caplog.set_level(logging.WARNING)
    return Unreached("host:1", clock)


def test_an_address_where_nobody_listens_yet_is_told_of_once_and_not_at_once(
    unreached: Unreached, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for clock.now in (0.0, PATIENCE_S - 1):
        unreached.failed(_refused())
    assert caplog.messages == []
    for clock.now in (PATIENCE_S, PATIENCE_S + 60):
        unreached.failed(_refused())
    assert caplog.messages == ["no session to the worker at host:1: nobody listens there; it is tried again and again"]


def test_what_waiting_does_not_mend_is_told_at_once(unreached: Unreached, caplog: pytest.LogCaptureFixture) -> None:
    unreached.failed(_no_name())
    unreached.failed(WireError("protocol 3, not 4"))
    unreached.failed(_no_name())
    assert [message.split(": ", 1)[1].split(";")[0] for message in caplog.messages] == [
        "UNAVAILABLE: DNS resolution failed",
        "protocol 3, not 4",
    ]


def test_after_a_session_everything_is_news_again(
    unreached: Unreached, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    unreached.failed(_no_name())
    unreached.reached()
    unreached.failed(_no_name())
    clock.now = PATIENCE_S - 1
    unreached.failed(_refused())
    assert len(caplog.messages) == 2
