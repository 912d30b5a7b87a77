"""Admit: a prompt comes in with slots and rows, or is deferred without a trace (R19)."""

import numpy as np

from services.common.ipc import Admit, Admitted
from services.engine.arrays import Ints
from services.engine.jobs import Job, JobState, Sequence
from services.engine.kv_cache import EXTENT_SLOTS
from services.engine.restores import Restores
from services.engine.state import EngineState


class BadJobError(Exception):
    """A command that this engine can never carry out; the control process should not have sent it."""


def read_ids(packed: bytes, vocab_size: int) -> Ints:
    """Unpack int32 ids; raises BadJobError on one that the embedding does not have."""
    ids = np.frombuffer(packed, "<i4").astype(np.int32)
    if len(ids) and int(ids.view(np.uint32).max()) >= vocab_size:  # a negative one is large, read so
        raise BadJobError(f"token ids reach from {ids.min()} to {ids.max()}; the vocabulary has {vocab_size}")
    return ids


class Admission:
    """Owned by the loop; called between steps."""

    def __init__(self, state: EngineState, restores: Restores, vocab_size: int) -> None:
        self._state = state
        self._restores = restores
        self._vocab_size = vocab_size

    def admit(self, command: Admit) -> None:
        """Answer Admitted, Deferred, or Ended alone for a prompt that can never run here."""
        try:
            job = self._read(command)
        except BadJobError as error:
            self._state.refuse(command.job_id, command.key, str(error))
            if command.resumes is not None:
                for choice in command.choices:
                    self._state.host.drop((command.resumes, choice))
            return
        before = self._state.kv.num_pinned
        if not self._place(job):
            self._state.defer(job.job_id)
            return
        if command.resumes is None or not self._restores.begin(job, command.resumes):
            self._state.begin_prompt(job)
        if command.sampling.grammar is not None:
            self._state.grammars.want(job, command.sampling.grammar)
        self._state.counters.prefix_hit_tokens += job.num_computed
        self._state.counters.prefix_query_tokens += len(job.tokens)
        self._state.events.append(Admitted(job.job_id, job.cached_tokens, self._state.kv.num_pinned - before))

    def _read(self, command: Admit) -> Job:
        prompt = read_ids(command.prompt_ids, self._vocab_size)
        outputs = read_ids(command.output_ids, self._vocab_size)
        context = self._state.rows.width
        job = Job(
            job_id=command.job_id,
            key=command.key,
            arrival=command.arrival,
            tokens=np.concatenate((prompt, outputs)) if len(outputs) else prompt,
            num_prompt_tokens=len(prompt),
            state=JobState.PREFILLING,
            holding=None,
            cached_tokens=0,
            sampling=command.sampling,
            stop=command.stop,
            stop_token_ids=frozenset(command.stop.stop_token_ids),
            hand_over=command.hand_over,
            choices=command.choices,
            max_outputs=min(command.stop.max_new_tokens, context - len(prompt)),
        )
        if len(prompt) == 0 or not command.choices:
            raise BadJobError("it has no prompt or no choices")
        if len(outputs) and len(command.choices) > 1:
            raise BadJobError("output ids were given for several choices")
        if job.max_outputs <= len(outputs):
            raise BadJobError(
                f"{len(prompt)} prompt and {len(outputs)} output tokens leave no room for another within "
                f"max_new_tokens {command.stop.max_new_tokens} and a context of {context}"
            )
        return job

    def _place(self, job: Job) -> bool:
        """Take rows and slots; False, with nothing changed, when either is short."""
        state = self._state
        num_rows = 1 if job.hand_over else len(job.choices)
        if state.rows.num_free < num_rows:
            return False
        spare = 0 if job.hand_over else EXTENT_SLOTS
        # The last token is always computed here: its logits are what the first output is sampled from. Where those of
        # the prompt are asked for, so are all others: what is cached of them is their KV alone.
        match_limit = len(job.tokens) - 1 if job.sampling.num_prompt_logprobs is None else 0
        job.holding = state.kv.acquire(job.tokens, match_limit, spare=spare)
        if job.holding is None:
            return False
        job.cached_tokens = job.num_computed = job.holding.num_shared
        job.row = state.rows.take()
        state.rows.write(job.row, 0, job.holding.slots)
        for choice in job.choices:
            job.sequences[choice] = Sequence(job, choice, job.given_outputs())
        if not job.hand_over:
            for i, sequence in enumerate(job.sequences.values()):
                sequence.row = job.row if i == 0 else state.rows.take()
        state.add(job)
        return True
