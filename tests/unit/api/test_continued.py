"""`continue_final_message`, as vLLM's and SGLang's clients send it."""

from typing import Any

import pytest

from services.common.errors import InvalidRequestError
from services.pd_master.api.openai.continued import cut_after
from tests.unit.api.conftest import Api

ASK: list[Any] = [{"role": "user", "content": "Where?"}]
BEGUN = [*ASK, {"role": "assistant", "content": "It is in "}]
CALL = {"role": "assistant", "content": "x", "tool_calls": [{"function": {"name": "f"}}]}


async def test_the_prompt_ends_within_the_last_message(api: Api) -> None:
    body = {"model": "tiny", "messages": BEGUN, "continue_final_message": True, "add_generation_prompt": False}
    assert (await api.http.post("/v1/chat/completions", json=body)).status_code == 200
    prompt = api.text.decode(api.dispatcher.requests[0].prompt_ids)
    assert prompt.endswith("<|im_start|>assistant\nIt is in ")


@pytest.mark.parametrize(
    "change",
    [{"messages": ASK}, {"messages": [*ASK, CALL]}, {"add_generation_prompt": True}],
    ids=["of the user's", "with a call", "and a new one"],
)
async def test_nothing_to_go_on_with_is_refused_by_name(api: Api, change: dict[str, Any]) -> None:
    body = {"model": "tiny", "messages": BEGUN, "continue_final_message": True, **change}
    answer = await api.http.post("/v1/chat/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "continue_final_message")


def test_templates_may_trim_a_message_but_not_rewrite_it() -> None:
    assert cut_after("user: a\nassistant: a b<end>", " a b\n") == "user: a\nassistant: a b"
    with pytest.raises(InvalidRequestError, match="continue_final_message"):
        cut_after("assistant: A B<end>", "a b")
