"""What a collector gets: one connected trace a request, stages in order, on the caller's trace where there is one."""

import asyncio
import itertools
import time
from typing import Any

import msgspec
import pytest

from services.common.tracing import TraceParent, parse_traceparent
from services.pd_master.tracing import Times, Tracer, current_parent, note_parent

AGO_S = 1000.0
Spans = list[dict[str, Any]]


class Collector:
    """An OTLP/HTTP receiver on loopback."""

    def __init__(self) -> None:
        self.spans: Spans = []
        self.came = asyncio.Event()

    async def __aenter__(self) -> "Collector":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.partition("content-length: ")[2].split("\r\n")[0])
        body = msgspec.json.decode(await reader.readexactly(length))
        assert head.startswith("post /v1/traces ")
        for resource in body["resourceSpans"]:
            self.spans += [span for scope in resource["scopeSpans"] for span in scope["spans"]]
        self.came.set()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
        writer.close()


def life(**reached: float) -> Times:
    """A request that began long ago; stages are seconds after that."""
    began = time.monotonic() - AGO_S
    return Times(began, **{stage: began + after for stage, after in reached.items()})


async def sent(times: Times, parent: TraceParent | None = None, error: str = "") -> Spans:
    """What the collector gets of one request."""
    async with Collector() as collector:
        tracer = Tracer(collector.url)
        root = tracer.begin(parent)
        assert root is not None
        tracer.end(root, times, "chat m", {"gen_ai.request.model": "m", "gen_ai.usage.output_tokens": 3}, error)
        running = asyncio.create_task(tracer.run())
        await asyncio.sleep(0)
        running.cancel()  # the end of the process sends what is left
        await asyncio.gather(running, return_exceptions=True)
        return collector.spans


async def test_stages_are_connected_and_in_order() -> None:
    spans = await sent(life(dispatched=1, prefilling=2, first_token=3, joined=4, ended=9))
    root, *stages = spans
    assert [span["name"] for span in spans] == ["chat m", "queue", "prefill", "transfer", "decode"]
    assert {span["traceId"] for span in spans} == {root["traceId"]}
    assert {span["parentSpanId"] for span in stages} == {root["spanId"]}
    assert root["parentSpanId"] == ""
    for before, after in itertools.pairwise(stages):
        assert before["endTimeUnixNano"] == after["startTimeUnixNano"]
    assert stages[-1]["endTimeUnixNano"] == root["endTimeUnixNano"]
    assert abs(int(root["startTimeUnixNano"]) / 1e9 - (time.time() - AGO_S)) < AGO_S / 2
    assert {"key": "gen_ai.usage.output_tokens", "value": {"intValue": "3"}} in root["attributes"]


async def test_trace_of_the_caller_goes_on() -> None:
    parent = TraceParent("a" * 32, "b" * 16, is_sampled=True)
    root, *_ = await sent(life(dispatched=1, ended=2), parent)
    assert (root["traceId"], root["parentSpanId"]) == (parent.trace_id, parent.span_id)


async def test_request_that_failed_in_its_queue_has_no_later_stage() -> None:
    root, *stages = await sent(life(dispatched=1, ended=2), error="overloaded")
    assert [span["name"] for span in stages] == ["queue"]
    assert root["status"] == {"code": 2, "message": "overloaded"}


async def test_request_without_a_transfer_has_none() -> None:
    _, *stages = await sent(life(dispatched=1, prefilling=2, first_token=3, ended=4))
    assert [span["name"] for span in stages] == ["queue", "prefill", "decode"]


def test_caller_that_does_not_sample_is_left_in_peace() -> None:
    unsampled = TraceParent("a" * 32, "b" * 16, is_sampled=False)
    assert Tracer("http://collector:4318").begin(unsampled) is None


def test_without_a_collector_there_is_no_trace() -> None:
    assert Tracer(None).begin(TraceParent("a" * 32, "b" * 16, is_sampled=True)) is None


def test_workers_are_told_the_span_to_hang_theirs_below() -> None:
    root = Tracer("http://collector:4318").begin(TraceParent("a" * 32, "b" * 16, is_sampled=True))
    assert root is not None
    assert root.span.header == f"00-{'a' * 32}-{root.span.span_id}-01"
    assert parse_traceparent(root.span.header) == root.span


@pytest.mark.parametrize(
    "header",
    ["", "00-" + "0" * 32 + "-" + "b" * 16 + "-01", "ff-" + "a" * 32 + "-" + "b" * 16 + "-01", "00-xyz-1-01"],
)
def test_header_that_is_none_is_ignored(header: str) -> None:
    current_parent.set(None)
    note_parent(header)
    assert current_parent.get() is None


def test_header_is_read() -> None:
    note_parent(f"00-{'a' * 32}-{'b' * 16}-01")
    assert current_parent.get() == TraceParent("a" * 32, "b" * 16, is_sampled=True)
    current_parent.set(None)
