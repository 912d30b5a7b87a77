"""Device timing: the median over graph replays, after a warm-up."""

from __future__ import annotations

from collections.abc import Callable

import torch


def captured(launches: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """Run `launches` once (compiling what it needs) and return a graph of them."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        launches()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launches()
    return graph


def replay_ms(graph: torch.cuda.CUDAGraph, replays: int = 10, rounds: int = 5) -> float:
    """Return the median over `rounds` of the milliseconds a replay takes when `replays` are queued back to back."""
    for _ in range(3):
        graph.replay()
    times = []
    for _ in range(rounds):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(replays):
            graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / replays)
    return float(sorted(times)[len(times) // 2])


def call_ms(call: Callable[[], object], calls: int = 5, rounds: int = 5) -> float:
    """Return the median milliseconds of `call`, timed without a graph."""
    call()
    times = []
    for _ in range(rounds):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / calls)
    return float(sorted(times)[len(times) // 2])
