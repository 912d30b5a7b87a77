"""What each note does, on every rank alike, between steps."""

from collections import defaultdict

import msgspec

from services.common.ipc import Integrity, Usage
from services.engine.arrivals import Arrivals
from services.engine.notes import (
    Checked,
    GrammarDone,
    KvCame,
    KvFailed,
    Note,
    PagesBack,
    PairLost,
    PairProven,
    PeerGone,
    PushOver,
)
from services.engine.pushes import Pushes
from services.engine.state import EngineState


class NoteHandler:
    """Owned by the loop."""

    def __init__(self, state: EngineState, pushes: Pushes | None, arrivals: Arrivals | None) -> None:
        self._state = state
        self._pushes = pushes
        self._arrivals = arrivals
        self._checked: defaultdict[int, dict[int, Checked]] = defaultdict(dict)
        """By token, then by rank."""

    def hear(self, rank: int, note: Note) -> None:
        """Take what a rank told."""
        match note, self._pushes, self._arrivals:
            case GrammarDone(), _, _:
                self._state.grammars.hear(note, self._state.agreement.count)
            case Checked(), _, _:
                self._hear_checked(rank, note)
            case ((PairProven() | PairLost() | PushOver() | PagesBack()), Pushes() as pushes, _):
                pushes.hear(note)
            case ((KvCame() | KvFailed() | PeerGone()), _, Arrivals() as arrivals):
                arrivals.hear(note)

    def _hear_checked(self, rank: int, note: Checked) -> None:
        """Answer once every rank has."""
        answers = self._checked[note.token]
        answers[rank] = note
        if len(answers) < self._state.agreement.count:
            return
        del self._checked[note.token]
        problems = [
            problem if len(answers) == 1 else f"rank {rank}: {problem}"
            for rank, answer in sorted(answers.items())
            for problem in answer.problems
        ]
        usage = _pages_together([answers[rank].usage for rank in sorted(answers)])
        self._state.say(Integrity(note.token, problems, usage, max(each.num_jobs for each in answers.values())))


def _pages_together(usages: list[Usage]) -> Usage:
    """Slots are the same on all ranks; pages are each rank's own."""
    return msgspec.structs.replace(
        usages[0],
        pages_free=sum(each.pages_free for each in usages),
        pages_in_use=sum(each.pages_in_use for each in usages),
        pages_quarantined=sum(each.pages_quarantined for each in usages),
    )
