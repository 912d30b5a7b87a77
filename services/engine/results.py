"""A step's results: token ids appended to their sequences, ends found, one StepDone for all."""

from itertools import compress

import numpy as np

from services.common.ipc import SequenceOutput, StepDone, TokenColumns, pack_ids
from services.common.request import FinishReason, TokenLogprob
from services.engine.arrays import Bools
from services.engine.batch import Batch
from services.engine.jobs import Sequence
from services.engine.runner import StepResult
from services.engine.state import EngineState


class ResultHandler:
    """Owned by the loop; called once a step, in the order of launches."""

    def __init__(self, state: EngineState) -> None:
        self._state = state

    def handle(self, batch: Batch, result: StepResult, step_s: float) -> list[int]:
        """Report a step; sequences that end are gone when this returns. `step_s` is what the step took.

        Returns the ids that were drawn, in the order of the batch's samples.
        """
        state = self._state
        at = len(state.events)  # what ends is said after the tokens that ended it
        ids = result.token_ids()  # waits for the device: nothing else of a result is there before
        logprobs = result.logprobs()
        # First: a job that ends with its first token is over once that has been handled.
        scores = [
            (each.scored.job.job_id, each.packed()) for each in result.prompt_scores() if not each.scored.job.is_over
        ]
        plain = self._plain(batch, ids, logprobs)
        tokens = _columns(batch, ids, plain)
        others = self._others(batch, ids, plain, logprobs)
        done = StepDone(
            step=batch.step,
            others=others,
            usage=state.usage(),
            step_s=step_s,
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

    def _plain(self, batch: Batch, ids: list[int], logprobs: dict[int, TokenLogprob]) -> Bools:
        """[B]: the decode rows of which nothing but a token is to be said; it is appended to their outputs."""
        group = batch.decode
        if logprobs:
            return np.zeros(len(group.rows), np.bool_)
        tokens = ids[: len(group.rows)]
        plain = group.still_there(self._state.rows) & ~batch.ends
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
        self, batch: Batch, ids: list[int], plain: Bools, logprobs: dict[int, TokenLogprob]
    ) -> list[SequenceOutput]:  # fmt: skip
        """What is said of the samples that are not plain; first those of decode rows."""
        samples = [(i, batch.sequences[i]) for i in np.flatnonzero(~plain).tolist()]
        samples += [(len(plain) + i, sample.sequence) for i, sample in enumerate(batch.first_samples)]
        others = []
        for i, sequence in samples:
            if sequence.gone:
                self._state.counters.tokens_past_end += 1
            else:
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
        if finish is not None:
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
