"""The Router's loop: it plans when something happens, and at deadlines."""

import asyncio
import contextlib

from services.router import events
from services.router.router import Outlets, Router
from services.router.work import WorkKind
from tests.unit.router.engine_model import CONFIG, work


async def test_run_proposes_as_soon_as_something_happens() -> None:
    proposed: asyncio.Queue[object] = asyncio.Queue()
    router = Router(CONFIG, Outlets(lambda one: proposed.put_nowait(one.key), lambda *_: None, lambda _: None))
    loop = asyncio.create_task(router.run())
    try:
        async with asyncio.timeout(30):
            router.enqueue(work("a", 600))
            assert await proposed.get() == "a"
            router.enqueue(work("b", 600))
            router.tell(events.Admitted("a", 600))
            router.tell(events.Gone("a"))
            assert await proposed.get() == "b"
            router.tell(events.Deferred("b"))
            assert await proposed.get() == "b"  # again, though the engine says nothing more
    finally:
        loop.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await loop


async def test_run_gives_up_at_the_deadline_with_nothing_else_happening() -> None:
    given_up: asyncio.Queue[object] = asyncio.Queue()
    router = Router(CONFIG, Outlets(lambda _: None, lambda one, _: given_up.put_nowait(one.key), lambda _: None))
    loop = asyncio.create_task(router.run())
    try:
        async with asyncio.timeout(30):
            router.enqueue(work("in", 900, WorkKind.RESERVATION, max_new_tokens=50))
            await asyncio.sleep(0)
            soon = asyncio.get_running_loop().time() + 0.05
            router.enqueue(work("late", 900, WorkKind.RESERVATION, max_new_tokens=50, queue_deadline_s=soon))
            assert await given_up.get() == "late"
    finally:
        loop.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await loop
