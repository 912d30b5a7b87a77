"""Text rules as properties: however a stream is cut, it is the whole answer, and no chunk holds a broken character."""

import json

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.common.request import Delta, StopParams, TextParams
from services.common.text import TextStream
from services.pd_master.api.choices import parts_of, spread
from services.pd_master.api.openai.chat_events import DONE
from tests.fakes.dispatcher import Script
from tests.unit.api.conftest import Api

EXAMPLES = settings(
    max_examples=40, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
IDS = st.lists(st.integers(0, 300), min_size=1, max_size=40)
STOPS = st.lists(st.text(min_size=1, max_size=3), max_size=3)


def whole_text(api: Api, ids: list[int], stops: list[str]) -> str:
    """What one decoder makes of all ids at once."""
    stream = TextStream(api.text.vocabulary, StopParams(len(ids), stop_strings=tuple(stops)), TextParams())
    return stream.push(ids) + stream.close()


def chat(ids: list[int], stops: list[str], *, stream: bool) -> dict[str, object]:
    return {
        "model": "tiny",
        "messages": [{"role": "user", "content": "x"}],
        "max_tokens": len(ids),
        "stop": stops,
        "stream": stream,
    }


@EXAMPLES
@given(ids=IDS, stops=STOPS, step=st.integers(1, 9))
async def test_streamed_text_is_the_whole_text(api: Api, ids: list[int], stops: list[str], step: int) -> None:
    api.dispatcher.script = Script(output=[ids], step=step)
    whole = (await api.http.post("/v1/chat/completions", json=chat(ids, stops, stream=False))).json()
    streamed = await api.http.post("/v1/chat/completions", json=chat(ids, stops, stream=True))
    events = streamed.text.removesuffix(DONE.decode()).split("\n\n")[:-1]
    deltas = [json.loads(event[6:])["choices"][0]["delta"].get("content", "") for event in events]
    expected = whole_text(api, ids, stops)
    assert whole["choices"][0]["message"]["content"] == expected
    assert "".join(deltas) == expected
    assert all(stop not in expected for stop in stops)
    assert all("\ufffd" not in delta for delta in deltas) or "\ufffd" in expected


@EXAMPLES
@given(ids=IDS, step=st.integers(1, 9))
async def test_native_tokens_add_up_to_the_whole_text(api: Api, ids: list[int], step: int) -> None:
    api.dispatcher.script = Script(output=[ids], step=step)
    body = {"inputs": "x", "parameters": {"max_new_tokens": len(ids)}}
    response = await api.http.post("/generate_stream", json=body)
    tokens = [json.loads(event[5:])["token"] for event in response.text.split("\n\n")[:-1]]
    assert [token["id"] for token in tokens] == ids
    assert "".join(token["text"] for token in tokens) == whole_text(api, ids, [])


@EXAMPLES
@given(lengths=st.lists(st.integers(0, 4), max_size=6), tail=st.text(max_size=3))
def test_a_delta_is_cut_between_tokens_without_loss(lengths: list[int], tail: str) -> None:
    text = "abcdefghijklmnopqrstuvwxyz"[: sum(lengths)] + tail
    delta = Delta(0, 0, list(range(len(lengths))), text, text_lengths=tuple(lengths))
    assert "".join(parts_of(delta)) == text
    assert len(spread(delta)) == len(lengths)
