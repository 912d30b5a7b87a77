"""A peer is silent when the loop ran and heard nothing, not when the loop stood still."""

import asyncio
import time

import pytest

from services.pd_master.silence import SilenceWatch

PATIENCE_S = 0.2


async def test_silence_ends_the_wait() -> None:
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        async with SilenceWatch(PATIENCE_S):
            await asyncio.sleep(30)
    assert time.monotonic() - began < 10


async def test_what_is_heard_in_time_keeps_the_watch() -> None:
    async with SilenceWatch(PATIENCE_S) as silence:
        for _ in range(20):
            await asyncio.sleep(PATIENCE_S / 10)
            silence.heard()


async def test_the_watch_says_how_long_it_has_been_quiet() -> None:
    watch = SilenceWatch(PATIENCE_S)

    async def listen() -> None:
        async with watch:
            await asyncio.sleep(30)

    assert watch.quiet_s == 0
    with pytest.raises(TimeoutError):
        await listen()
    assert watch.quiet_s == pytest.approx(PATIENCE_S)
    watch.heard()
    assert watch.quiet_s == 0


async def test_loop_that_stood_still_makes_nobody_silent() -> None:
    async with SilenceWatch(PATIENCE_S) as silence:
        for _ in range(3):
            time.sleep(2 * PATIENCE_S)  # noqa: ASYNC251 - it is what the test is about
            await asyncio.sleep(0)
        silence.heard()


async def test_watch_that_was_left_does_nothing_more() -> None:
    async with SilenceWatch(PATIENCE_S / 10):
        pass
    await asyncio.sleep(PATIENCE_S / 2)
