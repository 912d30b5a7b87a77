"""The exporter of spans towards a collector that is no good."""

import asyncio
import contextlib

import pytest

from services.common import tracing
from services.common.tracing import INTERNAL, Exporter, Span

SPAN = Span("a" * 32, "b" * 16, "", "stage", INTERNAL, 0.0, 1.0, {})


async def test_the_last_spans_have_one_bound_however_slow_the_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "_EVERY_S", 600.0)
    monkeypatch.setattr(tracing, "_ANSWER_S", 600.0)
    for bound_s in (1.0, 5.0, 20.0):  # a slow machine does not come to ask within the shortest
        monkeypatch.setattr(tracing, "_FLUSH_S", bound_s)
        if await is_asked_before_the_end():
            return
    pytest.fail("the collector was never asked")


async def is_asked_before_the_end() -> bool:
    """Whether an exporter that ends asks a collector, which never answers. It must end all the same."""
    asked, done = asyncio.Event(), asyncio.Event()

    async def never_answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await done.wait()
        writer.close()

    server = await asyncio.start_server(never_answer, "127.0.0.1", 0)
    exporter = Exporter(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "sluice-test", "0")
    running = asyncio.create_task(exporter.run())
    await asyncio.sleep(0)
    exporter.add(SPAN)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.wait_for(running, 60)
    done.set()
    server.close()
    return asked.is_set()
