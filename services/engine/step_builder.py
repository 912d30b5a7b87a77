"""Which tokens the next step computes: every decoding row, then prompt chunks under the token budget."""

import numpy as np

from services.engine.batch import Batch, Chunk, Sample, Scored
from services.engine.decode_group import DecodeGroup
from services.engine.jobs import Job
from services.engine.rows import Rows


def plan_chunks(prefilling: list[Job], budget: int, tail: int) -> list[tuple[Job, int]]:
    """Share `budget` tokens among prompts in the order of admission; pure.

    The last chunk of a prompt to hand over is cut so that at most `tail` tokens are left for a chunk of their own: when
    compute ends, little is left to push. Not where prompts wait behind it: they would fill the step of those few
    tokens, and its first output would come a whole step later. Of a prompt whose grammar is not compiled yet the last
    token waits.
    """
    plan: list[tuple[Job, int]] = []
    for job in prefilling:
        left = len(job.tokens) - job.num_computed
        n = min(left, budget)
        if job.hand_over and n == left > tail and job is prefilling[-1]:
            n = left - tail
        if n == left and not job.may_sample:
            n -= 1
            if n == 0:
                continue
        if n == 0:
            break
        plan.append((job, n))
        budget -= n
    return plan


def scored_tokens(chunk: Chunk, at: int) -> Scored | None:
    """The prompt tokens whose likelihood a chunk tells: each one's is told by the token before it.

    at: where the chunk begins in the batch.
    """
    job = chunk.job
    num_top, end = job.sampling.num_prompt_logprobs, min(chunk.end, job.num_prompt_tokens - 1)
    if num_top is None or end <= chunk.start:
        return None
    targets = job.tokens[chunk.start + 1 : end + 1]
    return Scored(job, chunk.start + 1, slice(at, at + len(targets)), targets, num_top)


class StepBuilder:
    """Owned by the loop. Reads rows and jobs; changes nothing."""

    def __init__(self, rows: Rows, chunk_tokens: int, push_tail_tokens: int) -> None:
        self._rows = rows
        self._chunk_tokens = chunk_tokens
        self._push_tail_tokens = push_tail_tokens

    def build(self, step: int, decode: DecodeGroup, prefilling: list[Job]) -> Batch | None:
        """Make the batch of `decode`, whose rows have a slot for one more token, and of chunks; None when empty."""
        plan = plan_chunks(prefilling, self._chunk_tokens, self._push_tail_tokens)
        rows, decoding = self._rows, decode.rows
        if len(decoding) == 0 and not plan:
            return None
        context_lens = rows.length[decoding] + 1
        batch = Batch(
            step=step,
            input_ids=decode.input_ids,
            decode=decode,
            context_lens=context_lens,
            output_positions=context_lens - rows.prompt[decoding],
            ends=rows.remaining[decoding] == 1,
            logits_tokens=decode.order,
        )
        if plan:
            self._add_chunks(batch, plan)
        batch.table_writes = rows.take_writes()
        return batch

    def _add_chunks(self, batch: Batch, plan: list[tuple[Job, int]]) -> None:
        ids, ends = [batch.input_ids], []
        at = batch.num_decode_rows
        for job, n in plan:
            assert job.row is not None
            chunk = Chunk(job, job.row, job.num_computed, n)
            batch.chunks.append(chunk)
            ids.append(job.tokens[chunk.start : chunk.end])
            scored = scored_tokens(chunk, at)
            if scored is not None:
                batch.scored.append(scored)
            at += n
            if chunk.end == len(job.tokens):
                ends.append(at - 1)
                row = batch.num_decode_rows + len(ends) - 1
                batch.first_samples += [
                    Sample(sequence, row, job.num_given_outputs) for sequence in job.sequences.values()
                ]
        batch.input_ids = np.concatenate(ids)
        batch.logits_tokens = np.concatenate((batch.logits_tokens, np.array(ends, np.int32)))
