"""Clients of one pd_master: each sends a case and reads its answer, or goes away in the middle."""

import asyncio
import contextlib
import json
import struct
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import httpx

from sluice.v1 import gateway_pb2, gateway_pb2_grpc, types_pb2
from tests.faults.chaos.answers import TRANSPORT, Answer, Usage
from tests.faults.chaos.cases import Case
from tests.faults.chaos.events import read_event, read_whole

TIMEOUT_S = 150.0
"""Nothing takes longer: requests end by the masters' deadline, which is shorter."""
_FINISH = {number: name.removeprefix("FINISH_REASON_").lower() for name, number in types_pb2.FinishReason.items()}


class GoneError(Exception):
    """This client has heard enough."""


class Clients:
    """All clients of one master; used as a context."""

    def __init__(self, http_port: int, grpc_port: int) -> None:
        self._http = httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{http_port}",
            timeout=TIMEOUT_S,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=4),
        )
        self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{grpc_port}")
        self._stub: Any = gateway_pb2_grpc.GatewayServiceStub(self._channel)

    async def close(self) -> None:
        """Close connections."""
        await self._http.aclose()
        await self._channel.close()

    async def ask(self, case: Case) -> Answer:
        """What came of it. Raises TimeoutError where nothing does, AssertionError for an answer that cannot be."""
        answer = Answer()
        async with asyncio.timeout(TIMEOUT_S):
            with contextlib.suppress(GoneError):
                if case.api == "rpc":
                    await self._rpc(case, answer)
                elif case.is_stream:
                    await self._stream(case, answer)
                else:
                    await self._whole(case, answer)
        return answer

    async def _whole(self, case: Case, answer: Answer) -> None:
        patience_s = None if case.hang_up_after is None else case.hang_up_after / 100
        try:
            reply = await asyncio.wait_for(self._http.post(case.api, json=case.body), patience_s)
        except TimeoutError:
            raise GoneError from None
        except httpx.TransportError as error:
            answer.status, answer.error = TRANSPORT, repr(error)
            return
        answer.status = reply.status_code
        if reply.status_code == 200:
            read_whole(case.api, answer, reply.json())
        else:
            answer.error = reply.text

    async def _stream(self, case: Case, answer: Answer) -> None:
        try:
            async with self._http.stream("POST", case.api, json=case.body) as reply:
                answer.status = reply.status_code
                if reply.status_code != 200:
                    answer.error = (await reply.aread()).decode()
                    return
                async for data in _counted(_data(reply), case.hang_up_after):
                    read_event(case.api, answer, data)
        except httpx.TransportError as error:
            answer.status, answer.error = TRANSPORT, repr(error)

    async def _rpc(self, case: Case, answer: Answer) -> None:
        call = self._stub.Generate(_generate_request(case), timeout=TIMEOUT_S)
        try:
            async for message in _counted(call, case.hang_up_after):
                _take_message(answer, message)
            answer.is_whole = True
        except grpc.aio.AioRpcError as error:
            status = _HTTP_OF.get(error.code(), 500)
            if error.code() is grpc.StatusCode.UNAVAILABLE and "ready for model" not in str(error.details()):
                status = TRANSPORT
            answer.status, answer.error = status, f"{error.code().name}: {error.details()}"
        finally:
            call.cancel()


_HTTP_OF = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}


async def _counted(events: AsyncIterator[Any], most: int | None) -> AsyncIterator[Any]:
    count = 0
    async for event in events:
        yield event
        count += 1
        if most is not None and count > most:
            raise GoneError


async def _data(reply: httpx.Response) -> AsyncIterator[str]:
    async for line in reply.aiter_lines():
        if line.startswith("data:"):
            yield line.removeprefix("data:").lstrip(" ")


def _generate_request(case: Case) -> gateway_pb2.GenerateRequest:
    return gateway_pb2.GenerateRequest(
        text=case.body["text"],
        sampling=types_pb2.SamplingParams(**case.body["sampling"]),
        stop=types_pb2.StopParams(**case.body["stop"]),
        options=gateway_pb2.GenerationOptions(**case.body["options"]),
    )


def _take_message(answer: Answer, message: gateway_pb2.GenerateResponse) -> None:
    if message.HasField("prompt_logprobs"):
        assert not answer.choices, "the prompt's log-probabilities come first"
        packed = message.prompt_logprobs.logprobs
        answer.prompt_logprobs = list(struct.unpack(f"<{len(packed) // 4}f", packed))
    for delta in message.deltas:
        choice = answer.choice(delta.choice)
        assert delta.first_index == len(choice.ids), f"index {delta.first_index} behind {len(choice.ids)} tokens"
        assert len(delta.text_lengths) == len(delta.token_ids)
        choice.ids += delta.token_ids
        choice.text += delta.text
        choice.logprobs += [one.logprob for one in delta.logprobs]
        if delta.HasField("finish"):
            assert delta.finish.num_output_tokens == len(choice.ids)
            choice.end(_FINISH[delta.finish.reason], delta.finish.stop_string or None)
    if message.HasField("usage"):
        answer.usage = Usage(message.usage.prompt_tokens, message.usage.completion_tokens)


def shown(case: Case) -> str:
    """A case for who looks into a failure."""
    return f"#{case.number} {case.api} {json.dumps(case.body, ensure_ascii=False)} hang_up={case.hang_up_after}"
