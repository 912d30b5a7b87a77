"""One streamed completion, timed as its client sees it."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import httpx

from bench.simulate.story import Story
from bench.simulate.trace import BLOCK_TOKENS, Arrival


@dataclass(frozen=True, slots=True)
class Asked:
    """What every request of a replay has in common."""

    url: str
    """Of the server, as `http://host:port`."""
    model: str
    vocab_size: int
    """Prompt ids are drawn below it."""
    max_new_tokens: int | None
    """None: each output is made as long as in the trace, by `ignore_eos`."""


def prompt_ids(arrival: Arrival, number: int, vocab_size: int) -> list[int]:
    """Ids of a prompt: equal blocks of the trace get equal ids, so that prefix caches find what they would have."""
    if not arrival.blocks:
        return list(_block(("request", number), arrival.prompt_tokens, vocab_size))
    ids = [id_ for block in arrival.blocks for id_ in _block(("block", block), BLOCK_TOKENS, vocab_size)]
    return ids[: arrival.prompt_tokens]


@lru_cache(maxsize=4096)
def _block(name: tuple[str, int], length: int, vocab_size: int) -> tuple[int, ...]:
    draws = random.Random(repr(name))
    return tuple(draws.randrange(min(100, vocab_size - 1), vocab_size) for _ in range(length))


def body(story: Story, asked: Asked) -> dict[str, Any]:
    """The request as JSON."""
    fields: dict[str, Any] = {
        "model": asked.model,
        "prompt": prompt_ids(story.arrival, story.number, asked.vocab_size),
        "max_tokens": story.max_new_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 1.0,
        "seed": story.number,
    }
    return fields if asked.max_new_tokens else {**fields, "ignore_eos": True}


@dataclass(frozen=True, slots=True)
class Play:
    """What one request is timed with."""

    clock: Callable[[], float]
    came: Callable[[float], None] = lambda _: None
    """Told when an event with output came."""


async def play(client: httpx.AsyncClient, story: Story, asked: Asked, timed: Play) -> int:
    """Send one request and read it to its end; writes the story. Returns its output tokens, 0 where it failed.

    An answer that breaks off, or is not as long as was asked for, fails as one that never began: `refused` says why.
    """
    try:
        async with client.stream("POST", f"{asked.url}/v1/completions", json=body(story, asked)) as answer:
            if answer.status_code != httpx.codes.OK:
                raise _FailedError(f"{answer.status_code} {(await answer.aread())[:200]!r}")
            num_tokens, last_s = await _read(answer, story, timed)
        _check_length(num_tokens, story, asked)
    except _FailedError as error:
        story.refused, story.first_token_s = str(error), None
        return 0
    except httpx.HTTPError as error:
        story.refused, story.first_token_s = repr(error), None
        return 0
    story.finished_s = last_s
    return num_tokens


class _FailedError(Exception):
    """The server's answer is none that counts."""


async def _read(answer: httpx.Response, story: Story, timed: Play) -> tuple[int, float | None]:
    """The tokens that the stream says it had, and when its last event with output came."""
    last_s: float | None = None
    num_tokens = 0
    async for line in answer.aiter_lines():
        if not line.startswith("data: {"):
            continue
        event, now_s = json.loads(line[6:]), timed.clock()
        if "error" in event:
            raise _FailedError(f"after the stream's start: {str(event['error'])[:200]}")
        num_tokens = (event.get("usage") or {}).get("completion_tokens", num_tokens)
        if not event.get("choices"):
            continue
        if last_s is None:
            story.first_token_s = now_s
        timed.came(now_s)
        last_s = now_s
    return num_tokens, last_s


def _check_length(num_tokens: int, story: Story, asked: Asked) -> None:
    """Raises _FailedError where the stream told no count, or had to have another."""
    if not num_tokens:
        raise _FailedError("the stream ended without saying how many tokens it had")
    if asked.max_new_tokens is None and num_tokens != story.max_new_tokens:
        raise _FailedError(f"{num_tokens} tokens came, {story.max_new_tokens} were asked for")


def started() -> Callable[[], float]:
    """A clock of seconds since now."""
    start = time.perf_counter()
    return lambda: time.perf_counter() - start
