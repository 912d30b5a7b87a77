"""Answers and events of the APIs that agents use, which are made of parts: Responses and Messages."""

import json

from tests.faults.chaos.answers import Answer, Call, Json, Usage


def responses_whole(answer: Answer, body: Json) -> None:
    """A response with all its items."""
    choice = answer.choice(0)
    for item in body["output"]:
        if item["type"] == "function_call":
            choice.calls.append(Call(item["name"], item["arguments"]))
            continue
        text = "".join(part["text"] for part in item["content"])
        if item["type"] == "reasoning":
            choice.thoughts += text
        else:
            choice.text += text
    choice.end(body["status"])
    answer.usage = Usage(body["usage"]["input_tokens"], body["usage"]["output_tokens"])


def responses_event(answer: Answer, event: Json) -> None:
    """One event; the last repeats all that was streamed."""
    answer.num_events += 1
    assert event["sequence_number"] == answer.num_events - 1
    match event["type"]:
        case "response.output_text.delta":
            answer.choice(0).text += event["delta"]
        case "response.reasoning_text.delta":
            answer.choice(0).thoughts += event["delta"]
        case "response.output_item.added" if event["item"]["type"] == "function_call":
            answer.choice(0).calls.append(Call(event["item"]["name"]))
        case "response.function_call_arguments.delta":
            answer.choice(0).calls[-1].arguments += event["delta"]
        case "response.completed" | "response.incomplete":
            streamed = answer.choice(0)
            answer.choices.clear()
            responses_whole(answer, event["response"])
            whole = answer.choices[0]
            assert (whole.text, whole.thoughts, whole.calls) == (streamed.text, streamed.thoughts, streamed.calls)
            answer.is_whole = True
        case "response.failed":
            answer.error = json.dumps(event["response"]["error"])


def messages_whole(answer: Answer, body: Json) -> None:
    """A message with all its blocks."""
    choice = answer.choice(0)
    for block in body["content"]:
        match block["type"]:
            case "text":
                choice.text += block["text"]
            case "thinking":
                choice.thoughts += block["thinking"]
            case "tool_use":
                choice.calls.append(Call(block["name"], json.dumps(block["input"])))
    choice.end(body["stop_reason"], body["stop_sequence"])
    answer.usage = _messages_usage(body["usage"])


def messages_event(answer: Answer, event: Json) -> None:
    """One event; blocks come one after the other."""
    match event["type"]:
        case "content_block_start":
            assert event["index"] == answer.num_blocks
            answer.num_blocks += 1
            if event["content_block"]["type"] == "tool_use":
                answer.choice(0).calls.append(Call(event["content_block"]["name"]))
        case "content_block_stop":
            assert event["index"] == answer.num_blocks - 1
        case "content_block_delta":
            assert event["index"] == answer.num_blocks - 1
            _block_delta(answer, event["delta"])
        case "message_delta":
            answer.choice(0).end(event["delta"]["stop_reason"], event["delta"]["stop_sequence"])
            answer.usage = _messages_usage(event["usage"])
        case "message_stop":
            answer.is_whole = True
        case "error":
            answer.error = json.dumps(event["error"])


def _block_delta(answer: Answer, delta: Json) -> None:
    choice = answer.choice(0)
    match delta["type"]:
        case "text_delta":
            choice.text += delta["text"]
        case "thinking_delta":
            choice.thoughts += delta["thinking"]
        case "input_json_delta":
            choice.calls[-1].arguments += delta["partial_json"]


def _messages_usage(usage: Json) -> Usage:
    return Usage(usage["input_tokens"] + usage["cache_read_input_tokens"], usage["output_tokens"])
