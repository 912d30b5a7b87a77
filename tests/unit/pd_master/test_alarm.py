"""The dispatcher's timer, on the loop that pd_master runs on and on asyncio's own."""

import asyncio

import pytest
import uvloop

from services.pd_master.alarm import Alarm


@pytest.fixture(params=[uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
def runner(request: pytest.FixtureRequest) -> asyncio.Runner:
    return asyncio.Runner(loop_factory=request.param)


async def _rings(*times_s: float | None) -> int:
    """How often an alarm rings that was set to these times from now, one after the other."""
    rung: list[float] = []
    loop = asyncio.get_running_loop()
    alarm = Alarm(lambda: rung.append(loop.time()))
    for time_s in times_s:
        alarm.set(None if time_s is None else loop.time() + time_s)
    await asyncio.sleep(0.05)
    return len(rung)


@pytest.mark.parametrize(
    ("times_s", "rings"),
    [
        ((-1.0, 60.0), 1),
        ((-1.0, -2.0), 1),
        ((60.0, 0.01), 1),
        ((0.01, None), 0),
        ((-1.0, None), 0),
        ((60.0,), 0),
    ],
)
def test_alarm_rings_once_at_the_earliest_time(
    runner: asyncio.Runner, times_s: tuple[float | None, ...], rings: int
) -> None:
    with runner:
        assert runner.run(_rings(*times_s)) == rings
