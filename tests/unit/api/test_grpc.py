"""The gRPC front over a real channel."""

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from typing import Any, TypeAlias

import grpc
import grpc.aio
import pytest
import pytest_asyncio
from google.rpc import error_details_pb2  # type: ignore[import-untyped]
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_status import rpc_status  # type: ignore[import-untyped]

from services.common.errors import OverloadedError
from services.pd_master.grpc_gateway import SERVICE, GrpcServer
from sluice.v1 import gateway_pb2, gateway_pb2_grpc, types_pb2
from tests.unit.api.conftest import Api

Stub: TypeAlias = Any
"""The stub's methods are asynchronous on an aio channel, which its generated type does not say."""


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def channel(server: Api) -> AsyncIterator[grpc.aio.Channel]:
    """A channel to a gRPC server on the same gateway."""
    grpc_server = GrpcServer(server.gateway, "127.0.0.1", 0)
    await grpc_server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{grpc_server.port}") as channel:
        yield channel
    await grpc_server.stop(0)


@pytest.fixture
def stub(channel: grpc.aio.Channel) -> Stub:
    return gateway_pb2_grpc.GatewayServiceStub(channel)


async def test_generate_streams_deltas_and_ends_with_usage(api: Api, stub: Stub) -> None:
    ids = api.text.encode("Hé world")
    api.dispatcher.script.output = [ids]
    call = stub.Generate(gateway_pb2.GenerateRequest(model="tiny", text="Hello"))
    messages = [message async for message in call]
    deltas = [delta for message in messages for delta in message.deltas]
    assert "".join(delta.text for delta in deltas) == "Hé world"
    assert [token for delta in deltas for token in delta.token_ids] == ids
    assert deltas[-1].finish.reason == types_pb2.FINISH_REASON_STOP
    assert messages[-1].usage.completion_tokens == len(ids)
    assert messages[-1].usage.prompt_tokens == len(api.text.encode("Hello"))
    assert len({message.request_id for message in messages}) == 1


async def test_chat_applies_the_template(api: Api, stub: Stub) -> None:
    turns = [gateway_pb2.ChatMessage(role="user", content="Hi")]
    async for _ in stub.Chat(gateway_pb2.ChatRequest(messages=turns)):
        pass
    prompt = api.text.decode(api.dispatcher.requests[0].prompt_ids)
    assert prompt == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


async def test_parameters_reach_the_engine(api: Api, stub: Stub) -> None:
    request = gateway_pb2.GenerateRequest(
        token_ids=gateway_pb2.TokenIds(ids=[5, 6]),
        sampling=types_pb2.SamplingParams(
            temperature=1e-7, seed=7, logit_bias={3: 1.5}, num_logprobs=2, num_prompt_logprobs=1
        ),
        stop=types_pb2.StopParams(max_new_tokens=4, stop_strings=["END"]),
        options=gateway_pb2.GenerationOptions(num_choices=2, deadline_s=9, client_request_id="mine"),
    )
    messages = [message async for message in stub.Generate(request)]
    sent = api.dispatcher.requests[0]
    assert sent.prompt_ids == [5, 6]
    assert (sent.sampling.temperature, sent.sampling.seed, sent.sampling.logit_bias) == (0.0, 7, {3: 1.5})
    assert (sent.stop.max_new_tokens, sent.stop.stop_strings) == (4, ("END",))
    assert (sent.num_choices, sent.deadline_s, sent.client_request_id) == (2, 9, "mine")
    assert len(messages[0].deltas[0].logprobs[0].top) == 2
    assert struct.unpack("<f", messages[0].prompt_logprobs.logprobs) == (-1.0,)
    assert not any(message.HasField("prompt_logprobs") for message in messages[1:])


async def test_the_calls_deadline_is_the_requests(api: Api, stub: Stub) -> None:
    async for _ in stub.Generate(gateway_pb2.GenerateRequest(text="Hi"), timeout=500):
        pass
    assert 400 < api.dispatcher.requests[0].deadline_s < 600, "the gateway's own is 600"


@pytest.mark.parametrize("how", ["cancel", "deadline"])
async def test_a_call_that_ends_early_ends_its_generation(api: Api, stub: Stub, how: str) -> None:
    api.dispatcher.script.hang_after = 1
    api.dispatcher.script.output = [api.text.encode("Hello world")]
    await (deadline_in_the_middle if how == "deadline" else cancel_in_the_middle)(stub)
    await asyncio.wait_for(api.dispatcher.generations[-1].closed.wait(), 60)


async def cancel_in_the_middle(stub: Stub) -> None:
    call = stub.Generate(gateway_pb2.GenerateRequest(text="Hi"))
    await call.read()
    call.cancel()


async def deadline_in_the_middle(stub: Stub) -> None:
    """Its first message came, so there is a generation; on a slow machine only within a longer deadline."""
    for deadline_s in (0.3, 3.0, 30.0):
        call = stub.Generate(gateway_pb2.GenerateRequest(text="Hi"), timeout=deadline_s)
        with contextlib.suppress(grpc.aio.AioRpcError):
            await call.read()
            return
    pytest.fail("no message came within 30 s")


def ask(**fields: Any) -> gateway_pb2.GenerateRequest:
    return gateway_pb2.GenerateRequest(text="a", **fields)


BAD = [
    (gateway_pb2.GenerateRequest(), "prompt"),
    (gateway_pb2.GenerateRequest(text=""), "text"),
    (gateway_pb2.GenerateRequest(token_ids=gateway_pb2.TokenIds(ids=[99999999])), "token_ids.ids"),
    (gateway_pb2.GenerateRequest(token_ids=gateway_pb2.TokenIds(ids=[-1])), "token_ids.ids"),
    (gateway_pb2.GenerateRequest(text="word " * 3000), "text"),
    (ask(sampling=types_pb2.SamplingParams(top_p=0)), "sampling.top_p"),
    (ask(sampling=types_pb2.SamplingParams(temperature=-1)), "sampling.temperature"),
    (
        ask(sampling=types_pb2.SamplingParams(bad_sequences=[types_pb2.TokenSequence()])),
        "sampling.bad_sequences[0].ids",
    ),
    (
        ask(sampling=types_pb2.SamplingParams(length_penalty=types_pb2.LengthPenalty(factor=0.5))),
        "sampling.length_penalty.factor",
    ),
    (ask(sampling=types_pb2.SamplingParams(logit_bias={-1: 1})), "sampling.logit_bias"),
    (ask(stop=types_pb2.StopParams(max_new_tokens=0)), "stop.max_new_tokens"),
    (ask(stop=types_pb2.StopParams(max_new_tokens=9999)), "stop.max_new_tokens"),
    (ask(stop=types_pb2.StopParams(stop_strings=[""])), "stop.stop_strings"),
    (ask(options=gateway_pb2.GenerationOptions(num_choices=99)), "options.num_choices"),
]  # fmt: skip


@pytest.mark.parametrize(("request_", "field"), BAD, ids=[f"{field}-{at}" for at, (_, field) in enumerate(BAD)])
async def test_bad_field_is_named_in_the_status_details(api: Api, stub: Stub, request_: object, field: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await stub.Generate(request_).read()
    assert raised.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    bad = error_details_pb2.BadRequest()
    assert any(detail.Unpack(bad) for detail in rpc_status.from_call(raised.value).details)
    assert bad.field_violations[0].field == field
    assert api.dispatcher.requests == []


async def test_overload_says_when_to_come_back(api: Api, stub: Stub) -> None:
    api.dispatcher.script.refuse = OverloadedError("full", retry_after_s=2.5)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await stub.Generate(gateway_pb2.GenerateRequest(text="Hi")).read()
    assert raised.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    retry = error_details_pb2.RetryInfo()
    assert any(detail.Unpack(retry) for detail in rpc_status.from_call(raised.value).details)
    assert retry.retry_delay.ToTimedelta().total_seconds() == 2.5


async def test_unknown_model_is_not_found(api: Api, stub: Stub) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await stub.CountTokens(gateway_pb2.CountTokensRequest(model="other", text="a"))
    assert api.models.served
    assert raised.value.code() == grpc.StatusCode.NOT_FOUND


async def test_count_list_and_info(api: Api, stub: Stub) -> None:
    count = await stub.CountTokens(gateway_pb2.CountTokensRequest(text="Hello world"))
    assert count.num_tokens == len(api.text.encode("Hello world"))
    models = await stub.ListModels(gateway_pb2.ListModelsRequest())
    assert [model.name for model in models.models] == ["tiny"]
    info = await stub.GetServerInfo(gateway_pb2.GetServerInfoRequest())
    assert [worker.worker_id for worker in info.workers] == ["p-0"]


async def test_health_and_reflection_are_on(channel: grpc.aio.Channel) -> None:
    health: Stub = health_pb2_grpc.HealthStub(channel)
    checked = await health.Check(health_pb2.HealthCheckRequest(service=SERVICE))
    assert checked.status == health_pb2.HealthCheckResponse.SERVING
    reflection: Stub = reflection_pb2_grpc.ServerReflectionStub(channel)  # type: ignore[arg-type]
    asked = reflection_pb2.ServerReflectionRequest(list_services="")
    answer = await reflection.ServerReflectionInfo(iter([asked])).read()
    assert SERVICE in {service.name for service in answer.list_services_response.service}
