"""Example answers of the OpenAPI document: for each path the whole answer, and where it can stream, its events."""

from collections.abc import Mapping
from typing import Any

from services.common.gateway_messages import WorkerCard

MODEL = "MODEL"
"""Stands in examples for the name of a model that is served."""

_CREATED = 1_764_400_000
_ID = "0f8c2a41d97e4b03a5d1c6e2f7b89a10"
_SAID = "The capital of France is Paris."
_HEAD = {"id": f"chatcmpl-{_ID}", "created": _CREATED, "model": MODEL, "system_fingerprint": "fp_d55d3dfa2cc2f615"}
_TEXT_HEAD = {**_HEAD, "id": f"cmpl-{_ID}", "object": "text_completion"}
_CHUNK = {**_HEAD, "object": "chat.completion.chunk"}
_OPENAI_USAGE = {
    "prompt_tokens": 37, "completion_tokens": 8, "total_tokens": 45, "prompt_tokens_details": {"cached_tokens": 32},
}  # fmt: skip
_NO_LOGPROBS = {"logprobs": None, "finish_reason": None}
_END = {"logprobs": None, "finish_reason": "stop", "stop_reason": None}

_ITEM = {
    "id": f"msg_{_ID}_0", "type": "message", "role": "assistant", "status": "completed",
    "content": [{"type": "output_text", "text": _SAID, "annotations": []}],
}  # fmt: skip
_RESPONSE = {
    "id": f"resp_{_ID}", "object": "response", "created_at": _CREATED, "status": "completed", "error": None,
    "incomplete_details": None, "instructions": None, "max_output_tokens": 32, "model": MODEL, "output": [_ITEM],
    "parallel_tool_calls": True, "previous_response_id": None, "reasoning": {"effort": None, "summary": None},
    "store": False, "temperature": 1.0, "text": {"format": {"type": "text"}}, "tool_choice": "auto", "tools": [],
    "top_p": 1.0, "truncation": "disabled", "user": None, "metadata": {},
    "usage": {
        "input_tokens": 37, "input_tokens_details": {"cached_tokens": 32, "cache_write_tokens": 0},
        "output_tokens": 8, "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 45,
    },
}  # fmt: skip
_BEGUN = {**_RESPONSE, "status": "in_progress", "output": [], "usage": None}
_OF_ITEM = {"item_id": _ITEM["id"], "output_index": 0}
_OF_PART = {**_OF_ITEM, "content_index": 0}
_EMPTY_PART = {"type": "output_text", "text": "", "annotations": []}

_MESSAGE_USAGE = {
    "input_tokens": 5, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 32, "output_tokens": 8,
}  # fmt: skip
_MESSAGE = {
    "id": f"msg_{_ID}", "type": "message", "role": "assistant", "model": MODEL,
    "content": [{"type": "text", "text": _SAID}], "stop_reason": "end_turn", "stop_sequence": None,
    "usage": _MESSAGE_USAGE,
}  # fmt: skip
_MESSAGE_BEGUN = {**_MESSAGE, "content": [], "stop_reason": None, "usage": {**_MESSAGE_USAGE, "output_tokens": 0}}

_GENERATED = {"generated_text": [" blue."], "count_output_tokens": 2, "finish_reason": "stop", "prompt_tokens": 3}


def _native(token: int, text: str, number: int, reason: str | None = None) -> dict[str, Any]:
    return {
        "token": {
            "id": token, "text": text, "logprob": None, "special": False, "count_output_tokens": number,
            "prompt_tokens": 3, "logprobs": None,
        },
        "generated_text": None, "finished": reason is not None, "finish_reason": reason, "details": None,
        "input_usage": {"input_text_tokens": 3, "input_cached_tokens": 0},
    }  # fmt: skip


ANSWERS: Mapping[str, Any] = {
    "/v1/chat/completions": {
        **_HEAD, "object": "chat.completion", "usage": _OPENAI_USAGE,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": _SAID, "refusal": None}, **_END}],
    },
    "/v1/completions": {
        **_TEXT_HEAD, "choices": [{"index": 0, "text": " there was a small village.", **_END}], "usage": _OPENAI_USAGE,
    },
    "/v1/responses": _RESPONSE,
    "/v1/responses/input_tokens": {"object": "response.input_tokens", "input_tokens": 37},
    "/v1/messages": _MESSAGE,
    "/v1/messages/count_tokens": {"input_tokens": 37},
    "/generate": _GENERATED,
    "/generate_stream": _GENERATED,
    "/": _GENERATED,
    "/tokens": {"ntokens": 5},
    "/tokenize": {"count": 3, "max_model_len": 8192, "tokens": [504, 6376, 314], "token_strs": None},
    "/detokenize": {"prompt": "The sky is"},
    "/v1/models": {
        "object": "list",
        "data": [
            {"id": MODEL, "object": "model", "created": _CREATED, "owned_by": "sluice", "max_model_len": 8192}
        ],
    },
    "/v1/models/{model}": {
        "id": MODEL, "object": "model", "created": _CREATED, "owned_by": "sluice", "max_model_len": 8192,
    },
    "/token_load": {"current_load": 0.31, "logical_max_load": 0.62, "dynamic_max_load": 0.7},
    "/get_model_name": {"model_name": MODEL},
    "/get_server_info": {"name": "sluice", "version": "0.1.0", "models": [MODEL], "num_pairs": 1, "max_choices": 16},
    "/version": {"version": "0.1.0"},
    **{path: {"message": "Ok"} for path in ("/health", "/healthz", "/liveness", "/ping", "/readiness")},
    "/console/state": {
        "version": "0.1.0", "models": [MODEL], "num_pairs": 1,
        "stages": {"queued": 0, "prefilling": 1, "transferring": 0, "decoding": 7}, "output_tokens": 48210,
        "workers": [WorkerCard("decode-10.0.0.7:9101", "decode", MODEL, True, False, 7, 0, 0.4, 0.35, 3200, 16384)],
    },
}  # fmt: skip

EVENTS: Mapping[str, list[dict[str, Any]]] = {
    "/v1/chat/completions": [
        {**_CHUNK, "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, **_NO_LOGPROBS}]},
        {**_CHUNK, "choices": [{"index": 0, "delta": {"content": _SAID}, **_NO_LOGPROBS}]},
        {**_CHUNK, "choices": [{"index": 0, "delta": {}, **_END}]},
    ],
    "/v1/completions": [
        {**_TEXT_HEAD, "choices": [{"index": 0, "text": " there was a small", **_NO_LOGPROBS}]},
        {**_TEXT_HEAD, "choices": [{"index": 0, "text": " village.", **_END}]},
    ],
    "/v1/responses": [
        {"type": "response.created", "response": _BEGUN, "sequence_number": 0},
        {"type": "response.in_progress", "response": _BEGUN, "sequence_number": 1},
        {
            "type": "response.output_item.added", "output_index": 0, "sequence_number": 2,
            "item": {**_ITEM, "status": "in_progress", "content": []},
        },
        {"type": "response.content_part.added", **_OF_PART, "part": _EMPTY_PART, "sequence_number": 3},
        {"type": "response.output_text.delta", **_OF_PART, "delta": _SAID, "logprobs": [], "sequence_number": 4},
        {"type": "response.output_text.done", **_OF_PART, "text": _SAID, "logprobs": [], "sequence_number": 5},
        {"type": "response.content_part.done", **_OF_PART, "part": _ITEM["content"][0], "sequence_number": 6},
        {"type": "response.output_item.done", "output_index": 0, "item": _ITEM, "sequence_number": 7},
        {"type": "response.completed", "response": _RESPONSE, "sequence_number": 8},
    ],
    "/v1/messages": [
        {"type": "message_start", "message": _MESSAGE_BEGUN},
        {"type": "ping"},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": _SAID}},
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": _MESSAGE_USAGE,
        },
        {"type": "message_stop"},
    ],
    **{path: [_native(4461, " blue", 1), _native(30, ".", 2, "stop")] for path in ("/generate_stream", "/")},
}  # fmt: skip
