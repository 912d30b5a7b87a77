"""What masters are told of a prefix cache: all of it once, then what has changed."""

import random

from services.common.ipc import CacheChanged
from services.common.messages import CacheChanges, WorkerRef
from services.pd_master.prefix_index import PrefixIndex
from services.worker.cache_account import MAX_BLOCKS, CacheJournal, CacheReport


def test_a_master_is_told_all_that_is_held_and_then_only_changes() -> None:
    journal = CacheJournal()
    journal.note(CacheChanged([1, 2], []))
    report = CacheReport(journal)
    assert report.messages() == [CacheChanges(1, 0, [1, 2], [])]
    assert report.messages() == []
    journal.note(CacheChanged([3], [1]))
    assert report.messages() == [CacheChanges(1, 1, [3], [1])]


def test_an_empty_cache_is_an_account_too() -> None:
    assert CacheReport(CacheJournal()).messages() == [CacheChanges(1, 0, [], [])]


def test_what_was_changed_and_changed_back_is_told_as_it_stands() -> None:
    journal = CacheJournal()
    report = CacheReport(journal)
    report.messages()
    journal.note(CacheChanged([1, 2], []))
    journal.note(CacheChanged([], [1]))
    journal.note(CacheChanged([], [2]))
    journal.note(CacheChanged([2], []))
    assert report.messages() == [CacheChanges(1, 1, [2], [1])]


def test_a_master_that_lost_something_is_told_all_in_a_new_generation() -> None:
    journal = CacheJournal()
    report, other = CacheReport(journal), CacheReport(journal)
    assert [report.messages()[0].generation, other.messages()[0].generation] == [1, 2]
    journal.note(CacheChanged([5], []))
    report.restart()
    assert report.messages() == [CacheChanges(3, 0, [5], [])]
    assert other.messages() == [CacheChanges(2, 1, [5], [])]


def test_a_master_too_far_behind_is_told_all_instead_of_the_changes() -> None:
    journal = CacheJournal(max_changes=3)
    report = CacheReport(journal)
    report.messages()
    journal.note(CacheChanged([1, 2, 3], []))
    assert report.messages() == [CacheChanges(1, 1, [1, 2, 3], [])]
    journal.note(CacheChanged([4, 5], [1, 2]))
    (account,) = report.messages()
    assert (account.generation, account.number, sorted(account.stored)) == (2, 0, [3, 4, 5])


def test_a_large_cache_is_told_in_messages_of_bounded_size() -> None:
    journal = CacheJournal()
    journal.note(CacheChanged(list(range(2 * MAX_BLOCKS + 1)), []))
    messages = CacheReport(journal).messages()
    assert [(one.number, len(one.stored)) for one in messages] == [(0, MAX_BLOCKS), (1, MAX_BLOCKS), (2, 1)]


def test_an_index_that_follows_holds_what_the_cache_holds_whatever_is_lost() -> None:
    draw, journal, index, worker = random.Random(3), CacheJournal(max_changes=40), PrefixIndex(), WorkerRef("p", "1")
    report = CacheReport(journal)
    for _ in range(300):
        held = list(journal.held)
        journal.note(CacheChanged([draw.randrange(200) for _ in range(5)], draw.sample(held, min(len(held), 4))))
        if draw.random() < 0.5:
            for message in report.messages():
                if draw.random() < 0.1:
                    continue  # lost
                if not index.follow(worker, message):
                    report.restart()
    report.restart()
    for message in report.messages():
        index.follow(worker, message)
    assert {block for block in range(200) if index.match([block])} == journal.held
