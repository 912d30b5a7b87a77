"""Health and metrics of this process. Readiness says nothing of workers (R14): without any, requests get 503."""

from services.pd_master.api.http import HttpCall
from services.pd_master.exposition import Exposition
from services.pd_master.metrics import GatewayMetrics

_OK = b'{"message":"Ok"}'
_EXPOSITION = b"text/plain; version=0.0.4; charset=utf-8"


class HealthEndpoint:
    """Handlers of the probes. `main` clears `ready` when the process begins to drain."""

    def __init__(self, metrics: GatewayMetrics, exposition: Exposition | None = None) -> None:
        """`exposition`: the page of all processes, where there are several."""
        self.ready = True
        self._metrics = metrics
        self._exposition = exposition

    async def live(self, call: HttpCall) -> None:
        """The event loop turns."""
        await call.reply(200, _OK)

    async def readiness(self, call: HttpCall) -> None:
        """Takes new requests."""
        if self.ready:
            await call.reply(200, _OK)
        else:
            await call.reply(503, b'{"message":"Draining"}')

    async def metrics(self, call: HttpCall) -> None:
        """Prometheus exposition."""
        page = self._metrics.render() if self._exposition is None else await self._exposition()
        await call.reply(200, page, _EXPOSITION)
