"""A steady load of streams whose every token is compared: what fails, repeats or is cut shows by itself."""

import asyncio
import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx

from tests.integration.client import Answer, stream

Prompt = tuple[int, ...]
OUTPUT_TOKENS = 24


@dataclass
class Load:
    """`at_once` streams at any time, each followed by the next. Runs on a thread of its own."""

    url: str
    expected: dict[Prompt, tuple[int, ...]]
    """The oracle's output ids by prompt."""
    at_once: int = 3
    done: int = 0
    faults: list[str] = field(default_factory=list)
    slowest_s: float = 0.0
    stopping: bool = False

    def wait_for(self, streams: int, timeout_s: float = 120.0) -> None:
        """Until so many more streams have ended."""
        target, deadline = self.done + streams, time.monotonic() + timeout_s
        while self.done < target:
            assert time.monotonic() < deadline, f"the load stands still; so far: {self.faults}"
            time.sleep(0.1)

    async def run(self) -> None:
        """Until `stopping` is set, then until the last stream has ended."""
        prompts = itertools.cycle(self.expected)
        await asyncio.gather(*(self._one_after_another(prompts) for _ in range(self.at_once)))

    async def _one_after_another(self, prompts: Iterator[Prompt]) -> None:
        while not self.stopping:
            prompt = next(prompts)
            began = time.monotonic()
            fault = await self._fault(prompt)
            self.slowest_s = max(self.slowest_s, time.monotonic() - began)
            self.done += 1
            if fault:
                self.faults.append(f"{time.strftime('%H:%M:%S')} after {time.monotonic() - began:.1f} s: {fault}")

    async def _fault(self, prompt: Prompt) -> str | None:
        wanted = self.expected[prompt]
        try:
            # A connection for each stream: it goes to whatever gateway is there now.
            async with httpx.AsyncClient(base_url=self.url, trust_env=False) as client:
                answer = await stream(client, prompt, OUTPUT_TOKENS)
        except httpx.HTTPError as error:
            return f"{type(error).__name__} {error}"
        return _difference(answer, wanted)


def _difference(answer: Answer, wanted: Sequence[int]) -> str | None:
    if answer.error:
        return f"status {answer.status}: {answer.error}"
    if answer.counts != list(range(1, len(answer.counts) + 1)):
        return f"repeated or skipped: {answer.counts}"
    if answer.token_ids != list(wanted):
        return f"other tokens: got {answer.token_ids}, want {list(wanted)}"
    reason = "length" if len(wanted) == OUTPUT_TOKENS else "stop"
    return None if answer.finish_reason == reason else f"finish_reason {answer.finish_reason}"


@contextmanager
def steady_load(url: str, expected: dict[Prompt, tuple[int, ...]], at_once: int = 3) -> Iterator[Load]:
    """Load while the block runs. It is up once the first streams have ended."""
    load = Load(url, expected, at_once)
    thread = threading.Thread(target=lambda: asyncio.run(load.run()), daemon=True)
    thread.start()
    try:
        load.wait_for(at_once)
        yield load
    finally:
        load.stopping = True
        thread.join(timeout=120)
    assert not thread.is_alive(), "a stream hangs"
