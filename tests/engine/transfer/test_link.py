"""A link whose endpoint leaves requests unreported, as UCX does now and then with a killed peer."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from services.engine.transfer import link as link_module
from services.engine.transfer.link import Link
from services.engine.transfer.page_memory import HostMemory
from services.engine.transfer.pages import Page, PagePool


class Unreported:
    """A request that UCX says nothing of, for ever."""

    completed = False


class Endpoint:
    """Takes every request and reports none; its close does finish."""

    alive = True

    def _begin(self, *_: object) -> Unreported:
        return Unreported()

    tag_send = tag_recv = stream_send = stream_recv = _begin

    def close_blocking(self) -> None:
        self.alive = False


Start = Callable[[Link, Callable[[str | None], None]], Any]
SENDS: dict[str, Start] = {
    "page": lambda link, done: link.send_page(pool_page(), 8, 1, done),
    "proof": lambda link, done: link.send(np.zeros(8, np.uint8), 1, done),
    "hello": lambda link, done: link.greet(bytes(8), None, done),
    "control": lambda link, _done: link.say(bytes(8), 1),
}
RECEIVES: dict[str, Start] = {
    "page": lambda link, done: link.receive_page(pool_page(), 8, 1, done),
    "proof": lambda link, done: link.receive(np.zeros(8, np.uint8), 1, done),
    "hello": lambda link, done: link.greet(None, np.zeros(8, np.uint8), done),
}


def pool_page() -> Page:
    page = PagePool(HostMemory(), 1, 64).acquire()
    assert page is not None
    return page


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> Link:
    """Gives up on unreported sends as soon as it is closed."""
    monkeypatch.setattr(link_module, "_UNREPORTED_S", -1.0)
    return Link(Endpoint())


@pytest.mark.parametrize("kind", SENDS)
def test_a_closed_link_is_drained_of_sends_that_are_never_reported(link: Link, kind: str) -> None:
    told: list[str | None] = []
    SENDS[kind](link, told.append)
    assert not link.collect(), "an open link waits for UCX"
    assert not link.is_drained
    link.close()
    assert link.collect(), "a closed one gives up"
    assert not link._flights
    assert told == ([] if kind == "control" else ["UCX did not report the send"])


@pytest.mark.parametrize("kind", RECEIVES)
def test_memory_that_ucx_may_still_write_to_is_never_given_up(link: Link, kind: str) -> None:
    RECEIVES[kind](link, lambda _: None)
    link.close()
    assert not link.collect()
    assert not link.is_drained
