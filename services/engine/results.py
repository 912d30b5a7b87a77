"""A step's results: token ids appended to their sequences, ends found, one StepDone for all.

A sequence whose length ends it ends before its last token is known, while the device still computes: all that gives
back slots and keeps the prefix is done by the time that a client waits for the host alone. Nothing is said of it before
its token, and nothing comes in between.
"""

import time
from itertools import compress
from typing import NamedTuple

import numpy as np

from services.common.ipc import SequenceOutput, StepDone, TokenColumns, pack_ids
from services.common.request import FinishReason, TokenLogprob
from services.engine.arrays import Bools
from services.engine.batch import Batch
from services.engine.jobs import Sequence
from services.engine.runner import StepResult
from services.engine.state import EngineState


class _Expected(NamedTuple):
    """Who of a batch has not ended since it was launched."""

    rows: Bools  # [B]
    first: list[tuple[int, Sequence]]
    """With its sample's index."""
    scored: list[bool]
    """Whether the job of each chunk that is scored goes on, or ends with this step."""


class ResultHandler:
    """Owned by the loop; called once a step, in the order of launches."""

    def __init__(self, state: EngineState) -> None:
        self._state = state
        self._done_at = 0.0

    def handle(self, batch: Batch, result: StepResult, began: float) -> list[int]:
        """Report a step that was launched at `began`; sequences that end are gone when this returns.

        Returns the ids that were drawn, in the order of the batch's samples.
        """
        state = self._state
        at = len(state.events)  # what ends is said after the tokens that ended it
        expected = self._expected(batch)
        self._end_at_last(batch, expected)
        ids = result.token_ids()  # waits for the device: nothing else of a result is there before
        logprobs = result.logprobs()
        scores = [
            (each.scored.job.job_id, each.packed())
            for each, wanted in zip(result.prompt_scores(), expected.scored, strict=True)
            if wanted
        ]
        plain = self._plain(batch, ids, logprobs, expected)
        tokens = _columns(batch, ids, plain)
        others = self._others(batch, ids, plain, logprobs, expected)
        done = StepDone(
            step=batch.step,
            others=others,
            usage=state.usage(),
            step_s=self._took(began),
            num_decode_rows=batch.num_decode_rows,
            num_prefill_tokens=batch.num_prefill_tokens,
            prefilling=[(chunk.job.job_id, chunk.end) for chunk in batch.chunks],
            prompt_logprobs=scores,
            tokens=tokens,
        )
        state.events.insert(at, done)
        state.counters.output_tokens += len(others) + int(np.count_nonzero(plain))
        state.counters.evicted_tokens = state.kv.num_evicted
        return ids

    def _took(self, began: float) -> float:
        """Seconds of a step whose ids have come: those in which the device was still at the step before are not its."""
        now = time.monotonic()
        began, self._done_at = max(began, self._done_at), now
        return now - began

    def _expected(self, batch: Batch) -> _Expected:
        first = [(i, sample.sequence) for i, sample in enumerate(batch.first_samples, batch.num_decode_rows)]
        return _Expected(
            batch.decode.still_there(self._state.rows),
            [(i, sequence) for i, sequence in first if not sequence.gone],
            [not each.job.is_over for each in batch.scored],
        )

    def _end_at_last(self, batch: Batch, expected: _Expected) -> None:
        """End the sequences that have their last token now, whichever it is. Not those whose prompt's KV is handed
        over, which their job holds: that may still be pushed."""
        ending = [batch.sequences[i] for i in np.flatnonzero(batch.ends & expected.rows).tolist()]
        ending += [sequence for _, sequence in expected.first if _is_last(sequence) and not sequence.job.hand_over]
        for sequence in ending:
            self._state.end_sequence(sequence, len(sequence.outputs) + 1, is_drawn=False)
        if ending:
            self._state.kv.settle()

    def _plain(
        self, batch: Batch, ids: list[int], logprobs: dict[int, TokenLogprob], expected: _Expected
    ) -> Bools:  # fmt: skip
        """[B]: the decode rows of which nothing but a token is to be said; it is appended to their outputs."""
        group = batch.decode
        if logprobs:
            return np.zeros(len(group.rows), np.bool_)
        tokens = ids[: len(group.rows)]
        plain = expected.rows & ~batch.ends
        if not group.stop_ids.isdisjoint(tokens):
            plain &= [token not in group.stop_ids for token in tokens]
        if np.count_nonzero(plain) == len(plain):
            for outputs, token in zip(group.outputs, tokens, strict=True):
                outputs.append(token)
        else:
            for i in np.flatnonzero(plain).tolist():
                group.outputs[i].append(tokens[i])
        return plain

    def _others(
        self, batch: Batch, ids: list[int], plain: Bools, logprobs: dict[int, TokenLogprob], expected: _Expected
    ) -> list[SequenceOutput]:  # fmt: skip
        """What is said of the samples that are not plain; first those of decode rows."""
        samples = [(i, batch.sequences[i]) for i in np.flatnonzero(expected.rows & ~plain).tolist()]
        samples += expected.first
        self._state.counters.tokens_past_end += len(ids) - int(np.count_nonzero(plain)) - len(samples)
        others = []
        for i, sequence in samples:
            sequence.outputs.append(ids[i])
            others.append(self._output(sequence, logprobs.get(i)))
        return others

    def _output(self, sequence: Sequence, logprob: TokenLogprob | None) -> SequenceOutput:
        """Return what is said of the last token of `sequence`, which ends here if its stop conditions say so."""
        job, index = sequence.job, len(sequence.outputs) - 1
        token_id = sequence.outputs[-1]
        finish, stop_token_id = None, None
        if token_id in job.stop_token_ids and (index >= job.stop.min_new_tokens or job.grammar is not None):
            finish, stop_token_id = FinishReason.STOP, token_id
        elif index + 1 >= job.max_outputs:
            finish = FinishReason.LENGTH
        if finish is not None:  # if it has not ended before its token came
            self._state.end_sequence(sequence, index + 1)
        return SequenceOutput(
            job.job_id,
            sequence.choice,
            index,
            [token_id],
            logprobs=None if logprob is None else [logprob],
            finish=finish,
            stop_token_id=stop_token_id,
        )


def _is_last(sequence: Sequence) -> bool:
    """Whether its length allows no token behind the one that is being drawn."""
    return len(sequence.outputs) + 1 >= sequence.job.max_outputs


def _columns(batch: Batch, ids: list[int], plain: Bools) -> TokenColumns:
    group, tokens = batch.decode, ids[: len(plain)]
    columns = group.job_ids, group.choices, batch.output_positions
    if np.count_nonzero(plain) < len(plain):
        tokens = list(compress(tokens, plain.tolist()))
        job_ids, choices, indexes = (each[plain] for each in columns)
    else:
        job_ids, choices, indexes = columns
    return TokenColumns(job_ids.tobytes(), choices.tobytes(), indexes.tobytes(), pack_ids(tokens))


def end_at_length(state: EngineState, sequence: Sequence) -> None:
    """End a sequence that cannot have another token, outside of any step."""
    at = len(state.events)
    output = SequenceOutput(sequence.job.job_id, sequence.choice, len(sequence.outputs), [], finish=FinishReason.LENGTH)
    state.end_sequence(sequence, len(sequence.outputs))
    state.events.insert(at, StepDone(0, [output], state.usage(), 0.0, 0, 0))
