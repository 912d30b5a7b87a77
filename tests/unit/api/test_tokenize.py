"""`/tokenize`, `/detokenize`, `/version` and `/ping`, as vLLM's clients ask for them."""

from importlib.metadata import version
from typing import Any

import pytest

from tests.unit.api.conftest import Api
from tests.unit.api.test_continued import ASK, BEGUN


async def test_tokens_of_texts_and_chats_are_those_of_their_prompts(api: Api) -> None:
    async def tokenize(**body: Any) -> Any:  # noqa: ANN401
        return (await api.http.post("/tokenize", json=body)).json()

    text = await tokenize(prompt="Hello", return_token_strs=True)
    assert text["tokens"] == api.text.encode("Hello")
    assert (text["count"], text["max_model_len"]) == (len(text["tokens"]), 512)
    assert "".join(text["token_strs"]) == "Hello"
    for extra in ({}, {"continue_final_message": True}):
        chat = await tokenize(messages=BEGUN, model="tiny", **extra)
        await api.http.post("/v1/chat/completions", json={"model": "tiny", "messages": BEGUN, **extra})
        assert chat["tokens"] == api.dispatcher.requests[-1].prompt_ids
        back = await api.http.post("/detokenize", json={"tokens": chat["tokens"]})
        assert back.json() == {"prompt": api.text.decode(chat["tokens"])}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": BEGUN}, "prompt"),
        ("/tokenize", {"prompt": "x" * 50_000}, "prompt"),
        ("/tokenize", {"messages": ASK, "continue_final_message": True}, "continue_final_message"),
        ("/detokenize", {"tokens": [10**9]}, "tokens"),
    ],
)
async def test_what_has_no_tokens_or_text_is_refused_by_name(
    api: Api, path: str, body: dict[str, Any], param: str
) -> None:
    answer = await api.http.post(path, json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


async def test_version_and_ping_answer(api: Api) -> None:
    assert (await api.http.get("/version")).json() == {"version": version("sluice")}
    assert (await api.http.get("/ping")).status_code == 200
