"""The one place where errors of a worker's RPCs become gRPC statuses; all are counted, unexpected ones logged whole."""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import grpc
import grpc.aio

from services.common.errors import SluiceError
from services.common.metrics import SessionMetrics
from services.worker.session_errors import LeavingError

log = logging.getLogger(__name__)
Behaviour = Callable[[Any, grpc.aio.ServicerContext[Any, Any]], AsyncGenerator[Any]]


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Wraps the streaming RPCs of this project's services; health and reflection answer for themselves."""

    def __init__(self, metrics: SessionMetrics) -> None:
        self._metrics = metrics

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:  # noqa: ANN401 - a grpc.RpcMethodHandler
        """Called by gRPC for every RPC that begins."""
        handler = await continuation(handler_call_details)
        method = str(handler_call_details.method)
        if handler is None or not method.startswith("/sluice.") or not handler.response_streaming:
            return handler
        if handler.request_streaming:
            make, behaviour = grpc.stream_stream_rpc_method_handler, handler.stream_stream
        else:
            make, behaviour = grpc.unary_stream_rpc_method_handler, handler.unary_stream
        return make(self._guard(behaviour, method), handler.request_deserializer, handler.response_serializer)

    def _guard(self, behaviour: Behaviour, method: str) -> Behaviour:
        async def guarded(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncGenerator[Any]:  # noqa: ANN401
            try:
                async with aclosing(behaviour(request, context)) as responses:
                    async for response in responses:
                        yield response
            except SluiceError as error:
                self._metrics.errors.labels(method, error.code).inc()
                is_told = isinstance(error, LeavingError)  # by whose session it was
                level = logging.DEBUG if is_told else logging.INFO
                log.log(level, "%s ends: %s: %s", method, error.code, error.message)
                await context.abort(grpc.StatusCode[error.grpc_status], error.message)
            except Exception:
                self._metrics.errors.labels(method, "internal_error").inc()
                log.exception("%s failed", method)
                await context.abort(grpc.StatusCode.INTERNAL, "internal error; the worker's log has it")

        return guarded
