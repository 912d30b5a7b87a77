"""What the OpenAPI document says of each path: in a few words, which body it takes, what it answers, and examples."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from services.pd_master.api.anthropic.answers import (
    AnswerMessage,
    MessageError,
    MessageEvent,
    ModelInfo,
    ModelPage,
    TokenCount,
)
from services.pd_master.api.anthropic.schema import CountBody, MessagesBody
from services.pd_master.api.errors import Error
from services.pd_master.api.native.answers import (
    ConsoleView,
    Generated,
    Health,
    Load,
    ModelName,
    NativeEvent,
    NumTokens,
    ServerInfo,
    Version,
)
from services.pd_master.api.native.schema import GenerateBody, RootBody, TokensBody
from services.pd_master.api.openai.answers import ChatChunk, Completion, ModelCard, ModelList, ScoredChatCompletion
from services.pd_master.api.openai.chat_schema import ChatBody
from services.pd_master.api.openai.completion_schema import CompletionBody
from services.pd_master.api.openai.tokenize import DetokenizeBody, Detokenized, TokenizeBody, Tokens
from services.pd_master.api.openapi_answers import MODEL
from services.pd_master.api.responses.answers import InputTokens, Response, ResponseEvent
from services.pd_master.api.responses.schema import ContextFields, ResponsesBody

Examples = Mapping[str, dict[str, Any]]


class Post(NamedTuple):
    """A path that takes a body. `event`: what each `data:` of its stream holds, where it can stream; `done`: the last
    one holds `[DONE]` instead."""

    summary: str
    body: type
    answer: type
    examples: Examples
    event: type | None = None
    error: type = Error
    done: bool = False


class Get(NamedTuple):
    """A path that only answers: JSON of the type `answer`, or another kind of content. `anthropic`: what a client of
    Anthropic's API gets, which names its version in a header."""

    summary: str
    answer: type | None = None
    content_type: str = "application/json"
    anthropic: type | None = None


_ASK = [{"role": "user", "content": "What is the capital of France?"}]
_CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
_FORM = {"type": "object", "properties": {"capital": {"type": "string"}}, "required": ["capital"]}
_WEATHER = {"name": "weather", "description": "The weather of a city", "parameters": _CITY}
_CHAT = {"model": MODEL, "messages": _ASK, "max_tokens": 32}
_MESSAGE = {"model": MODEL, "max_tokens": 32, "messages": _ASK}
_NATIVE = {"inputs": "The sky is", "parameters": {"max_new_tokens": 8}}

POSTS = {
    "/v1/chat/completions": Post(
        "Chat, OpenAI's API",
        ChatBody,
        ScoredChatCompletion,
        {
            "plain": _CHAT,
            "stream": {**_CHAT, "stream": True, "stream_options": {"include_usage": True}},
            "continued": {
                **_CHAT, "messages": [*_ASK, {"role": "assistant", "content": "It is"}], "continue_final_message": True,
            },
            "json": {
                **_CHAT,
                "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": _FORM}},
            },
            "logprobs": {**_CHAT, "n": 2, "seed": 7, "logprobs": True, "top_logprobs": 2, "stop": ["\n"]},
            "tools": {**_CHAT, "tools": [{"type": "function", "function": _WEATHER}], "tool_choice": "required"},
        },
        ChatChunk,
        done=True,
    ),
    "/v1/completions": Post(
        "Continue a prompt, OpenAI's API",
        CompletionBody,
        Completion,
        {
            "plain": {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 32},
            "stream": {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 32, "stream": True},
            "scored": {
                "model": MODEL, "prompt": "Paris is in France.", "max_tokens": 0, "echo": True, "logprobs": 1,
                "prompt_logprobs": 2,
            },
            "avoiding": {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 32, "bad_words": ["dragon"]},
            "several": {"model": MODEL, "prompt": ["One, two,", "A, B,"], "max_tokens": 8, "temperature": 0},
        },
        Completion,
        done=True,
    ),
    "/v1/responses": Post(
        "A response, OpenAI's API",
        ResponsesBody,
        Response,
        {
            "plain": {"model": MODEL, "input": "Say hello.", "max_output_tokens": 32},
            "stream": {"model": MODEL, "input": "Say hello.", "max_output_tokens": 32, "stream": True},
        },
        ResponseEvent,
    ),
    "/v1/responses/input_tokens": Post(
        "Tokens of a response's input, OpenAI's API",
        ContextFields,
        InputTokens,
        {"plain": {"model": MODEL, "input": "Say hello."}},
    ),
    "/v1/messages": Post(
        "The next message, Anthropic's API",
        MessagesBody,
        AnswerMessage,
        {
            "plain": _MESSAGE,
            "stream": {**_MESSAGE, "stream": True, "system": "Be brief.", "stop_sequences": ["\n"]},
            "tools": {
                **_MESSAGE,
                "tools": [{"name": "weather", "input_schema": _CITY}],
                "tool_choice": {"type": "tool", "name": "weather"},
            },
        },
        MessageEvent,
        MessageError,
    ),
    "/v1/messages/count_tokens": Post(
        "Tokens of messages, Anthropic's API",
        CountBody,
        TokenCount,
        {"plain": {"model": MODEL, "messages": _ASK}},
        error=MessageError,
    ),
    "/generate": Post(
        "Continue a prompt, native API",
        GenerateBody,
        Generated,
        {
            "plain": _NATIVE,
            "penalties": {
                "inputs": "The sky is",
                "parameters": {
                    "repetition_penalty": 1.2, "input_penalty": True, "exponential_decay_length_penalty": [4, 1.2],
                    "max_new_tokens": 8, "prompt_logprobs": 0,
                },
            },
            "details": {
                "inputs": "The sky is",
                "parameters": {"do_sample": True, "top_k": 40, "n": 2, "max_new_tokens": 8, "return_details": True},
            },
        },
    ),
    "/generate_stream": Post(
        "Continue a prompt, an event a token, native API", GenerateBody, Generated, {"plain": _NATIVE}, NativeEvent
    ),
    "/": Post(
        "Either of them, by `stream`, native API",
        RootBody,
        Generated,
        {"plain": {**_NATIVE, "stream": False}, "stream": {**_NATIVE, "stream": True}},
        NativeEvent,
    ),
    "/tokens": Post(
        "Number of a text's tokens, native API", TokensBody, NumTokens, {"plain": {"text": "The sky is blue."}}
    ),
    "/tokenize": Post(
        "Tokens of a text or a chat, as vLLM has it",
        TokenizeBody,
        Tokens,
        {"plain": {"prompt": "The sky is"}, "chat": {"messages": _ASK, "return_token_strs": True}},
    ),
    "/detokenize": Post(
        "Text of tokens, as vLLM has it", DetokenizeBody, Detokenized, {"plain": {"tokens": [72, 101, 108]}}
    ),
}  # fmt: skip

GETS = {
    "/v1/models": Get("Models that are served", ModelList, anthropic=ModelPage),
    "/v1/models/{model}": Get("One model by its name", ModelCard, anthropic=ModelInfo),
    "/token_load": Get("Load as shares of the KV slots", Load),
    "/get_model_name": Get("The model's name", ModelName),
    "/get_server_info": Get("Version, options and models", ServerInfo),
    "/version": Get("Version", Version),
    "/health": Get("Whether the process lives", Health),
    "/healthz": Get("Whether the process lives", Health),
    "/liveness": Get("Whether the process lives", Health),
    "/ping": Get("Whether the process lives", Health),
    "/readiness": Get("Whether it takes new requests", Health),
    "/metrics": Get("Prometheus exposition", None, "text/plain"),
    "/openapi.json": Get("This document"),
    "/": Get("The console page", None, "text/html"),
    "/console/console.css": Get("Its looks", None, "text/css"),
    "/console/console.js": Get("Its script", None, "text/javascript"),
    "/console/state": Get("Workers, load and requests by stage, as the console shows them", ConsoleView),
}
