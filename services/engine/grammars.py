"""From a grammar's source to something that masks tokens, off the engine's loop.

    want ──> compiling in a thread ──> ready: kept for whoever wants the same source next, least recently wanted dropped
                  └─ too long, or the source is wrong ──> failed: `failed()` names its jobs once

Every rank of an engine compiles for itself, and tells a note when it has (`poll`, `hear`): a grammar is ready when all
ranks have told so, and has failed when one has, on all of them in the same turn.

A job whose grammar is not ready computes its prompt but for the last token, whose logits the grammar has to see; other
jobs do not notice. Compiling releases the interpreter's lock, so the loop goes on.
"""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from services.common.request import GrammarSpec
from services.engine.jobs import Job
from services.engine.notes import GrammarDone
from services.engine.ticket import Compiler, GrammarError, Ticket

log = logging.getLogger(__name__)

_MAX_KEPT = 256
_MAX_KEPT_BYTES = 256 << 20
_THREADS = 2


@dataclass(slots=True)
class _Kept:
    """Compiled and compiling grammars, by source."""

    tickets: "OrderedDict[GrammarSpec, Ticket]" = field(default_factory=OrderedDict)

    def trim(self) -> None:
        """Drop the least recently wanted; jobs that have them keep them."""
        num_bytes = sum(ticket.compiled.num_bytes for ticket in self.tickets.values() if ticket.is_ready)
        while len(self.tickets) > 1 and (len(self.tickets) > _MAX_KEPT or num_bytes > _MAX_KEPT_BYTES):
            _, dropped = self.tickets.popitem(last=False)
            num_bytes -= dropped.compiled.num_bytes if dropped.is_ready else 0


class Grammars:
    """Owned by the engine's loop. `load` makes the compiler, in a thread, when the first grammar is wanted."""

    def __init__(self, load: Callable[[], Compiler], clock: Callable[[], float] = time.monotonic) -> None:
        self._load = load
        self._clock = clock
        self._num_tickets = 0
        self._compiling: dict[int, Ticket] = {}
        """By number: of these this rank has not told yet."""
        self._agreeing: dict[int, Ticket] = {}
        """By number: of these not all ranks have told yet."""
        self._compiler: Future[Compiler] | None = None
        self._threads = ThreadPoolExecutor(_THREADS, "grammar")
        self._kept = _Kept()
        self._waiting: list[Job] = []

    @property
    def busy(self) -> bool:
        """Whether a job waits for its grammar."""
        return bool(self._waiting)

    def warm(self) -> None:
        """Make the compiler before the first request; returns at once."""
        if self._compiler is None:
            self._compiler = self._threads.submit(self._load)

    def want(self, job: Job, spec: GrammarSpec) -> None:
        """Give the job its grammar, ready or not."""
        key = GrammarSpec(spec.kind, spec.source)
        ticket = self._kept.tickets.get(key)
        if ticket is None:
            ticket = self._kept.tickets[key] = self._begin(key)
            self._kept.trim()
        self._kept.tickets.move_to_end(key)
        job.grammar = ticket
        if not ticket.is_ready and job not in self._waiting:
            self._waiting.append(job)

    def poll(self) -> list[GrammarDone]:
        """What has come out here since the last call."""
        if not self._compiling:
            return []
        now = self._clock()
        # Whether it is done is asked first: what comes out in between is told next time.
        found = [(ticket.work.done(), ticket.problem(now), number) for number, ticket in self._compiling.items()]
        done = [GrammarDone(number, problem) for is_done, problem, number in found if is_done or problem is not None]
        for each in done:
            del self._compiling[each.number]
        return done

    def hear(self, note: GrammarDone, num_ranks: int) -> None:
        """What a rank told; the first failure stands."""
        ticket = self._agreeing.get(note.number)
        if ticket is None:
            return
        ticket.error = note.problem
        ticket.num_ranks_ready += 1
        ticket.is_ready = ticket.error is None and ticket.num_ranks_ready == num_ranks
        if ticket.is_ready or ticket.error is not None:
            del self._agreeing[note.number]

    def failed(self) -> list[tuple[Job, str]]:
        """Jobs whose grammar will never be ready, each once, and why."""
        if not self._waiting:
            return []
        problems = [(job, job.grammar.error) for job in self._waiting if job.grammar is not None]
        self._waiting = [job for job, problem in problems if problem is None and not job.may_sample and not job.is_over]
        return [(job, problem) for job, problem in problems if problem is not None and not job.is_over]

    def _begin(self, spec: GrammarSpec) -> Ticket:
        self._num_tickets += 1
        ticket = Ticket(self._num_tickets, Future())
        self._compiling[ticket.number] = self._agreeing[ticket.number] = ticket
        self.warm()
        assert self._compiler is not None
        compiler = self._compiler

        def run() -> None:
            try:
                made = compiler.result()
                ticket.started_at = self._clock()
                ticket.work.set_result(made.compile(spec))
            except GrammarError as error:
                ticket.work.set_exception(error)
            except Exception as error:
                log.exception("compiling a grammar failed")
                ticket.work.set_exception(error)

        self._threads.submit(run)
        return ticket


def open_grammars(model: Path, vocab_size: int, eos_token_ids: tuple[int, ...]) -> Grammars:
    """For a model folder with a tokenizer.json, or a file in one."""

    def load() -> Compiler:
        # It takes seconds to import, and most engines never need it.
        from services.engine.grammar_compiler import GrammarCompiler

        return GrammarCompiler(model if model.is_dir() else model.parent, vocab_size, eos_token_ids)

    return Grammars(load)
