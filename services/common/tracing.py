"""Spans and their way to an OpenTelemetry collector: OTLP over HTTP, in JSON. Nothing leaves unless one is named.

The gateway starts a request's trace, or goes on with its client's; workers hang their spans below the gateway's, whose
W3C trace context travels in the request (`Request.traceparent`), since one stream carries all requests of a worker.
Prompts and outputs are never in a span.
"""

import asyncio
import logging
import re
import secrets
import time
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

if TYPE_CHECKING:
    import httpx2

log = logging.getLogger(__name__)

Attribute = str | int | float | list[str]
INTERNAL, SERVER = 1, 2
"""Kinds of spans."""
_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_MAX_WAITING = 8192
"""Spans kept for a collector that does not answer; beyond it the oldest go."""
_BATCH = 512
_EVERY_S = 1.0
_ANSWER_S = 5.0
"""How long a collector may take to answer."""
_FLUSH_S = 3.0
"""How long the last spans may take in all, however many there are: somebody waits for this process to end."""
_ERROR = 2


class TraceParent(NamedTuple):
    """Somebody's span, from the W3C header `traceparent`."""

    trace_id: str
    span_id: str
    is_sampled: bool

    @property
    def header(self) -> str:
        """As W3C writes it."""
        return f"00-{self.trace_id}-{self.span_id}-{self.is_sampled:02x}"


def parse_traceparent(header: str) -> TraceParent | None:
    """What is none is ignored, as W3C asks."""
    match = _TRACEPARENT.fullmatch(header.strip())
    if match is None or not int(match[1], 16) or not int(match[2], 16):
        return None
    return TraceParent(match[1], match[2], bool(int(match[3], 16) & 1))


class Span(NamedTuple):
    """One span, ready to be sent. Times are of the monotonic clock."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    kind: int
    start_s: float
    end_s: float
    attributes: Mapping[str, Attribute]
    error: str = ""
    """Empty when it went well."""


def new_span_id() -> str:
    """64 random bits."""
    return secrets.token_hex(8)


class Exporter:
    """One per process, on its event loop: `add` at any time, `run` sends until it is cancelled, and a little longer."""

    def __init__(self, endpoint: str, service: str, instance: str) -> None:
        """`endpoint`: the collector's address without a path; `service`: what Jaeger and the like group by."""
        self._url = endpoint.rstrip("/") + "/v1/traces"
        self._resource = {"service.namespace": "sluice", "service.name": service, "service.instance.id": instance}
        self._waiting: deque[Span] = deque(maxlen=_MAX_WAITING)
        self._clock_offset_s = time.time() - time.monotonic()

    def add(self, *spans: Span) -> None:
        """Have them sent."""
        self._waiting.extend(spans)

    async def run(self) -> None:
        """Send what there is every second, and once more at the end, for up to `_FLUSH_S`."""
        import httpx2  # only those who trace pay for an HTTP client

        async with httpx2.AsyncClient(timeout=_ANSWER_S, trust_env=False) as client:
            try:
                while True:
                    await asyncio.sleep(_EVERY_S)
                    await self._send(client)
            finally:
                await self._flush(client)

    async def _flush(self, client: "httpx2.AsyncClient") -> None:
        try:
            async with asyncio.timeout(_FLUSH_S):
                await self._send(client)
        except TimeoutError:
            log.warning("the last spans are lost: the collector did not take them within %g s", _FLUSH_S)

    async def _send(self, client: "httpx2.AsyncClient") -> None:
        import httpx2

        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))]
            body = msgspec.json.encode(self._body(batch))
            try:
                answer = await client.post(self._url, content=body, headers={"Content-Type": "application/json"})
                answer.raise_for_status()
            except (httpx2.HTTPError, httpx2.InvalidURL) as error:
                log.warning("%d spans are lost: %s %s", len(batch), type(error).__name__, error)
                return

    def _body(self, spans: list[Span]) -> dict[str, Any]:
        scope = {"scope": {"name": "sluice"}, "spans": [self._span(span) for span in spans]}
        return {"resourceSpans": [{"resource": {"attributes": _attributes(self._resource)}, "scopeSpans": [scope]}]}

    def _span(self, span: Span) -> dict[str, Any]:
        made: dict[str, Any] = {
            "traceId": span.trace_id,
            "spanId": span.span_id,
            "parentSpanId": span.parent_id,
            "name": span.name,
            "kind": span.kind,
            "startTimeUnixNano": str(self._unix_ns(span.start_s)),
            "endTimeUnixNano": str(self._unix_ns(span.end_s)),
            "attributes": _attributes(span.attributes),
        }
        return made | ({"status": {"code": _ERROR, "message": span.error}} if span.error else {})

    def _unix_ns(self, monotonic_s: float) -> int:
        return int((monotonic_s + self._clock_offset_s) * 1e9)


def _attributes(values: Mapping[str, Attribute]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in values.items()]


def _value(value: Attribute) -> dict[str, Any]:
    match value:
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case str():
            return {"stringValue": value}
    return {"arrayValue": {"values": [_value(one) for one in value]}}
