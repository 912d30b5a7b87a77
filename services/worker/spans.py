"""What a worker did for a traced request, as spans below the gateway's: one for each of its jobs, and its stages.

    prefill worker   queue    wait in the Router   prefill  the prompt in the engine       transfer  all bytes sent
    decode worker    reserve  wait for room        join     from the grant to all bytes    decode    to the end
    mixed worker     queue, prefill, decode; a decode worker too, for a sequence that it preempted

A transfer begins while its prompt is still computed. Pure: times in, spans out.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from services.common.ipc import AttemptKey
from services.common.tracing import INTERNAL, SERVER, Attribute, Span, TraceParent, new_span_id
from services.router.work import QueuedWork, WorkKind


@dataclass(slots=True)
class JobTimes:
    """When a job reached what, on the monotonic clock; 0 for not yet."""

    work: QueuedWork
    queued_s: float
    admitted_s: float = 0.0
    cached_tokens: int = 0
    joined_s: float = 0.0
    first_output_s: float = 0.0
    pushed_s: float = 0.0
    push_took_s: float = 0.0
    last_output_s: dict[int, float] = field(default_factory=dict)
    """By choice, for those that decode here."""


class JobTrace(NamedTuple):
    """Whose job it is."""

    parent: TraceParent
    key: AttemptKey


def job_spans(times: JobTimes, trace: JobTrace, role: str, ended_s: float) -> list[Span]:
    """The spans of a job that has ended; a stage that was cut short ends with it."""
    trace_id, parent_id, _ = trace.parent
    span_id = new_span_id()
    attributes: dict[str, Attribute] = {
        "sluice.request_id": trace.key.request_id,
        "sluice.attempt": trace.key.attempt,
        "sluice.work": times.work.kind.value,
        "sluice.context_tokens": times.work.context_tokens,
        "sluice.cached_tokens": times.cached_tokens,
    }
    whole = Span(trace_id, span_id, parent_id, f"{role} worker", SERVER, times.queued_s, ended_s, attributes)
    stages = [
        Span(trace_id, new_span_id(), span_id, name, INTERNAL, start_s, end_s, {})
        for name, start_s, end_s in _stages(times, ended_s)
    ]
    return [whole, *stages]


def _stages(times: JobTimes, ended_s: float) -> list[tuple[str, float, float]]:
    if times.work.kind is WorkKind.RESERVATION:
        names, marks = ("reserve", "join", "decode"), (times.queued_s, times.admitted_s, times.joined_s)
    elif times.work.kind is WorkKind.PREFILL:
        names, marks = ("queue", "prefill", ""), (times.queued_s, times.admitted_s, times.first_output_s)
    else:
        names, marks = ("queue", "prefill", "decode"), (times.queued_s, times.admitted_s, times.first_output_s)
    ends = (*(mark or ended_s for mark in marks[1:]), ended_s)
    found = [(name, start, end) for name, start, end in zip(names, marks, ends, strict=True) if name and start]
    if times.pushed_s:
        found.append(("transfer", times.pushed_s - times.push_took_s, times.pushed_s))
    return found
