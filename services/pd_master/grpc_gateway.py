"""`sluice.v1.GatewayService`: the gRPC front, with health and reflection. Its errors pass through `rpc_errors`."""

# ruff: noqa: N802, ARG002
# The methods' names are the proto's, their arguments grpc's.

from collections.abc import AsyncIterator
from importlib import metadata

from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from services.common import rpc
from services.common.certificates import Certificates
from services.common.gateway_messages import GenerationCall, ModelCard, UsageReport
from services.common.wire import gateway as wire
from services.pd_master.gateway import Gateway, now
from services.pd_master.keys import ApiKeys
from services.pd_master.live_request import LiveRequest
from services.pd_master.rpc_errors import Context, ErrorInterceptor
from services.pd_master.rpc_request import build_request, count_tokens
from sluice.v1 import gateway_pb2, gateway_pb2_grpc

SERVICE = "sluice.v1.GatewayService"


class GatewayServicer(gateway_pb2_grpc.GatewayServiceServicer):
    """Methods of the public service; a cancelled call ends its generation."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def Generate(
        self, request: gateway_pb2.GenerateRequest, context: Context
    ) -> AsyncIterator[gateway_pb2.GenerateResponse]:
        """Continue a prompt."""
        arrived = now()
        live = await self._start(wire.generate_from_proto(request), context, arrived)
        try:
            prompt = True
            async for deltas in live:
                yield wire.generate_response(live.request.request_id, deltas, live.prompt_logprobs if prompt else None)
                prompt = False
            yield wire.generate_end(live.request.request_id, _usage(live))
        finally:
            await live.aclose()

    async def Chat(self, request: gateway_pb2.ChatRequest, context: Context) -> AsyncIterator[gateway_pb2.ChatResponse]:
        """Continue a conversation."""
        arrived = now()
        live = await self._start(wire.chat_from_proto(request), context, arrived)
        try:
            prompt = True
            async for deltas in live:
                yield wire.chat_response(live.request.request_id, deltas, live.prompt_logprobs if prompt else None)
                prompt = False
            yield wire.chat_end(live.request.request_id, _usage(live))
        finally:
            await live.aclose()

    async def CountTokens(
        self, request: gateway_pb2.CountTokensRequest, context: Context
    ) -> gateway_pb2.CountTokensResponse:
        """Count a text's or a conversation's tokens."""
        call = wire.count_from_proto(request)
        target = await self._gateway.target(call.model)
        return wire.count_response(await self._gateway.tokenizers.run(count_tokens, call, target))

    async def ListModels(
        self, request: gateway_pb2.ListModelsRequest, context: Context
    ) -> gateway_pb2.ListModelsResponse:
        """The models served now."""
        models = self._gateway.models.models()
        return wire.models_response([ModelCard(one.name, one.max_context_tokens, one.vocab_size) for one in models])

    async def GetServerInfo(
        self, request: gateway_pb2.GetServerInfoRequest, context: Context
    ) -> gateway_pb2.GetServerInfoResponse:
        """What runs."""
        models = self._gateway.models
        return wire.server_info_response(metadata.version("sluice"), models.master_id, models.workers())

    async def _start(self, call: GenerationCall, context: Context, arrived: float) -> LiveRequest:
        target = await self._gateway.target(call.model)
        request = await self._gateway.tokenizers.run(
            build_request, call, target, self._gateway.config, context.time_remaining()
        )
        return await self._gateway.start(request, api="grpc", arrived=arrived)


class GrpcServer:
    """The gRPC server of a pd_master."""

    def __init__(
        self,
        gateway: Gateway,
        host: str,
        port: int,
        keys: ApiKeys | None = None,
        tls: Certificates | None = None,
        *,
        is_shared: bool = False,
    ) -> None:
        """Binds at once; port 0 takes a free one. `keys`: None where everybody may come. `is_shared`: other processes
        listen on the port too. Raises OSError."""
        self._server = rpc.server([ErrorInterceptor(gateway.metrics, keys)], is_shared=is_shared)
        gateway_pb2_grpc.add_GatewayServiceServicer_to_server(GatewayServicer(gateway), self._server)
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self.port = rpc.bind(self._server, address, tls.server_credentials() if tls else None)

    async def start(self) -> None:
        """Accept calls and report SERVING."""
        await self._server.start()
        for name in ("", SERVICE):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    async def stop(self, drain_s: float) -> None:
        """Report NOT_SERVING, refuse new calls, let running ones end within `drain_s`."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(drain_s)


def _usage(live: LiveRequest) -> UsageReport:
    return UsageReport(live.num_prompt_tokens, live.num_output_tokens, live.cached_tokens)
