"""A request's stages as its user waits for them, whichever of two workers is heard first."""

from collections.abc import AsyncIterator
from itertools import count
from typing import Any, cast

import pytest

from services.common.request import Delta, Request, SamplingParams, StopParams
from services.pd_master.live_request import LiveRequest
from services.pd_master.metrics import GatewayMetrics


class Dispatcher:
    """Of one request: yields tokens, and says that the KV has joined before the token of number `joined_before`."""

    def __init__(self, *joined_before: int) -> None:
        self._joined_before = joined_before
        self.live: LiveRequest

    async def submit(self, _: Request) -> AsyncIterator[list[Delta]]:
        """See Dispatcher."""
        return self._tokens()

    async def _tokens(self) -> AsyncIterator[list[Delta]]:
        for at in range(3):
            for _ in range(self._joined_before.count(at)):
                self.live.joined()
            yield [Delta(0, at, [7], "x", None, None, (1,))]


async def transfers(*joined_before: int) -> tuple[float, float]:
    """How many were observed, and their seconds, of a request whose clock ticks once a look."""
    metrics, dispatcher = GatewayMetrics(), Dispatcher(*joined_before)
    request = Request("0" * 32, "m", [1, 2, 3], SamplingParams(), StopParams(100))
    live = dispatcher.live = LiveRequest(request, metrics, api="chat", arrived=0.0, on_end=lambda _: None)
    ticks = count(1.0)
    live._clock = lambda: next(ticks)
    await live.dispatch(cast(Any, dispatcher))
    async for _ in live:
        pass
    samples = {s.name: s.value for m in metrics.stage.labels("transfer").collect() for s in m.samples}
    found = {name.rsplit("_", 1)[1]: value for name, value in samples.items()}
    return found["count"], found["sum"]


@pytest.mark.parametrize(
    ("joined_before", "observed", "seconds"),
    [((1,), 1, 1.0), ((0,), 1, 0.0), ((0, 2), 1, 0.0), ((1, 2), 1, 1.0), ((), 0, 0.0)],
)
async def test_a_transfer_is_observed_once_and_takes_nothing_where_it_is_heard_of_first(
    joined_before: tuple[int, ...], observed: int, seconds: float
) -> None:
    assert await transfers(*joined_before) == (observed, seconds)
