"""The native wire as LightLLM's own clients parse it, byte for byte."""

import json

import httpx

from tests.integration.clients.test_chat import ANSWER
from tests.integration.oracle import Oracle

QUESTION = "What is the capital of France?"


def test_native_stream_is_as_its_clients_parse_it(url: str, demo: str, oracle: Oracle) -> None:
    assert demo
    body = {"inputs": list(oracle.chat_ids(QUESTION)), "parameters": {"do_sample": False, "max_new_tokens": 20}}
    answer = httpx.post(f"{url}/generate_stream", json=body, timeout=200)
    events = answer.content.split(b"\n\n")
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert events.pop() == b""
    assert all(event.startswith(b"data:{") for event in events), "one event a line, no space after the colon, no [DONE]"
    parsed = [json.loads(event[len(b"data:") :]) for event in events]
    assert "".join(event["token"]["text"] for event in parsed) == ANSWER
    assert [event["finished"] for event in parsed] == [False] * 7 + [True]
    assert parsed[-1]["finish_reason"] == "stop"
    assert {"token", "generated_text", "finished", "finish_reason", "details", "input_usage"} <= parsed[0].keys()
    assert {"id", "text", "logprob", "special", "count_output_tokens", "prompt_tokens"} <= parsed[0]["token"].keys()
