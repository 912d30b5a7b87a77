"""One OpenTelemetry trace for each request, sent to an OTLP/HTTP collector; nothing is made unless one is configured.

    chat MODEL                        the whole request; child of the client's span where a traceparent came along
      queue, prefill, transfer, decode   the stages as the user waits for them, end to start

The gateway sees all stages, since workers report each to it. Names of attributes are those of OpenTelemetry's GenAI
conventions. Prompts and outputs are never in a span.
"""

import asyncio
import logging
import re
import secrets
import time
from collections import deque
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple

import httpx2
import msgspec

log = logging.getLogger(__name__)

Attribute = str | int | float | list[str]
_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_MAX_WAITING = 8192
"""Spans kept for a collector that does not answer; beyond it the oldest go."""
_BATCH = 512
_EVERY_S = 1.0
_INTERNAL, _SERVER = 1, 2
_ERROR = 2


class TraceParent(NamedTuple):
    """The caller's span, from the W3C header `traceparent`."""

    trace_id: str
    span_id: str
    is_sampled: bool


current_parent: ContextVar[TraceParent | None] = ContextVar("current_parent", default=None)
"""Set by the HTTP and gRPC fronts for the request they handle."""


def note_parent(header: str) -> None:
    """Remember a request's `traceparent`; what is none is ignored, as W3C asks."""
    match = _TRACEPARENT.fullmatch(header.strip())
    if match is not None and int(match[1], 16) and int(match[2], 16):
        current_parent.set(TraceParent(match[1], match[2], bool(int(match[3], 16) & 1)))


@dataclass(slots=True)
class Times:
    """When a request reached each stage, on the monotonic clock; 0 for never."""

    arrived: float
    dispatched: float = 0.0
    prefilling: float = 0.0
    first_token: float = 0.0
    joined: float = 0.0
    ended: float = 0.0

    def stages(self) -> list[tuple[str, float, float]]:
        """Name, start and end of each stage that was reached; one that was cut short ends with the request."""
        marks = [
            ("queue", self.dispatched),
            ("prefill", self.prefilling),
            ("transfer", self.first_token if self.joined else 0.0),
            ("decode", self.joined or self.first_token),
        ]
        reached = [(name, start) for name, start in marks if start]
        ends = [max(start, before) for (_, start), (_, before) in zip(reached[1:], reached, strict=False)]
        return [(name, start, end) for (name, start), end in zip(reached, [*ends, self.ended], strict=True)]


class Span(NamedTuple):
    """One span, ready to be sent."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    kind: int
    start_s: float
    end_s: float
    attributes: Mapping[str, Attribute]
    error: str


class Tracer:
    """Made once by the front; `request` is called at a request's end, `run` sends until it is cancelled."""

    def __init__(self, endpoint: str | None, instance: str = "pd-master") -> None:
        self._url = endpoint.rstrip("/") + "/v1/traces" if endpoint else ""
        self._instance = instance
        self._waiting: deque[Span] = deque(maxlen=_MAX_WAITING)
        self._clock_offset_s = time.time() - time.monotonic()

    def request(
        self, times: Times, parent: TraceParent | None, name: str, attributes: Mapping[str, Attribute], error: str
    ) -> None:
        """A request has ended; `error` is empty when it went well."""
        if not self._url or (parent is not None and not parent.is_sampled):
            return
        trace_id = parent.trace_id if parent else secrets.token_hex(16)
        root = secrets.token_hex(8)
        above = parent.span_id if parent else ""
        self._waiting.append(Span(trace_id, root, above, name, _SERVER, times.arrived, times.ended, attributes, error))
        for stage, start, end in times.stages():
            self._waiting.append(Span(trace_id, secrets.token_hex(8), root, stage, _INTERNAL, start, end, {}, ""))

    async def run(self) -> None:
        """Send what there is every second, and once more at the end."""
        if not self._url:
            return
        async with httpx2.AsyncClient(timeout=5.0, trust_env=False) as client:
            try:
                while True:
                    await asyncio.sleep(_EVERY_S)
                    await self._send(client)
            finally:
                await self._send(client)

    async def _send(self, client: httpx2.AsyncClient) -> None:
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))]
            body = msgspec.json.encode(self._body(batch))
            try:
                answer = await client.post(self._url, content=body, headers={"Content-Type": "application/json"})
                answer.raise_for_status()
            except httpx2.HTTPError as error:
                log.warning("%d spans are lost: %s %s", len(batch), type(error).__name__, error)
                return

    def _body(self, spans: list[Span]) -> dict[str, Any]:
        resource = {"service.name": "sluice", "service.instance.id": self._instance}
        scope = {"scope": {"name": "sluice.pd_master"}, "spans": [self._span(span) for span in spans]}
        return {"resourceSpans": [{"resource": {"attributes": _attributes(resource)}, "scopeSpans": [scope]}]}

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
