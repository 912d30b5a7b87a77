"""Where announced payloads go: page, scratch page, or waiting for one of two things."""

from dataclasses import dataclass, field

from services.common.ipc import AttemptKey
from services.engine.transfer.admission import Admission, Inbound
from services.engine.transfer.page_memory import HostMemory
from services.engine.transfer.pages import Page, PagePool

KEY, OTHER = AttemptKey("0" * 32, 1), AttemptKey("1" * 32, 1)


@dataclass
class Desk:
    """An admission, its clock, and the receives it asked for: (seq, page or None)."""

    grace_s: float = 1.0
    now: float = 100.0
    is_over: bool = False
    posted: list[tuple[int, Page | None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pool = PagePool(HostMemory(), 2, 64)
        self.admission = Admission(self.pool, self.grace_s, tombstone_s=10.0, now=lambda: self.now)

    def post(self, inbound: Inbound, page: Page | None) -> None:
        self.posted.append((inbound.seq, page))

    def announce(self, seq: int, key: AttemptKey = KEY, *, is_proof: bool = False) -> None:
        self.admission.place(Inbound(self, seq, key, 0, 1, 64, None, is_proof))

    @property
    def placed(self) -> list[tuple[int, bool]]:
        return [(seq, page is not None) for seq, page in self.posted]


def test_expected_payloads_get_pages_and_the_rest_wait_in_order() -> None:
    desk = Desk()
    desk.admission.expect(KEY)
    for seq in range(4):
        desk.announce(seq)
    assert desk.placed == [(0, True), (1, True)]
    assert desk.admission.is_waiting
    page = desk.posted[0][1]
    assert page is not None
    page.release()
    desk.admission.serve()
    assert desk.placed == [(0, True), (1, True), (2, True)]


def test_a_payload_of_an_attempt_never_heard_of_waits_for_it() -> None:
    desk = Desk()
    desk.announce(0)
    desk.announce(1, OTHER)
    assert desk.placed == []
    desk.admission.expect(KEY)
    assert desk.placed == [(0, True)]


def test_an_attempt_that_nobody_expects_in_time_goes_to_the_scratch_page() -> None:
    desk = Desk()
    desk.announce(0)
    desk.admission.tick(desk.now + 0.9)
    assert desk.placed == []
    desk.admission.tick(desk.now + 1.1)
    assert desk.placed == [(0, False)]


def test_a_tombstone_sends_payloads_to_the_scratch_page_at_once_until_it_expires() -> None:
    desk = Desk()
    desk.admission.forget(KEY)
    desk.announce(0)
    assert desk.placed == [(0, False)]
    desk.admission.tick(desk.now + 11)
    desk.announce(1)
    assert desk.placed == [(0, False)]


def test_forgetting_an_attempt_releases_what_waits_for_its_page() -> None:
    desk = Desk()
    desk.admission.expect(KEY)
    for seq in range(4):
        desk.announce(seq)
    desk.admission.forget(KEY)
    assert desk.placed == [(0, True), (1, True), (2, False), (3, False)]
    assert not desk.admission.is_waiting


def test_forgetting_an_attempt_ends_the_wait_of_its_early_payloads() -> None:
    desk = Desk()
    desk.announce(0)
    desk.admission.forget(KEY)
    assert desk.placed == [(0, False)]


def test_payloads_of_a_connection_that_is_over_take_no_page() -> None:
    desk = Desk()
    desk.admission.expect(KEY)
    for seq in range(3):
        desk.announce(seq)
    desk.announce(9, OTHER)
    desk.is_over = True
    for _, page in desk.posted:
        assert page is not None
        page.release()
    desk.admission.tick(desk.now + 5)
    assert desk.placed == [(0, True), (1, True)]
    assert desk.pool.counts().free == 2


def test_test_pages_need_no_attempt() -> None:
    desk = Desk()
    desk.announce(0, is_proof=True)
    assert desk.placed == [(0, True)]


def test_without_grace_the_unknown_is_discarded_at_once() -> None:
    desk = Desk(grace_s=0.0)
    desk.announce(0)
    assert desk.placed == [(0, False)]
