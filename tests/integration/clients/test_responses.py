"""OpenAI's client and the Responses API: text, events, structured output, errors."""

import openai
import pytest

from tests.integration.clients.conftest import Client
from tests.integration.clients.test_chat import ANSWER, Place

QUESTION = "What is the capital of France?"


def test_a_response_has_its_text_and_usage(gpt: Client, demo: str) -> None:
    response = gpt.responses.create(model=demo, input=QUESTION, temperature=0)
    assert (response.status, response.output_text) == ("completed", ANSWER)
    assert response.usage.output_tokens == 8
    short = gpt.responses.create(model=demo, input=QUESTION, temperature=0, max_output_tokens=3)
    assert (short.status, short.incomplete_details.reason) == ("incomplete", "max_output_tokens")


def test_events_add_up_to_the_response(gpt: Client, demo: str) -> None:
    with gpt.responses.stream(model=demo, input=QUESTION, temperature=0) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == ANSWER
    assert (events[0].type, events[-1].type) == ("response.created", "response.completed")
    assert final.output_text == ANSWER


def test_structured_output_is_parsed_into_a_model(gpt: Client, model: str) -> None:
    response = gpt.responses.parse(
        model=model, input=QUESTION, text_format=Place, max_output_tokens=100, temperature=0,
        reasoning={"effort": "none"},
    )  # fmt: skip
    assert isinstance(response.output_parsed, Place)


def test_earlier_responses_are_refused_by_name(gpt: Client, model: str) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        gpt.responses.create(model=model, input=QUESTION, previous_response_id="resp_1")
    assert raised.value.param == "previous_response_id"
