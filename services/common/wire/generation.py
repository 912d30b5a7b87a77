"""Requests and deltas: `types.proto` and `GenerationRequest`."""

from collections.abc import Sequence

from services.common.prompt_logprobs import PromptLogprobs
from services.common.request import (
    Delta,
    Finish,
    FinishReason,
    Request,
    StopParams,
    TextParams,
    TokenLogprob,
)
from services.common.wire.errors import WireError, enum_from_proto, require
from services.common.wire.sampling import sampling_from_proto, sampling_to_proto
from sluice.v1 import types_pb2, worker_pb2

_FINISH_TO_PROTO = {
    FinishReason.STOP: types_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: types_pb2.FINISH_REASON_LENGTH,
    FinishReason.ABORT: types_pb2.FINISH_REASON_ABORT,
    FinishReason.ERROR: types_pb2.FINISH_REASON_ERROR,
}
_FINISH_FROM_PROTO = {int(number): reason for reason, number in _FINISH_TO_PROTO.items()}


def stop_to_proto(params: StopParams) -> types_pb2.StopParams:
    """Inverse of `stop_from_proto`."""
    return types_pb2.StopParams(
        max_new_tokens=params.max_new_tokens,
        min_new_tokens=params.min_new_tokens,
        stop_token_ids=params.stop_token_ids,
        stop_strings=params.stop_strings,
        include_stop_string=params.include_stop_string,
        ignore_eos=params.ignore_eos,
        include_eos=params.include_eos,
    )


def stop_from_proto(proto: types_pb2.StopParams, default_max_new_tokens: int | None = None) -> StopParams:
    """Without `max_new_tokens` the default is taken; WireError when there is none either (it is between workers)."""
    if not proto.HasField("max_new_tokens") and default_max_new_tokens is None:
        raise WireError("stop.max_new_tokens is not set", param="stop.max_new_tokens")
    limit = proto.max_new_tokens if proto.HasField("max_new_tokens") else default_max_new_tokens
    assert limit is not None
    return StopParams(
        max_new_tokens=limit,
        min_new_tokens=proto.min_new_tokens,
        stop_token_ids=tuple(proto.stop_token_ids),
        stop_strings=tuple(proto.stop_strings),
        include_stop_string=proto.include_stop_string,
        ignore_eos=proto.ignore_eos,
        include_eos=proto.include_eos,
    )


def text_to_proto(params: TextParams) -> types_pb2.TextParams:
    """Inverse of `text_from_proto`."""
    return types_pb2.TextParams(
        skip_special_tokens=params.skip_special_tokens,
        spaces_between_special_tokens=params.spaces_between_special_tokens,
    )


def text_from_proto(proto: types_pb2.TextParams) -> TextParams:
    """Absent fields are true."""
    return TextParams(
        skip_special_tokens=not proto.HasField("skip_special_tokens") or proto.skip_special_tokens,
        spaces_between_special_tokens=(
            not proto.HasField("spaces_between_special_tokens") or proto.spaces_between_special_tokens
        ),
    )


def request_to_proto(request: Request) -> worker_pb2.GenerationRequest:
    """Inverse of `request_from_proto`."""
    return worker_pb2.GenerationRequest(
        request_id=request.request_id,
        model=request.model,
        prompt_ids=request.prompt_ids,
        sampling=sampling_to_proto(request.sampling),
        stop=stop_to_proto(request.stop),
        text=text_to_proto(request.text),
        num_choices=request.num_choices,
        priority=request.priority,
        client_request_id=request.client_request_id,
        queue_budget_s=request.queue_budget_s,
        deadline_s=request.deadline_s,
        traceparent=request.traceparent,
        caller=request.caller,
    )


def request_from_proto(proto: worker_pb2.GenerationRequest) -> Request:
    """WireError when the id, the prompt or the length limit is missing."""
    require(bool(proto.request_id), "request.request_id")
    require(len(proto.prompt_ids) > 0, "request.prompt_ids")
    return Request(
        request_id=proto.request_id,
        model=proto.model,
        prompt_ids=list(proto.prompt_ids),
        sampling=sampling_from_proto(proto.sampling),
        stop=stop_from_proto(proto.stop),
        text=text_from_proto(proto.text),
        num_choices=proto.num_choices,
        priority=proto.priority,
        client_request_id=proto.client_request_id,
        queue_budget_s=proto.queue_budget_s,
        deadline_s=proto.deadline_s,
        traceparent=proto.traceparent,
        caller=proto.caller,
    )


def logprob_to_proto(one: TokenLogprob) -> types_pb2.TokenLogprob:
    """Inverse of `logprob_from_proto`."""
    top = [types_pb2.TopLogprob(token_id=token_id, logprob=logprob) for token_id, logprob in one.top]
    return types_pb2.TokenLogprob(token_id=one.token_id, logprob=one.logprob, top=top)


def logprob_from_proto(proto: types_pb2.TokenLogprob) -> TokenLogprob:
    """The log-probabilities of one position."""
    return TokenLogprob(proto.token_id, proto.logprob, [(top.token_id, top.logprob) for top in proto.top])


def prompt_logprobs_to_proto(logprobs: PromptLogprobs) -> types_pb2.PromptLogprobs:
    """Inverse of `prompt_logprobs_from_proto`."""
    return types_pb2.PromptLogprobs(
        first=logprobs.first,
        num_top=logprobs.num_top,
        logprobs=logprobs.logprobs,
        ranks=logprobs.ranks,
        top_ids=logprobs.top_ids,
        top_logprobs=logprobs.top_logprobs,
    )


def prompt_logprobs_from_proto(proto: types_pb2.PromptLogprobs) -> PromptLogprobs:
    """Those of consecutive prompt tokens."""
    return PromptLogprobs(proto.first, proto.num_top, proto.logprobs, proto.ranks, proto.top_ids, proto.top_logprobs)


def delta_to_proto(delta: Delta) -> types_pb2.TokenDelta:
    """Inverse of `delta_from_proto`."""
    return types_pb2.TokenDelta(
        choice=delta.choice,
        first_index=delta.first_index,
        token_ids=delta.token_ids,
        text=delta.text,
        text_lengths=delta.text_lengths,
        logprobs=None if delta.logprobs is None else [logprob_to_proto(one) for one in delta.logprobs],
        finish=None if delta.finish is None else _finish_to_proto(delta.finish),
    )


def delta_from_proto(proto: types_pb2.TokenDelta) -> Delta:
    """WireError when the finish has no reason."""
    return Delta(
        choice=proto.choice,
        first_index=proto.first_index,
        token_ids=list(proto.token_ids),
        text=proto.text,
        logprobs=_logprobs_from_proto(proto.logprobs),
        finish=_finish_from_proto(proto.finish) if proto.HasField("finish") else None,
        text_lengths=tuple(proto.text_lengths),
    )


def _logprobs_from_proto(protos: Sequence[types_pb2.TokenLogprob]) -> list[TokenLogprob] | None:
    return [logprob_from_proto(one) for one in protos] if protos else None


def _finish_to_proto(finish: Finish) -> types_pb2.Finish:
    proto = types_pb2.Finish(
        reason=_FINISH_TO_PROTO[finish.reason], num_output_tokens=finish.num_output_tokens, message=finish.message
    )
    if isinstance(finish.stop_reason, str):
        proto.stop_string = finish.stop_reason
    elif finish.stop_reason is not None:
        proto.stop_token_id = finish.stop_reason
    return proto


def _finish_from_proto(proto: types_pb2.Finish) -> Finish:
    which = proto.WhichOneof("stop_reason")
    matched: str | int | None = None
    if which == "stop_string":
        matched = proto.stop_string
    elif which == "stop_token_id":
        matched = proto.stop_token_id
    reason = enum_from_proto(_FINISH_FROM_PROTO, proto.reason, "finish.reason")
    return Finish(reason, proto.num_output_tokens, matched, proto.message)
