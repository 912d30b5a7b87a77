"""Prometheus series of the gateway: a request's life as its user sees it. Each series is fed."""

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

from services.common.metrics import Series
from services.pd_master.token_meter import TokenMeter


class GatewayMetrics:
    """All series of one pd_master process. Fed on its event loop by the HTTP and gRPC fronts."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        series = Series(self.registry)
        self.http = series.counter("gateway_http_requests_total", "Answers by path and status", ("path", "status"))
        self.rpc = series.counter("gateway_rpcs_total", "gRPC answers by method and status", ("method", "status"))
        self.requests = series.counter("gateway_requests_total", "Generations by API and outcome", ("api", "outcome"))
        self.active = series.gauge("gateway_active_requests", "Generations in work")
        self.prompt_tokens = series.counter("gateway_prompt_tokens_total", "Prompt tokens of accepted requests")
        self.cached_tokens = series.counter("gateway_cached_tokens_total", "Prompt tokens found in a prefix cache")
        self.prepare = series.seconds("gateway_prepare_seconds", "From a request's arrival to its dispatch")
        self.first_token = series.seconds("gateway_time_to_first_token_seconds", "From arrival to the first token")
        self.tokens = TokenMeter(self.registry)
        self.end_to_end = series.seconds("gateway_request_seconds", "From a request's arrival to its end")
        self.stage = series.seconds("gateway_stage_seconds", "Time spent queued, in prefill, in transfer", ("stage",))

    def count_http(self, path: str, status: int) -> None:
        """One HTTP answer; `path` is a known route or `other`."""
        self.http.labels(path, str(status)).inc()

    def render(self) -> bytes:
        """The exposition text."""
        return generate_latest(self.registry)
