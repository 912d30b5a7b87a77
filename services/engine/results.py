"""A step's results: token ids appended to their sequences, ends found, one StepDone for all."""

from services.common.ipc import SequenceOutput, StepDone
from services.common.request import FinishReason, TokenLogprob
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
        outputs: list[SequenceOutput] = []
        sequences = [*batch.sequences, *(sample.sequence for sample in batch.first_samples)]
        for i, (sequence, token_id) in enumerate(zip(sequences, ids, strict=True)):
            if sequence.gone:
                state.counters.tokens_past_end += 1
                continue
            job, known = sequence.job, sequence.outputs
            index = len(known)
            known.append(token_id)
            if token_id in job.stop_token_ids or index + 1 >= job.max_outputs or logprobs:
                outputs.append(self._output(sequence, token_id, logprobs.get(i)))
            else:  # the rule, hundreds of times a step
                outputs.append(SequenceOutput(job.job_id, sequence.choice, index, [token_id]))
        done = StepDone(
            step=batch.step,
            outputs=outputs,
            usage=state.usage(),
            step_s=step_s,
            num_decode_rows=batch.num_decode_rows,
            num_prefill_tokens=batch.num_prefill_tokens,
            prefilling=[(chunk.job.job_id, chunk.end) for chunk in batch.chunks],
            prompt_logprobs=scores,
        )
        state.events.insert(at, done)
        state.counters.output_tokens += len(outputs)
        state.counters.evicted_tokens = state.kv.num_evicted
        return ids

    def _output(self, sequence: Sequence, token_id: int, logprob: TokenLogprob | None) -> SequenceOutput:
        """Return what is said of the last token of `sequence`, which ends here if its stop conditions say so."""
        job, index = sequence.job, len(sequence.outputs) - 1
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


def end_at_length(state: EngineState, sequence: Sequence) -> None:
    """End a sequence that cannot have another token, outside of any step."""
    at = len(state.events)
    output = SequenceOutput(sequence.job.job_id, sequence.choice, len(sequence.outputs), [], finish=FinishReason.LENGTH)
    state.end_sequence(sequence, len(sequence.outputs))
    state.events.insert(at, StepDone(0, [output], state.usage(), 0.0, 0, 0))
