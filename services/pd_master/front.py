"""The client side of a pd_master as a whole: HTTP and gRPC on one gateway, from start to drained.

States: bound -> serving -> draining -> stopped. The ports are taken when it is made; `serve` accepts until it is told
to stop, then readiness fails, nothing new is accepted and running streams go on. What still runs at the end of the
drain time gets an error as its last event.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

from services.common.config import GatewayConfig
from services.common.errors import ShuttingDownError
from services.common.options import ConfigError, reason_of
from services.pd_master.api.health import HealthEndpoint
from services.pd_master.api.routes import build_app
from services.pd_master.backend import Dispatcher, Models, ServedModel, StageListener
from services.pd_master.exposition import Exposition
from services.pd_master.gateway import Gateway
from services.pd_master.grpc_gateway import GrpcServer
from services.pd_master.http_server import Address, HttpServer
from services.pd_master.keys import ApiKeys
from services.pd_master.metrics import GatewayMetrics
from services.pd_master.tls import read_tls
from services.pd_master.tokenizer import TokenizerService

log = logging.getLogger(__name__)

_LAST_WRITES_S = 2.0
"""For the error events of what was ended at the drain's deadline."""


@contextlib.contextmanager
def _port_of(flag: str) -> Iterator[None]:
    """A port that was taken between the look at it and now."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{flag}: {reason_of(error)}") from error


class Front:
    """Made once by `main` on the event loop."""

    def __init__(
        self,
        config: GatewayConfig,
        models: Models,
        dispatcher: Dispatcher,
        metrics: GatewayMetrics,
        exposition: Exposition | None = None,
    ) -> None:
        """Takes both ports. `exposition`: what /metrics shows; without, the metrics alone. Raises ConfigError when a
        port is in use, and when keys or certificates cannot be read."""
        self._config = config
        self._tokenizers = TokenizerService()
        keys = ApiKeys.load(Path(config.api_keys_file)) if config.api_keys_file else None
        self._gateway = Gateway(
            config, models, dispatcher, self._tokenizers, metrics, keys.divided(config.processes) if keys else None
        )
        self._health = HealthEndpoint(metrics, exposition)
        tls = read_tls(config)
        is_shared = config.processes > 1
        with _port_of("--http-port"):
            self._http = HttpServer(
                build_app(self._gateway, self._health, keys),
                Address(config.host, config.http_port, is_shared),
                drain_s=config.drain_s + _LAST_WRITES_S,
                stall_s=config.client_stall_s,
                tls=tls,
            )
        with _port_of("--grpc-port"):
            self._grpc = GrpcServer(self._gateway, config.host, config.grpc_port, keys, tls, is_shared=is_shared)

    @property
    def stages(self) -> StageListener:
        """Who wants to hear of requests' stages."""
        return self._gateway

    @property
    def http_port(self) -> int:
        """Where HTTP is served, or was until the front stopped."""
        return self._http.port

    @property
    def grpc_port(self) -> int:
        """Where gRPC is served."""
        return self._grpc.port

    def prepare(self, model: ServedModel) -> None:
        """Load a model's tokenizer and templates before its first request."""
        self._tokenizers.preload(model.tokenizer_dir)

    async def serve(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set and the drain is over. Raises what makes a server end before that."""
        async with asyncio.TaskGroup() as servers:
            servers.create_task(self._http.serve(), name="http")
            traces = servers.create_task(self._gateway.tracer.run(), name="traces")
            await self._grpc.start()
            await self._http.started()
            log.info("serving HTTP on port %d and gRPC on port %d", self.http_port, self.grpc_port)
            await stop.wait()
            await self._drain()
            traces.cancel()
        self._tokenizers.close()

    async def _drain(self) -> None:
        log.info("draining %d requests for up to %g s", self._gateway.num_active, self._config.drain_s)
        self._health.ready = False
        self._http.stop()
        grpc_stopped = asyncio.create_task(self._grpc.stop(self._config.drain_s + _LAST_WRITES_S))
        try:
            async with asyncio.timeout(self._config.drain_s):
                await self._gateway.idle()
        except TimeoutError:
            log.warning("%d requests outlast the drain", self._gateway.num_active)
            await self._gateway.end_all(ShuttingDownError("the server is shutting down"))
        await grpc_stopped
