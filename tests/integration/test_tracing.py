"""A collector gets one connected trace for each request of a real run, on the trace of the caller."""

import json
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cluster import Cluster

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
STAGES = ["queue", "prefill", "transfer", "decode"]
ON_WORKERS = {"prefill worker": ["queue", "prefill", "transfer"], "decode worker": ["reserve", "join", "decode"]}
OF_A_REQUEST = 1 + len(STAGES) + sum(1 + len(stages) for stages in ON_WORKERS.values())
Span = dict[str, Any]


class Collector(ThreadingHTTPServer):
    """An OTLP/HTTP receiver."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        super().__init__(("127.0.0.1", 0), _Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.server_port}"

    def wait_for(self, count: int) -> list[Span]:
        """All spans, once there are so many."""
        deadline = time.monotonic() + 90
        while len(self.spans) < count:
            assert time.monotonic() < deadline, "\n".join(sorted(f"{s['traceId']} {s['name']}" for s in self.spans))
            time.sleep(0.1)
        return self.spans


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        """Take one export."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        for resource in body["resourceSpans"]:
            named = {one["key"]: one["value"]["stringValue"] for one in resource["resource"]["attributes"]}
            spans = [span for scope in resource["scopeSpans"] for span in scope["spans"]]
            self.server.spans += [span | {"service": named["service.name"]} for span in spans]
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing on stderr."""


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    """A collector."""
    made = Collector()
    yield made
    made.shutdown()


@pytest.fixture(scope="module")
def cluster(model_dir: Path, log_dir: Path, collector: Collector) -> Iterator[Cluster]:
    """One prefill and one decode worker; all of them send traces."""
    logs = log_dir / "tracing"
    logs.mkdir()
    options = ["--otlp-endpoint", collector.url]
    with Cluster(model_dir, logs, 1, 1, options, options) as running:
        yield running


def complete(cluster: Cluster, **headers: str) -> None:
    """One completion, read to its end."""
    body = {"model": cluster.model.name, "prompt": "The capital of France is", "max_tokens": 6, "temperature": 0}
    request = urllib.request.Request(
        f"{cluster.url}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json", **headers},
    )
    with urllib.request.urlopen(request, timeout=200) as answer:
        assert answer.status == 200


def starts(span: Span) -> int:
    """When it began, ns."""
    return int(span["startTimeUnixNano"])


def below(parent: Span, spans: list[Span]) -> list[Span]:
    """Its children in the order in which they began."""
    return sorted((span for span in spans if span["parentSpanId"] == parent["spanId"]), key=starts)


def names(spans: list[Span]) -> list[str]:
    """Of each."""
    return [span["name"] for span in spans]


def test_each_request_is_one_trace_with_its_stages_in_order(cluster: Cluster, collector: Collector) -> None:
    complete(cluster, traceparent=f"00-{TRACE_ID}-{SPAN_ID}-01")
    complete(cluster)
    spans = collector.wait_for(2 * OF_A_REQUEST)
    assert len(spans) == 2 * OF_A_REQUEST
    assert {span["service"] for span in spans} == {"sluice-pd-master", "sluice-prefill", "sluice-decode"}
    roots = [span for span in spans if span["name"].startswith("text_completion")]
    assert len(roots) == len({root["traceId"] for root in roots}) == 2
    (of_caller,) = (root for root in roots if root["traceId"] == TRACE_ID)
    assert of_caller["parentSpanId"] == SPAN_ID
    for root in roots:
        trace = [span for span in spans if span["traceId"] == root["traceId"]]
        assert len(trace) == OF_A_REQUEST
        children = below(root, trace)
        assert [span["name"] for span in children if span["name"] not in ON_WORKERS] == STAGES
        workers = [span for span in children if span["name"] in ON_WORKERS]
        assert {worker["name"]: names(below(worker, trace)) for worker in workers} == ON_WORKERS
        assert {worker["service"] for worker in workers} == {"sluice-prefill", "sluice-decode"}
        for worker in workers:
            assert starts(root) <= starts(worker)
            assert all(starts(worker) <= starts(stage) for stage in below(worker, trace))
        named = {one["key"]: one["value"] for one in root["attributes"]}
        assert named["gen_ai.usage.output_tokens"] == {"intValue": "6"}
        assert named["gen_ai.operation.name"] == {"stringValue": "text_completion"}
