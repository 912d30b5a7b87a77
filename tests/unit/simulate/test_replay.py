"""The replay against a server on loopback that answers as the OpenAI API does."""

import asyncio
import json
import time

import httpx
import pytest

from bench.fit_costs import Prober, least_squares
from bench.replay.__main__ import replay
from bench.replay.client import Asked, prompt_ids
from bench.replay.players import play_all, stories_of
from bench.simulate.figures import Slo
from bench.simulate.story import Story
from bench.simulate.trace import Arrival

EVENTS = [
    {"choices": [{"text": "a"}]},
    {"choices": [{"text": "b"}]},
    {"choices": [], "usage": {"completion_tokens": 2}},
]

BROKEN = [EVENTS[0], {"error": {"message": "its worker was lost", "type": "server_error"}}]


class Server:
    """Refuses prompts of one token, breaks off after the first of three, streams two tokens to all others."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, object]] = []

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
        asked = json.loads(await reader.readexactly(length))
        self.bodies.append(asked)
        if len(asked["prompt"]) == 1:
            writer.write(b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
            for event in BROKEN if len(asked["prompt"]) == 3 else EVENTS:
                writer.write(f"data: {json.dumps(event)}\n\n".encode())
            writer.write(b"data: [DONE]\n\n")
        await writer.drain()
        writer.close()


async def test_replay_counts_what_was_served_and_what_was_refused() -> None:
    server = Server()
    listening = await asyncio.start_server(server.answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    arrivals = [Arrival(0.0, 5, 2), Arrival(0.01, 1, 2), Arrival(0.02, 6, 2)]
    async with listening:
        figures = await replay(arrivals, Asked(url, "m", 1000, None), Slo(60.0, 60.0), timeout_s=60.0)
    assert (figures.num_requests, figures.refused_share) == (3, 1 / 3)
    assert figures.good_share == 2 / 3
    assert figures.ttft_s[0] < 60.0
    assert all(body["ignore_eos"] and body["max_tokens"] == 2 for body in server.bodies)


async def played(arrivals: list[Arrival], max_new_tokens: int | None) -> list[Story]:
    listening = await asyncio.start_server(Server().answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    asked = Asked(url, "m", 1000, max_new_tokens)
    stories = stories_of(arrivals, asked)
    async with listening:
        await play_all(stories, asked, 60.0, time.perf_counter())
    return stories


async def test_a_stream_that_fails_after_its_start_does_not_count_as_served() -> None:
    (story,) = await played([Arrival(0.0, 3, 2)], None)
    assert "its worker was lost" in story.refused
    assert (story.finished_s, story.output_tokens) == (None, 0)


async def test_an_output_of_another_length_than_asked_for_is_a_failure_unless_it_may_end_by_itself() -> None:
    (exact,) = await played([Arrival(0.0, 5, 7)], None)
    assert (exact.refused, exact.finished_s) == ("2 tokens came, 7 were asked for", None)
    (free,) = await played([Arrival(0.0, 5, 7)], 9)
    assert (free.refused, free.output_tokens) == ("", 2)
    assert free.finished_s is not None


def test_equal_blocks_get_equal_ids() -> None:
    first, second = Arrival(0.0, 1000, 1, (7, 8)), Arrival(0.0, 700, 1, (7, 9))
    one, other = prompt_ids(first, 0, 32_000), prompt_ids(second, 1, 32_000)
    assert (len(one), len(other)) == (1000, 700)
    assert one[:512] == other[:512]
    assert one[512:700] != other[512:700]


def test_a_fit_gives_back_the_coefficients_that_made_the_times() -> None:
    terms = [(1, rows, rows * context) for rows in (1, 4, 8) for context in (64, 256, 1000)]
    seconds = [0.02 + 0.003 * rows + 1e-5 * context for _, rows, context in terms]
    assert least_squares(terms, seconds) == pytest.approx([0.02, 0.003, 1e-5])
    assert least_squares([(1, n) for n in (1, 2, 3)], [3.0, 2.0, 1.0]).min() == 0, "no coefficient is below zero"


async def test_a_prober_times_first_tokens_and_refusals_name_themselves() -> None:
    server = Server()
    listening = await asyncio.start_server(server.answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    async with listening, httpx.AsyncClient(timeout=60) as client:
        prober = Prober(client, Asked(url, "m", 1000, None))
        assert 0 < await prober.first_token_s(5, rounds=3, output_tokens=2) < 60.0
        with pytest.raises(RuntimeError, match="refused a prompt of 1 tokens, 1 to come: 429"):
            await prober.first_token_s(1, rounds=1)
    assert len({tuple(body["prompt"]) for body in server.bodies[:3]}) == 3, "no prompt comes twice"  # type: ignore[arg-type]


async def test_a_step_is_timed_by_its_tokens_where_an_event_carries_several(monkeypatch: pytest.MonkeyPatch) -> None:
    async def stream(_self: Prober, _prompt_tokens: int, _output_tokens: int, *_: object) -> list[float]:
        return [0.0, 1.0, 1.2, 1.4, 1.6, 1.8]  # the first token, then four events of two

    monkeypatch.setattr(Prober, "_stream", stream)
    async with httpx.AsyncClient() as client:
        step_s, context, hand_over_s = await Prober(client, Asked("", "m", 1000, None)).step_s(2, 100, 9)
    assert step_s == pytest.approx(0.1)
    assert context == 100 + 1 + 2 * 2
    assert hand_over_s == pytest.approx(0.1)


async def test_a_prober_raises_where_a_stream_fails_or_is_too_short() -> None:
    listening = await asyncio.start_server(Server().answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    async with listening, httpx.AsyncClient(timeout=60) as client:
        prober = Prober(client, Asked(url, "m", 1000, None))
        with pytest.raises(RuntimeError, match="its worker was lost"):
            await prober.first_token_s(3, rounds=1, output_tokens=2)
        with pytest.raises(RuntimeError, match="2 tokens came, 7 were asked for"):
            await prober.first_token_s(5, rounds=1, output_tokens=7)
