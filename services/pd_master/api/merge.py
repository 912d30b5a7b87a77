"""Several requests of one call as one stream of deltas."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import TypeAlias

import msgspec

from services.common.errors import SluiceError
from services.common.request import Delta
from services.pd_master.live_request import LiveRequest

_Item: TypeAlias = list[Delta] | SluiceError | None


async def merge(lives: Sequence[LiveRequest], num_choices: int) -> AsyncGenerator[list[Delta], None]:
    """Deltas of all requests, choices numbered request * num_choices + choice. Raises SluiceError when one fails.

    Use it in `contextlib.aclosing`. One request passes through without a task or a queue.
    """
    if len(lives) == 1:
        async for deltas in lives[0]:
            yield deltas
        return
    ready: asyncio.Queue[_Item] = asyncio.Queue(maxsize=len(lives))  # full: requests merge what the client cannot take
    tasks = [asyncio.create_task(_forward(live, at * num_choices, ready)) for at, live in enumerate(lives)]
    try:
        num_left = len(lives)
        while num_left:
            item = await ready.get()
            if isinstance(item, SluiceError):
                raise item
            if item is None:
                num_left -= 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _forward(live: LiveRequest, first_choice: int, ready: asyncio.Queue[_Item]) -> None:
    end: SluiceError | None = None
    try:
        async for deltas in live:
            await ready.put([_shifted(delta, first_choice) for delta in deltas])
    except SluiceError as error:
        end = error
    await ready.put(end)


def _shifted(delta: Delta, by: int) -> Delta:
    return msgspec.structs.replace(delta, choice=delta.choice + by) if by else delta
