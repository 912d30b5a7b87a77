"""How tokens are chosen: `SamplingParams` of `types.proto`."""

from services.common.request import GrammarKind, GrammarSpec, LengthPenalty, PromptPenalty, SamplingParams
from services.common.wire.errors import enum_from_proto
from sluice.v1 import types_pb2

_GRAMMAR_TO_PROTO = {kind: types_pb2.GrammarKind.Value(f"GRAMMAR_KIND_{kind.name}") for kind in GrammarKind}
_GRAMMAR_FROM_PROTO = {int(number): kind for kind, number in _GRAMMAR_TO_PROTO.items()}
_PENALTY_TO_PROTO = {kind: types_pb2.PromptPenalty.Value(f"PROMPT_PENALTY_{kind.name}") for kind in PromptPenalty}
_PENALTY_FROM_PROTO = {int(number): kind for kind, number in _PENALTY_TO_PROTO.items()}
_PENALTY_FROM_PROTO[types_pb2.PROMPT_PENALTY_UNSPECIFIED] = PromptPenalty.REPETITION


def sampling_to_proto(params: SamplingParams) -> types_pb2.SamplingParams:
    """Every field is set, so that the two sides need not agree on defaults."""
    return types_pb2.SamplingParams(
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        repetition_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        seed=params.seed,
        logit_bias=params.logit_bias,
        allowed_token_ids=params.allowed_token_ids,
        num_logprobs=params.num_logprobs,
        grammar=None if params.grammar is None else _grammar_to_proto(params.grammar),
        num_prompt_logprobs=params.num_prompt_logprobs,
        prompt_penalty=_PENALTY_TO_PROTO[params.prompt_penalty],
        length_penalty=_length_to_proto(params.length_penalty),
        bad_sequences=[types_pb2.TokenSequence(ids=ids) for ids in params.bad_sequences],
    )


def sampling_from_proto(proto: types_pb2.SamplingParams) -> SamplingParams:
    """Absent fields take their neutral values; an absent seed is 0 (the gateway draws one first). WireError when a
    grammar has no kind or an enum a number that is not known."""
    return SamplingParams(
        temperature=proto.temperature if proto.HasField("temperature") else 1.0,
        top_k=proto.top_k,
        top_p=proto.top_p if proto.HasField("top_p") else 1.0,
        min_p=proto.min_p,
        repetition_penalty=proto.repetition_penalty if proto.HasField("repetition_penalty") else 1.0,
        presence_penalty=proto.presence_penalty,
        frequency_penalty=proto.frequency_penalty,
        seed=proto.seed,
        logit_bias=dict(proto.logit_bias),
        allowed_token_ids=tuple(proto.allowed_token_ids),
        num_logprobs=proto.num_logprobs if proto.HasField("num_logprobs") else None,
        grammar=_grammar_from_proto(proto.grammar) if proto.HasField("grammar") else None,
        num_prompt_logprobs=proto.num_prompt_logprobs if proto.HasField("num_prompt_logprobs") else None,
        prompt_penalty=enum_from_proto(_PENALTY_FROM_PROTO, proto.prompt_penalty, "sampling.prompt_penalty"),
        length_penalty=_length_from_proto(proto.length_penalty) if proto.HasField("length_penalty") else None,
        bad_sequences=tuple([tuple(one.ids) for one in proto.bad_sequences]),
    )


def _grammar_to_proto(grammar: GrammarSpec) -> types_pb2.Grammar:
    return types_pb2.Grammar(kind=_GRAMMAR_TO_PROTO[grammar.kind], source=grammar.source, field=grammar.field)


def _grammar_from_proto(proto: types_pb2.Grammar) -> GrammarSpec:
    kind = enum_from_proto(_GRAMMAR_FROM_PROTO, proto.kind, "sampling.grammar.kind")
    return GrammarSpec(kind, proto.source, proto.field)


def _length_to_proto(penalty: LengthPenalty | None) -> types_pb2.LengthPenalty | None:
    return None if penalty is None else types_pb2.LengthPenalty(start=penalty.start, factor=penalty.factor)


def _length_from_proto(proto: types_pb2.LengthPenalty) -> LengthPenalty:
    return LengthPenalty(proto.start, proto.factor)
