"""Fitting costs: prompts are timed beside streams that decode, and only then."""

import asyncio
from collections.abc import Callable

import httpx
import pytest

from bench.fit_costs import Prober
from bench.replay.client import Asked

Came = Callable[[int], None]


class Served:
    """Stands for a server: prompts of one token to come take a quarter longer while all streams decode."""

    def __init__(self, num_streams: int, *, fails: str = "", ends: bool = False) -> None:
        self.num_streams, self.fails, self.ends = num_streams, fails, ends
        self.decoding = 0
        self.alone: list[float] = []
        self.beside: list[float] = []

    async def stream(self, prompt_tokens: int, output_tokens: int, came: Came = lambda _: None) -> list[float]:
        if output_tokens == 1:
            await asyncio.sleep(0)
            taken = prompt_tokens * (1 + 0.25 * self.decoding / self.num_streams)
            (self.beside if self.decoding else self.alone).append(taken)
            return [0.0, taken]
        came(1)
        for _ in range(50):  # its hand-over, while a prompt that came later could be answered already
            await asyncio.sleep(0)
        if self.fails:
            raise RuntimeError(self.fails)
        self.decoding += 1
        try:
            came(2)
            if not self.ends:
                await asyncio.Event().wait()
        finally:
            self.decoding -= 1
        return [0.0, 1.0, 2.0]


async def beside_decode(served: Served, monkeypatch: pytest.MonkeyPatch) -> float:
    monkeypatch.setattr(Prober, "_stream", lambda _, *asked: served.stream(*asked))
    async with httpx.AsyncClient() as client:
        prober = Prober(client, Asked("", "m", 1000, None))
        return await prober.beside_decode([128, 256], rounds=2, rows=served.num_streams)


async def test_prompts_are_timed_beside_streams_that_decode_until_the_last_is_timed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    served = Served(3)
    assert await beside_decode(served, monkeypatch) == pytest.approx(0.25)
    assert served.alone == [128, 128, 256, 256], "nothing is timed while only first tokens have come"
    assert served.beside == [160, 160, 320, 320]
    assert served.decoding == 0, "streams are cut off"


async def test_a_stream_that_is_refused_names_itself_and_takes_the_others_along(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    served = Served(2, fails="the server refused a prompt of 128 tokens, 2000 to come: 429")
    with pytest.raises(RuntimeError, match="128 tokens, 2000 to come: 429"):
        await beside_decode(served, monkeypatch)
    assert (served.decoding, served.beside) == (0, [])


async def test_streams_that_end_before_prompts_are_timed_beside_them_are_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(RuntimeError, match="ended while prompts were timed"):
        await beside_decode(Served(1, ends=True), monkeypatch)
