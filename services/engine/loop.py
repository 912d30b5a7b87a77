"""The engine's loop: commands in, one step launched, the results of the oldest step out.

With the backend's pipeline depth 0 a step is handled in the turn that launched it. With depth 1 the next step is
launched first, so that the device works while the host handles results; what the host learns one step late (a stop
token) makes that step compute one token past the end, which is dropped.

Of several ranks each runs this loop. What a turn begins with comes from rank 0 (`agreement`); between turns a rank only
moves pages and tells notes of it.
"""

import logging
import time
import zlib
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeAlias

import torch

from services.common.ipc import IPC_PROTOCOL, Command, EngineReady, Event, pack_ids
from services.engine.admission import Admission
from services.engine.agreement import RankLostError, Turn
from services.engine.arrivals import Arrivals
from services.engine.batch import Batch
from services.engine.commands import CommandHandler
from services.engine.config import EngineConfig
from services.engine.counters import EngineCounters
from services.engine.grammars import open_grammars
from services.engine.hearing import NoteHandler
from services.engine.host_setup import open_host_cache
from services.engine.kv_cache import KvCache
from services.engine.load import LoadedModel
from services.engine.pushes import Pushes
from services.engine.restores import Restores
from services.engine.results import ResultHandler, end_at_length
from services.engine.room import RoomMaker
from services.engine.runner import StepResult
from services.engine.state import EngineState
from services.engine.step_builder import StepBuilder
from services.engine.transfer.wire import TRANSFER_PROTOCOL
from services.engine.transfer_setup import TransferEnd

log = logging.getLogger(__name__)

Tell: TypeAlias = Callable[[list[Event]], None]
"""Sends events at once."""


class _Launched(NamedTuple):
    batch: Batch
    result: StepResult
    began: float


class Engine:
    """One model on one device. Made by main, or by tests, which call `turn` themselves."""

    def __init__(self, config: EngineConfig, model: LoadedModel, transfer: TransferEnd | None = None) -> None:
        self._model = model
        self._config = config
        grammars = open_grammars(Path(config.model).expanduser(), model.config.vocab_size, model.config.eos_token_ids)
        self._agreement = model.ranks.agreement
        counters, kv = EngineCounters(), KvCache(model.num_slots, prefix_cache=config.prefix_cache)
        host = open_host_cache(config, model, counters)
        self.state = EngineState(model.rows, kv, grammars, host, counters, self._agreement)
        self._restores = Restores(self.state)
        self._builder = StepBuilder(model.rows, config.chunk_tokens, config.push_tail_tokens)
        self._room = RoomMaker(self.state, self._restores)
        self._results = ResultHandler(self.state)
        self._runner = model.runner
        self._transfer = transfer
        self._pushes, self._arrivals = self._open_transfer(transfer)
        admission = Admission(self.state, self._restores, model.config.vocab_size)
        self._commands = CommandHandler(self.state, admission, self._pushes, self._arrivals)
        self._notes = NoteHandler(self.state, self._pushes, self._arrivals)
        depth = config.pipeline_depth
        self._depth = model.runner.backend.pipeline_depth if depth is None else depth
        self._launched: deque[_Launched] = deque()
        self._is_idle = True
        self._drawn = 0
        """Checksum of all ids handled."""
        self.step = 0

    def _open_transfer(self, transfer: TransferEnd | None) -> tuple[Pushes | None, Arrivals | None]:
        backend = self._model.runner.backend
        if transfer is None:
            return None, None
        self.state.pages = transfer.pages
        if transfer.sender is not None:
            pushes = Pushes(self.state, backend, transfer)
            self.state.last_word = pushes.end
            return pushes, None
        arrivals = Arrivals(self.state, self._runner, transfer, self._model.config.vocab_size)
        self.state.on_end.append(arrivals.forget)
        return None, arrivals

    def ready(self) -> EngineReady:
        """What this engine is."""
        model = self._model
        return EngineReady(
            ipc_protocol=IPC_PROTOCOL,
            model_fingerprint=model.fingerprint,
            layout=model.layout,
            transfer_protocol=TRANSFER_PROTOCOL,
            num_slots=model.num_slots,
            max_context_tokens=model.max_context_tokens,
            vocab_size=model.config.vocab_size,
            eos_token_ids=model.config.eos_token_ids,
            chunk_tokens=self._config.chunk_tokens,
            transfer_ports=() if self._transfer is None else self._transfer.ports,
            backend=model.runner.backend.name,
            kv_bytes_per_token=model.kv_bytes_per_token * self._agreement.count,
            load_s=model.load_s,
        )

    @property
    def has_work(self) -> bool:
        """Whether another turn would compute or report something without a command."""
        return self.is_copying or self._must_turn

    @property
    def is_copying(self) -> bool:
        """Whether the device still moves KV from pages to slots, which nothing wakes the loop for."""
        return self._arrivals is not None and self._arrivals.busy

    @property
    def _must_turn(self) -> bool:
        """Whether all ranks together have something to do."""
        can_join = self._arrivals is not None and self._arrivals.can_join
        waiting = can_join or self._restores.busy or self._launched or self.state.prefilling
        return bool(waiting or self.state.rows.remaining.any())

    @property
    def is_empty(self) -> bool:
        """Whether nothing is held for anybody: no job, and no page on its way."""
        return not (self.state.jobs or self.has_work or self.state.usage().pages_in_use)

    @property
    def only_waits(self) -> bool:
        """Whether all that is left to do waits for grammars: the last turn launched nothing."""
        return self.state.grammars.busy and not self._launched and self._is_idle

    @property
    def stopped(self) -> bool:
        """Whether Shutdown came."""
        return self._commands.shutdown

    @torch.inference_mode()
    def turn(self, commands: list[Command], tell: Tell | None = None) -> list[Event]:
        """Rank 0: have all ranks apply commands, launch one step, handle what is due.

        Returns the events to send, in order. Those that come before the launch go to `tell` then: where a step is
        computed as it is launched, an admission would else be heard of, and the prompt's reservation be made, only when
        its first chunk is done. Raises RankLostError when a rank takes no turns any more.
        """
        self._pump()
        if self._agreement.count > 1 and not (commands or self._agreement.has_notes or self._must_turn):
            return []  # nothing that the others would have to know
        self._take(self._agreement.begin(commands, self._drawn), tell)
        return self._said()

    def _said(self) -> list[Event]:
        events, self.state.events = self.state.events, []
        return events

    @torch.inference_mode()
    def follow(self) -> bool:
        """Another rank: take the turns that have begun and move pages. Whether there was a turn.

        Raises RankLostError when rank 0 drew other tokens than this rank.
        """
        turn = self._agreement.next()
        if turn is not None:
            if turn.drawn != self._drawn:
                raise RankLostError("rank 0 drew other tokens than this rank: they compute different things")
            self._take(turn)
            self.state.events.clear()
        self._pump()
        self._agreement.send_notes()
        return turn is not None

    def _take(self, turn: Turn, tell: Tell | None = None) -> None:
        for command in turn.commands:
            self._commands.apply(command)
        for rank, note in turn.notes:
            self._notes.hear(rank, note)
        self._hear_alone()
        self.state.refuse_grammars()
        if self._arrivals is not None:
            self._arrivals.join_complete()
        self._restores.turn()
        if tell is not None and self.state.events:
            tell(self._said())
        batch = self._launch()
        self._is_idle = batch is None
        self._tell_next()
        while self._launched and (batch is None or len(self._launched) > self._depth):
            self._handle(self._launched.popleft())
            self._tell_next()
        if self._pushes is not None:
            self._pushes.pump()
        self._hear_alone()
        self.state.tell_cache_changes()

    def _pump(self) -> None:
        """What a rank does at its own time: move pages, and tell of what has come about."""
        for part in (self._pushes, self._arrivals):
            if part is not None:
                part.pump()
        for done in self.state.grammars.poll():
            self._agreement.tell(done)

    def _hear_alone(self) -> None:
        while notes := self._agreement.alone():
            for note in notes:
                self._notes.hear(0, note)

    def _launch(self) -> Batch | None:
        decode = self._room.decoding_rows()
        self._end_full()
        batch = self._builder.build(self.step, self.state.decode_group(decode), self.state.prefilling)
        if batch is None:
            return None
        self.step += 1
        began = time.monotonic()
        self._launched.append(_Launched(batch, self._runner.launch(batch), began))
        self._advance(batch)
        return batch

    def _advance(self, batch: Batch) -> None:
        """Count as computed what is launched: the next step is built without the results of this one."""
        rows = self.state.rows
        rows.length[batch.decode_rows] += 1
        rows.remaining[batch.decode_rows] -= 1
        for chunk in batch.chunks:
            chunk.job.num_computed = chunk.end
        for job in batch.finished_prompts():
            if self.state.finish_prompt(job) and self._pushes is not None:
                self._pushes.leave_slots()

    def _tell_next(self) -> None:
        """Tell pushes of the step that is the next to end on the device."""
        if self._pushes is not None and self._launched:
            self._pushes.computing(self._launched[0].batch, self._launched[0].result.written)

    def _handle(self, launched: _Launched) -> None:
        if self._pushes is not None:
            self._pushes.pump_until(launched.result.written)
        ids = self._results.handle(launched.batch, launched.result, launched.began)
        if self._agreement.count > 1:
            self._drawn = zlib.crc32(pack_ids(ids), self._drawn)
        if self._pushes is not None:
            for job in launched.batch.finished_prompts():
                self._pushes.computed(job)

    def _end_full(self) -> None:
        full, self._room.full = self._room.full, []
        for sequence in full:
            log.warning("the pool is too small for %s: it ends at its length", sequence.job.key.request_id)
            end_at_length(self.state, sequence)
