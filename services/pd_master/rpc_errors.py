"""What stands around every method of the gRPC front: keys are checked, and errors become statuses here alone."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import grpc
import grpc.aio
from grpc_status import rpc_status  # type: ignore[import-untyped]

from services.common.errors import SluiceError
from services.common.wire.status import status_of
from services.pd_master.keys import ApiKeys
from services.pd_master.metrics import GatewayMetrics
from services.pd_master.tracing import note_parent

log = logging.getLogger(__name__)

if TYPE_CHECKING:  # generic in the stubs alone
    Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
    Handler: TypeAlias = grpc.RpcMethodHandler[Any, Any]
else:
    Context = grpc.aio.ServicerContext
    Handler = grpc.RpcMethodHandler


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Turns SluiceError into its status with details, anything else into INTERNAL, and counts both."""

    def __init__(self, metrics: GatewayMetrics, keys: ApiKeys | None) -> None:
        self._metrics = metrics
        self._keys = keys

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Wrap the method's handler; only this service's own methods, which answer one request each."""
        handler = await continuation(handler_call_details)
        path = str(handler_call_details.method)
        if handler is None or not path.startswith("/sluice."):
            return handler
        method = path.rpartition("/")[2]
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(
                self._stream(method, handler.unary_stream), handler.request_deserializer, handler.response_serializer
            )
        return grpc.unary_unary_rpc_method_handler(
            self._unary(method, handler.unary_unary), handler.request_deserializer, handler.response_serializer
        )

    def _unary(self, method: str, behavior: Any) -> Any:  # noqa: ANN401 - grpc's own handler types are not exact
        async def call(request: object, context: Context) -> object:
            try:
                self._admit(context)
                answer: object = await behavior(request, context)
            except Exception as error:  # noqa: BLE001 - here all errors of methods end
                await self._fail(method, context, error)
            self._metrics.rpc.labels(method, "OK").inc()
            return answer

        return call

    def _stream(self, method: str, behavior: Any) -> Any:  # noqa: ANN401
        async def call(request: object, context: Context) -> AsyncIterator[object]:
            try:
                self._admit(context)
                async for answer in behavior(request, context):
                    yield answer
            except Exception as error:  # noqa: BLE001 - here all errors of methods end
                await self._fail(method, context, error)
            self._metrics.rpc.labels(method, "OK").inc()

        return call

    def _admit(self, context: Context) -> None:
        sent = {key: str(value) for key, value in context.invocation_metadata() or ()}
        note_parent(sent.get("traceparent", ""))
        if self._keys is not None:
            self._keys.admit(sent.get("authorization", ""), sent.get("x-api-key", ""))

    async def _fail(self, method: str, context: Context, error: Exception) -> NoReturn:
        if isinstance(error, grpc.aio.AbortError):
            raise error
        if not isinstance(error, SluiceError):
            log.error("%s failed", method, exc_info=error)
            error = SluiceError("an internal error occurred")
        self._metrics.rpc.labels(method, error.grpc_status).inc()
        await context.abort_with_status(rpc_status.to_status(status_of(error)))
        raise AssertionError("abort_with_status raises")
