"""A request's trace as its user sees it; nothing is made unless a collector is configured.

    chat MODEL                           the whole request; child of the client's span where a traceparent came along
      queue, prefill, transfer, decode   the stages as the user waits for them, end to start
      prefill worker, decode worker      what each worker did for it, sent by the worker (`services.worker.spans`)

The gateway sees all stages, since workers report each to it. Names of attributes are those of OpenTelemetry's GenAI
conventions.
"""

import secrets
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass

from services.common.tracing import (
    INTERNAL,
    SERVER,
    Attribute,
    Exporter,
    Span,
    TraceParent,
    new_span_id,
    parse_traceparent,
)

current_parent: ContextVar[TraceParent | None] = ContextVar("current_parent", default=None)
"""Set by the HTTP and gRPC fronts for the request they handle."""


def note_parent(header: str) -> None:
    """Remember a request's `traceparent`."""
    parent = parse_traceparent(header)
    if parent is not None:
        current_parent.set(parent)


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


@dataclass(frozen=True, slots=True)
class Root:
    """A request's own span while it runs: workers hang theirs below it."""

    span: TraceParent
    parent_id: str


class Tracer:
    """Made once by the gateway: `begin` at a request's start, `end` at its end, `run` until it is cancelled."""

    def __init__(self, endpoint: str | None, instance: str = "pd-master") -> None:
        self._exporter = Exporter(endpoint, "sluice-pd-master", instance) if endpoint else None

    def begin(self, parent: TraceParent | None) -> Root | None:
        """Start a trace, or go on with the caller's; None when there is none to make."""
        if self._exporter is None or (parent is not None and not parent.is_sampled):
            return None
        trace_id = parent.trace_id if parent else secrets.token_hex(16)
        return Root(TraceParent(trace_id, new_span_id(), is_sampled=True), parent.span_id if parent else "")

    def end(self, root: Root, times: Times, name: str, attributes: Mapping[str, Attribute], error: str) -> None:
        """A request has ended; `error` is empty when it went well."""
        assert self._exporter is not None, "begin made the root"
        trace_id, span_id, _ = root.span
        whole = Span(trace_id, span_id, root.parent_id, name, SERVER, times.arrived, times.ended, attributes, error)
        stages = (
            Span(trace_id, new_span_id(), span_id, stage, INTERNAL, start, end, {})
            for stage, start, end in times.stages()
        )
        self._exporter.add(whole, *stages)

    async def run(self) -> None:
        """Send spans."""
        if self._exporter is not None:
            await self._exporter.run()
