"""Hooks of schemathesis: `SCHEMATHESIS_HOOKS=tests.integration.api.fuzz_hooks`."""

from typing import Any

import schemathesis

LIMITS = {
    "/v1/chat/completions": "max_completion_tokens",
    "/v1/completions": "max_tokens",
    "/v1/responses": "max_output_tokens",
    "/generate": "max_new_tokens",
    "/generate_stream": "max_new_tokens",
    "/": "max_new_tokens",
}
"""The field of each path without which an answer may fill the model's context."""


@schemathesis.hook
def before_load_schema(context: Any, schema: dict[str, Any]) -> None:  # noqa: ANN401, ARG001 - schemathesis' own
    """Bodies name the model that is served: any other is a 404 before anything of interest has happened."""
    body = schema["paths"]["/v1/completions"]["post"]["requestBody"]["content"]["application/json"]
    model = body["examples"]["plain"]["value"]["model"]
    for found in schema["components"]["schemas"].values():
        if found.get("additionalProperties") is False and "model" in found["properties"]:
            may_miss = "anyOf" in found["properties"]["model"]
            found["properties"]["model"] = {"enum": [model, None] if may_miss else [model]}


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:  # noqa: ANN401, ARG001
    """Answers are short where the body leaves their length open, so that time goes into many bodies."""
    field = LIMITS.get(case.operation.path)
    if field is None or not isinstance(case.body, dict):
        return
    where = case.body.setdefault("parameters", {}) if field == "max_new_tokens" else case.body
    if isinstance(where, dict) and where.get(field) is None and where.get("max_tokens") is None:
        where[field] = 4
