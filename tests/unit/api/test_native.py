"""The native wire, byte for byte."""

import json
from typing import Any

import pytest

from services.common.errors import WorkerFailedError
from services.common.request import LengthPenalty, PromptPenalty
from tests.unit.api.conftest import Api


async def post(api: Api, path: str, **body: Any) -> Any:  # noqa: ANN401
    response = await api.http.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


async def test_generate_answers_single_values_for_one_choice(api: Api) -> None:
    ids = api.text.encode("Hello world")
    api.dispatcher.script.output = [ids]
    answer = await post(api, "/generate", inputs="Hi", parameters={"max_new_tokens": 50})
    assert answer == {
        "generated_text": ["Hello world"],
        "count_output_tokens": len(ids),
        "finish_reason": "stop",
        "prompt_tokens": len(api.text.encode("Hi")),
    }


async def test_generate_answers_lists_for_several_choices(api: Api) -> None:
    api.dispatcher.script.output = [api.text.encode("one"), api.text.encode("two")]
    answer = await post(api, "/generate", inputs="Hi", parameters={"n": 2, "best_of": 2})
    assert answer["generated_text"] == ["one", "two"]
    assert answer["finish_reason"] == ["stop", "stop"]
    assert isinstance(answer["count_output_tokens"], list)


async def test_details_hold_tokens_logprobs_and_prompt_ids(api: Api) -> None:
    ids = api.text.encode("Hé")
    api.dispatcher.script.output = [ids]
    answer = await post(api, "/generate", inputs="Hi", parameters={"return_details": True})
    assert [token["id"] for token in answer["tokens"]] == ids
    assert "".join(token["text"] for token in answer["tokens"]) == "Hé"
    assert answer["logprobs"] == [-0.25] * len(ids)
    assert answer["prompt_token_ids"] == api.text.encode("Hi")
    assert answer["input_usage"]["input_text_tokens"] == answer["prompt_tokens"]


@pytest.mark.parametrize("step", [1, 3])
async def test_stream_is_one_event_per_token_without_space_or_done(api: Api, step: int) -> None:
    ids = api.text.encode("Hé world 🌍")
    api.dispatcher.script.output = [ids]
    api.dispatcher.script.step = step
    response = await api.http.post("/generate_stream", json={"inputs": "Hi", "parameters": {"max_new_tokens": 90}})
    events = response.content.split(b"\n\n")
    assert events.pop() == b""
    assert all(event.startswith(b'data:{"token":{"id":') for event in events)
    parsed = [json.loads(event[5:]) for event in events]
    assert [event["token"]["id"] for event in parsed] == ids
    assert "".join(event["token"]["text"] for event in parsed) == "Hé world 🌍"
    assert [event["token"]["count_output_tokens"] for event in parsed] == list(range(1, len(ids) + 1))
    assert [event["finished"] for event in parsed] == [False] * (len(ids) - 1) + [True]
    assert parsed[-1]["finish_reason"] == "stop"
    assert parsed[0]["finish_reason"] is None


async def test_stream_event_has_exactly_the_wires_bytes(api: Api) -> None:
    token = api.text.encode("Hello")[0]
    api.dispatcher.script.output = [[token]]
    text = api.text.vocabulary.piece(token).decode()
    response = await api.http.post("/generate_stream", json={"inputs": [1, 2], "parameters": {}})
    expected = (
        f'data:{{"token":{{"id":{token},"text":"{text}","logprob":-0.25,"special":false,"count_output_tokens":1,'
        '"prompt_tokens":2,"logprobs":null},"generated_text":null,"finished":true,"finish_reason":"stop",'
        '"details":null,"input_usage":{"input_text_tokens":2,"input_cached_tokens":0}}\n\n'
    )
    assert response.content == expected.encode()


async def test_root_is_either_by_its_stream_flag(api: Api) -> None:
    whole = await post(api, "/", inputs="Hi", parameters={})
    assert "generated_text" in whole
    response = await api.http.post("/", json={"inputs": "Hi", "parameters": {}, "stream": True})
    assert response.text.startswith('data:{"token"')


async def test_failure_in_mid_stream_ends_with_a_finished_error_event(api: Api) -> None:
    api.dispatcher.script.output = [api.text.encode("Hello world")]
    api.dispatcher.script.fail_after = 1
    api.dispatcher.script.failure = WorkerFailedError("lost")
    response = await api.http.post("/generate_stream", json={"inputs": "Hi", "parameters": {}})
    last = json.loads(response.text.split("\n\n")[-2][5:])
    assert last["finished"] is True
    assert last["finish_reason"] == "error"
    assert last["error"]["message"] == "lost"


async def test_greedy_unless_do_sample_and_warm_enough(api: Api) -> None:
    for parameters, expected in [
        ({"temperature": 0.7}, 0.0),
        ({"do_sample": True, "temperature": 0.7}, 0.7),
        ({"do_sample": True, "temperature": 1e-6}, 0.0),
        ({"do_sample": True}, 1.0),
    ]:
        await post(api, "/generate", inputs="Hi", parameters=parameters)
        assert api.dispatcher.requests[-1].sampling.temperature == expected


async def test_penalties_are_the_wires(api: Api) -> None:
    """Over the output alone, unless the prompt is to count as well."""
    await post(api, "/generate", inputs="Hi", parameters={"repetition_penalty": 1.5})
    given = {"input_penalty": True, "exponential_decay_length_penalty": [3, 1.5], "print_eos_token": True}
    await post(api, "/generate", inputs="Hi", parameters=given)
    plain, full = api.dispatcher.requests
    assert (plain.sampling.prompt_penalty, plain.sampling.length_penalty) == (PromptPenalty.NONE, None)
    assert not plain.stop.include_eos
    assert (full.sampling.prompt_penalty, full.sampling.length_penalty) == (PromptPenalty.ALL, LengthPenalty(3, 1.5))
    assert full.stop.include_eos


async def test_prompt_logprobs_come_with_the_prompts_ids(api: Api) -> None:
    answer = await post(api, "/generate", inputs=[4, 5, 6], parameters={"prompt_logprobs": 0})
    assert answer["prompt_token_ids"] == [4, 5, 6]
    assert [one and list(one) for one in answer["prompt_logprobs"]] == [None, ["5"], ["6"]]
    for parameters in ({"prompt_logprobs": -1}, {}):
        assert "prompt_logprobs" not in await post(api, "/generate", inputs=[4, 5], parameters=parameters)
    stream = {"inputs": "Hi", "parameters": {"prompt_logprobs": 1}}
    response = await api.http.post("/generate_stream", json=stream)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "parameters.prompt_logprobs")


async def test_a_stream_has_one_choice(api: Api) -> None:
    response = await api.http.post("/generate_stream", json={"inputs": "Hi", "parameters": {"n": 2}})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "parameters.n")


async def test_stop_sequences_are_strings_or_ids(api: Api) -> None:
    pair = api.text.encode("Hé")
    await post(api, "/generate", inputs="Hi", parameters={"stop_sequences": ["END", [7], pair]})
    stop = api.dispatcher.requests[0].stop
    assert stop.stop_strings == ("END", "Hé")
    assert stop.stop_token_ids == (7,)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"inputs": ""}, "inputs"),
        ({"inputs": []}, "inputs"),
        ({"inputs": [-1]}, "inputs"),
        ({"inputs": [99999999]}, "inputs"),
        ({"inputs": "word " * 3000}, "inputs"),
        ({"parameters": {}}, "inputs"),
        ({"inputs": "a", "parameters": {"max_tokens": 4}}, "parameters.max_tokens"),
        ({"inputs": "a", "parameters": {"n": 2, "best_of": 3}}, "parameters.best_of"),
        ({"inputs": "a", "parameters": {"n": 9}}, "parameters.n"),
        ({"inputs": "a", "parameters": {"guided_json": "{"}}, "parameters.guided_json"),
        ({"inputs": "a", "parameters": {"input_penalty": 3}}, "parameters.input_penalty"),
        ({"inputs": "a", "parameters": {"stop_sequences": ["x"] * 11}}, "parameters.stop_sequences"),
        ({"inputs": "a", "parameters": {"stop_sequences": [[99999999]]}}, "parameters.stop_sequences"),
        ({"inputs": "a", "parameters": {"exponential_decay_length_penalty": [1, 0.5]}},
         "parameters.exponential_decay_length_penalty[1]"),
        ({"inputs": "a", "multimodal_params": {"images": [{}]}}, "multimodal_params.images"),
    ],
)  # fmt: skip
async def test_bad_input_names_the_field(api: Api, body: dict[str, Any], param: str) -> None:
    response = await api.http.post("/generate", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert api.dispatcher.requests == []


async def test_information(api: Api) -> None:
    assert await post(api, "/tokens", text="Hello world") == {"ntokens": len(api.text.encode("Hello world"))}
    load = (await api.http.get("/token_load")).json()
    assert load == {"current_load": 0.25, "logical_max_load": 0.5, "dynamic_max_load": 0.75}
    assert (await api.http.get("/get_model_name")).json() == {"model_name": "tiny"}
    assert (await api.http.get("/get_server_info")).json()["models"] == ["tiny"]


async def test_probes_are_well_without_workers_and_readiness_ends_with_the_drain(api: Api) -> None:
    api.models.served.clear()
    for path in ("/health", "/healthz", "/liveness", "/readiness"):
        assert (await api.http.get(path)).status_code == 200
    api.health.ready = False
    assert (await api.http.get("/readiness")).status_code == 503
    assert (await api.http.get("/liveness")).status_code == 200
    api.health.ready = True
