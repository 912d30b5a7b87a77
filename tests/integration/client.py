"""A small client of the native wire, which carries token ids, for comparison with the oracle."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

TIMEOUT_S = 200.0


@dataclass
class Answer:
    """What one stream delivered, in order."""

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: str | None = None
    counts: list[int] = field(default_factory=list)
    """`count_output_tokens` of each event: 1, 2, 3 ... when none is repeated or skipped."""
    status: int = 200
    error: str = ""


async def stream(
    client: httpx.AsyncClient, prompt_ids: Sequence[int], max_new_tokens: int, **parameters: Any
) -> Answer:
    """One greedy `/generate_stream`; every event is one token."""
    body = {
        "inputs": list(prompt_ids),
        "parameters": {"do_sample": False, "max_new_tokens": max_new_tokens, **parameters},
    }
    answer = Answer()
    async with client.stream("POST", "/generate_stream", json=body, timeout=TIMEOUT_S) as response:
        answer.status = response.status_code
        if response.status_code != 200:
            answer.error = (await response.aread()).decode()
            return answer
        async for line in response.aiter_lines():
            if line.startswith("data:"):
                _take(answer, json.loads(line[len("data:") :]))
    return answer


def _take(answer: Answer, event: dict[str, Any]) -> None:
    if "token" not in event:
        answer.error = json.dumps(event)
        return
    token = event["token"]
    answer.token_ids.append(token["id"])
    answer.text += token["text"]
    answer.counts.append(token["count_output_tokens"])
    answer.finish_reason = event["finish_reason"] or answer.finish_reason


async def stream_all(
    url: str, prompts: Sequence[Sequence[int]], max_new_tokens: int, at_once: int, **parameters: Any
) -> list[Answer]:
    """Answers in the prompts' order, at most `at_once` in flight."""
    gate = asyncio.Semaphore(at_once)
    async with httpx.AsyncClient(base_url=url, limits=httpx.Limits(max_connections=None)) as client:

        async def one(prompt: Sequence[int]) -> Answer:
            async with gate:
                return await stream(client, prompt, max_new_tokens, **parameters)

        return list(await asyncio.gather(*(one(prompt) for prompt in prompts)))
