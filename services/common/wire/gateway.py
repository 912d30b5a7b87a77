"""Messages of the public service: `gateway.proto`."""

from collections.abc import Sequence

from services.common.gateway_messages import (
    CallOptions,
    ChatTurn,
    CountCall,
    GenerationCall,
    ModelCard,
    UsageReport,
    WorkerCard,
)
from services.common.prompt_logprobs import PromptLogprobs
from services.common.request import Delta
from services.common.wire.errors import require
from services.common.wire.generation import (
    delta_to_proto,
    prompt_logprobs_to_proto,
    stop_from_proto,
    text_from_proto,
)
from services.common.wire.sampling import sampling_from_proto
from sluice.v1 import gateway_pb2


def generate_from_proto(proto: gateway_pb2.GenerateRequest) -> GenerationCall:
    """WireError when there is no prompt."""
    which = proto.WhichOneof("prompt")
    require(which is not None, "prompt")
    if which == "token_ids":
        require(len(proto.token_ids.ids) > 0, "token_ids.ids")
        return _call(proto, list(proto.token_ids.ids))
    require(bool(proto.text), "text")
    return _call(proto, proto.text)


def chat_from_proto(proto: gateway_pb2.ChatRequest) -> GenerationCall:
    """WireError when there are no messages."""
    require(len(proto.messages) > 0, "messages")
    return _call(proto, _turns(proto.messages), proto.chat_template_kwargs_json)


def count_from_proto(proto: gateway_pb2.CountTokensRequest) -> CountCall:
    """WireError when there is neither text nor a conversation."""
    which = proto.WhichOneof("input")
    require(which is not None, "input")
    if which == "text":
        return CountCall(proto.model or None, proto.text)
    require(len(proto.chat.messages) > 0, "chat.messages")
    return CountCall(proto.model or None, _turns(proto.chat.messages))


def generate_response(
    request_id: str, deltas: Sequence[Delta], prompt: PromptLogprobs | None
) -> gateway_pb2.GenerateResponse:
    """New output of a prompt; `prompt` goes with the first."""
    return gateway_pb2.GenerateResponse(
        request_id=request_id,
        deltas=[delta_to_proto(delta) for delta in deltas],
        prompt_logprobs=None if prompt is None else prompt_logprobs_to_proto(prompt),
    )


def chat_response(request_id: str, deltas: Sequence[Delta], prompt: PromptLogprobs | None) -> gateway_pb2.ChatResponse:
    """New output of a conversation; `prompt` goes with the first."""
    return gateway_pb2.ChatResponse(
        request_id=request_id,
        deltas=[delta_to_proto(delta) for delta in deltas],
        prompt_logprobs=None if prompt is None else prompt_logprobs_to_proto(prompt),
    )


def generate_end(request_id: str, usage: UsageReport) -> gateway_pb2.GenerateResponse:
    """The last message of Generate."""
    return gateway_pb2.GenerateResponse(request_id=request_id, usage=_usage(usage))


def chat_end(request_id: str, usage: UsageReport) -> gateway_pb2.ChatResponse:
    """The last message of Chat."""
    return gateway_pb2.ChatResponse(request_id=request_id, usage=_usage(usage))


def count_response(num_tokens: int) -> gateway_pb2.CountTokensResponse:
    """Answer of CountTokens."""
    return gateway_pb2.CountTokensResponse(num_tokens=num_tokens)


def models_response(models: Sequence[ModelCard]) -> gateway_pb2.ListModelsResponse:
    """Answer of ListModels."""
    cards = [
        gateway_pb2.Model(name=one.name, max_context_tokens=one.max_context_tokens, vocab_size=one.vocab_size)
        for one in models
    ]
    return gateway_pb2.ListModelsResponse(models=cards)


def server_info_response(
    version: str, master_id: str, workers: Sequence[WorkerCard]
) -> gateway_pb2.GetServerInfoResponse:
    """Answer of GetServerInfo."""
    cards = [
        gateway_pb2.WorkerInfo(
            worker_id=one.worker_id,
            role=one.role,
            model=one.model,
            ready=one.ready,
            draining=one.draining,
            running_requests=one.running_requests,
            queued_requests=one.queued_requests,
            demand_ratio=one.demand_ratio,
        )
        for one in workers
    ]
    return gateway_pb2.GetServerInfoResponse(version=version, master_id=master_id, workers=cards)


def _call(
    proto: gateway_pb2.GenerateRequest | gateway_pb2.ChatRequest,
    given: str | list[int] | list[ChatTurn],
    template_kwargs_json: str = "",
) -> GenerationCall:
    stop = proto.stop
    return GenerationCall(
        model=proto.model or None,
        input=given,
        sampling=sampling_from_proto(proto.sampling),
        seed=proto.sampling.seed if proto.sampling.HasField("seed") else None,
        stop=stop_from_proto(stop, default_max_new_tokens=1),
        max_new_tokens=stop.max_new_tokens if stop.HasField("max_new_tokens") else None,
        text=text_from_proto(proto.text_params),
        options=_options(proto.options),
        template_kwargs_json=template_kwargs_json,
    )


def _options(proto: gateway_pb2.GenerationOptions) -> CallOptions:
    return CallOptions(
        client_request_id=proto.client_request_id,
        num_choices=proto.num_choices or 1,
        priority=proto.priority,
        queue_budget_s=proto.queue_budget_s if proto.HasField("queue_budget_s") else None,
        deadline_s=proto.deadline_s if proto.HasField("deadline_s") else None,
    )


def _turns(protos: Sequence[gateway_pb2.ChatMessage]) -> list[ChatTurn]:
    return [ChatTurn(one.role, one.content, one.name) for one in protos]


def _usage(usage: UsageReport) -> gateway_pb2.Usage:
    return gateway_pb2.Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=usage.cached_tokens,
    )
