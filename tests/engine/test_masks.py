"""Bits that grammars make in a thread: of each row its own, and told whatever goes wrong."""

from pathlib import Path
from threading import Event

import numpy as np
import pytest

from services.common.request import GrammarKind, GrammarSpec
from services.common.text import Vocabulary
from services.engine.arrays import Ints
from services.engine.grammar_compiler import GrammarCompiler
from services.engine.masks import Masks
from services.engine.matcher import Drawn, Matcher
from tests.engine.tiny import make_worded_model


class Words:
    """A vocabulary with text, and matchers over it."""

    def __init__(self, folder: Path) -> None:
        pieces = Vocabulary.load(folder).visible_pieces
        assert pieces is not None
        self._pieces, self.size, self.end = pieces, len(pieces), len(pieces) - 1
        self._compiler = GrammarCompiler(folder, self.size, (self.end,))

    def matcher(self, regex: str, said: str = "") -> Matcher:
        return Matcher(self._compiler.compile(GrammarSpec(GrammarKind.REGEX, regex)), self.ids(said))

    def ids(self, text: str) -> list[int]:
        """A token a character."""
        return [self._pieces.index(each.encode()) for each in text]

    def block(self, num_rows: int) -> Ints:
        """One that was used before."""
        return np.full((num_rows, (self.size + 31) // 32), 0x5A5A5A5A, np.int32)

    def allowed(self, words: Ints) -> set[int]:
        """By the bits of one row."""
        bits = np.unpackbits(words.view(np.uint8), count=self.size, bitorder="little")
        return set(np.flatnonzero(bits).tolist())


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Words:
    return Words(make_worded_model(tmp_path_factory.mktemp("worded")))


@pytest.mark.parametrize("num_threads", [1, 4])
def test_each_row_gets_what_its_grammar_allows_behind_the_tokens_drawn_last(words: Words, num_threads: int) -> None:
    drawn, before = Drawn(np.array([*words.ids("xa"), words.end])), Drawn(np.array(words.ids("q")))
    new, going, ended, left = (words.matcher(regex) for regex in ("[pq]r", "[ab][cd]", "", "[ab]"))
    going.pending, ended.pending, left.pending = (drawn, 1), (drawn, 2), (before, 0)
    bits = Masks({0: new, 2: going, 3: ended, 4: left}, words.block(5), num_threads).words()
    assert [words.allowed(bits[row]) for row in (0, 2)] == [set(words.ids("pq")), set(words.ids("cd"))]
    assert words.allowed(bits[3]) == set(range(words.size)), "behind its end nothing is ruled out"
    assert words.allowed(bits[4]) == {words.end}, "it left its grammar"
    assert (bits[1] == words.block(1)).all(), "a row without a grammar is not touched"


def test_where_no_token_may_come_the_end_may(words: Words) -> None:
    dead, beside = words.matcher(r"a[^\x00-\U0010ffff]", "a"), words.matcher("a")
    bits = Masks({0: dead, 1: beside}, words.block(2)).words()
    assert [words.allowed(row) for row in bits] == [{words.end}, set(words.ids("a"))]
    assert dead.is_lost
    assert not beside.is_lost


def test_ids_are_waited_for_in_the_thread_and_once(words: Words) -> None:
    come, waits = Event(), []

    def wait() -> None:
        waits.append(come.wait())

    matchers = [words.matcher("[ab][cd]") for _ in range(2)]
    drawn = Drawn(np.array(words.ids("ab")), wait)
    for at, matcher in enumerate(matchers):
        matcher.pending = drawn, at
    done = Event()
    masks = Masks(dict(enumerate(matchers)), words.block(2), done=done.set)
    assert not done.is_set()
    come.set()
    assert [words.allowed(row) for row in masks.words()] == [set(words.ids("cd"))] * 2
    assert len(waits) == 1
    assert done.is_set()


def test_an_error_is_raised_to_who_waits_and_the_rest_goes_on(words: Words) -> None:
    def lost() -> None:
        raise OSError("the device is gone")

    matcher, done = words.matcher("ab"), Event()
    matcher.pending = Drawn(np.array([0]), lost), 0
    masks = Masks({0: matcher}, words.block(1), done=done.set)
    with pytest.raises(OSError, match="gone"):
        masks.words()
    assert done.is_set(), "or a device would stand still for ever"
    assert words.allowed(Masks({0: words.matcher("a")}, words.block(1)).words()[0]) == set(words.ids("a"))
