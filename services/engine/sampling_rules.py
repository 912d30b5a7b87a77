"""What one sequence's parameters do to its logits before a token is drawn."""

from functools import cache

import torch
from torch import Tensor

from services.common.request import SamplingParams
from services.engine.bad_sequences import BadSequences
from services.engine.jobs import Sequence
from services.engine.matcher import Drawn, Matcher
from services.engine.noise import sequence_key
from services.engine.penalties import TokenPenalties, lengthen
from services.engine.upload import upload


class SequenceRules:
    """Parameters of one sequence made ready for its device; owned by the sampler.

    What depends on the tokens so far lives on the device and is updated as tokens are drawn, so that a step need not
    wait for the host to learn the last one.
    """

    def __init__(self, sequence: Sequence, vocab_size: int, device: torch.device) -> None:
        job = sequence.job
        self.params: SamplingParams = job.sampling
        self.choice = sequence.choice
        self.sequence_key = sequence_key(self.params.seed, self.choice)
        self._min_new_tokens = job.stop.min_new_tokens
        self._stop_ids = _ids(job.stop.stop_token_ids, device)
        self._allowed = _ids(self.params.allowed_token_ids, device)
        self._bias_ids = _ids(tuple(self.params.logit_bias), device)
        self._bias = _nothing(device)
        if self.params.logit_bias:
            self._bias = upload(torch.tensor(list(self.params.logit_bias.values()), dtype=torch.float32), device)
        self._penalties: TokenPenalties | None = None
        if TokenPenalties.asked_for(self.params):
            prompt = torch.from_numpy(job.tokens[: job.num_prompt_tokens])
            self._penalties = TokenPenalties(self.params, prompt, _ids(tuple(sequence.outputs), device), vocab_size)
        bad = self.params.bad_sequences
        self._bad = BadSequences(bad, sequence.outputs, device) if bad else None
        self.matcher = None if job.grammar is None else Matcher(job.grammar.compiled, sequence.outputs)
        self.may_edit = self.params.length_penalty is not None or self.edits(0)
        """Nothing else begins to be asked for later: what masks stops only ends."""
        self.always_plain = not self.may_edit and self.is_plain(0)

    def is_plain(self, position: int) -> bool:
        """Whether the token at this output position is the argmax of the raw logits and nothing else is asked for."""
        more = self.params.temperature != 0 or self.params.num_logprobs is not None or self.matcher is not None
        return not more and not self.edits(position)

    def edits(self, position: int) -> bool:
        """Whether `edit` would change anything."""
        asked = self._penalties or self._bad
        masks = len(self._bias_ids) or len(self._allowed) or self._masks_stops(position)
        return bool(asked or masks or self._lengthens(position))

    def edit(self, logits: Tensor, position: int) -> None:
        """Apply penalties, bias and masks to logits [vocab_size], float32, in place. A grammar's
        mask is put on afterwards, with those of other rows."""
        if self._penalties is not None:
            self._penalties.apply(logits)
        if len(self._bias_ids):
            logits[self._bias_ids] += self._bias
        if self.params.length_penalty is not None and self._lengthens(position):
            lengthen(logits, self.params.length_penalty, self._stop_ids, position)
        if len(self._allowed):
            allowed = logits[self._allowed]
            logits.fill_(-torch.inf)
            logits[self._allowed] = allowed
        if self._bad is not None:
            self._bad.rule_out(logits)
        if self._masks_stops(position):
            logits[self._stop_ids] = -torch.inf

    def drawn(self, ids: Tensor, at: int) -> None:
        """Count the token that was drawn into `ids[at]`. Of a matcher, its `pending` has to be set beside."""
        if self._penalties is not None or self._bad is not None:
            token_id = ids[at : at + 1].long()
            for part in (self._penalties, self._bad):
                if part is not None:
                    part.drawn(token_id)

    def _masks_stops(self, position: int) -> bool:
        """Where there is a grammar, it alone says when the end may come."""
        return self.matcher is None and position < self._min_new_tokens and len(self._stop_ids) > 0

    def _lengthens(self, position: int) -> bool:
        penalty = self.params.length_penalty
        return penalty is not None and position > penalty.start and len(self._stop_ids) > 0


def rules_of(sequence: Sequence, vocab_size: int, device: torch.device) -> SequenceRules:
    """The sequence's own rules, made when they are first asked for."""
    rules = sequence.sampler_state
    if not isinstance(rules, SequenceRules):
        rules = sequence.sampler_state = SequenceRules(sequence, vocab_size, device)
    return rules


def note_drawn(rules: list[tuple[SequenceRules, int]], ids: Tensor) -> None:
    """Tell each of `rules` that its token was drawn into its place in `ids`, [n] on the CPU."""
    host = Drawn(ids.numpy())
    for each, at in rules:
        each.drawn(ids, at)
        if each.matcher is not None:
            each.matcher.pending = host, at


@cache
def _nothing(device: torch.device) -> Tensor:
    """What most sequences ask for; making it anew for each would take longer than all else about its rules."""
    return torch.empty(0, dtype=torch.int64, device=device)


def _ids(ids: tuple[int, ...], device: torch.device) -> Tensor:
    return _nothing(device) if not ids else upload(torch.tensor(ids, dtype=torch.int64), device)
