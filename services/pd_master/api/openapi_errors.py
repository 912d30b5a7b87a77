"""What the OpenAPI document says of errors: for each status what it means, and an error as the API writes it."""

import json
from typing import Any

from services.common.errors import (
    DeadlineError,
    InvalidRequestError,
    ModelNotFoundError,
    NoWorkerError,
    OverloadedError,
    RequestTooLargeError,
    SluiceError,
    WorkerFailedError,
)
from services.pd_master.api.errors import ErrorShape, retry_after
from services.pd_master.keys import UnauthenticatedError

_EXAMPLES = {
    "400": (
        "A field is wrong; the error names it",
        InvalidRequestError("top_p: Expected `float`", param="top_p"),
    ),
    "401": ("The API key is missing or not known", UnauthenticatedError("this API key is not known")),
    "404": ("No such model", ModelNotFoundError("no model 'gpt' is served here; there are: 'demo'", param="model")),
    "413": (
        "The body is too large",
        RequestTooLargeError("the request body is larger than the 33554432 bytes of --max-body-bytes"),
    ),
    "429": (
        "Overload, or a limit of the key; Retry-After says when to come back",
        OverloadedError("the request waited 60 s without being started", retry_after_s=2),
    ),
    "500": ("The serving system failed", WorkerFailedError("the workers failed while they held this request")),
    "503": ("No worker; Retry-After says when to come back", NoWorkerError("no decode worker is ready")),
    "504": ("The request's deadline passed", DeadlineError("the request's deadline of 600 s passed")),
}
STATUSES = tuple(_EXAMPLES)


def error_answer(status: str, schema: dict[str, Any], shape: ErrorShape) -> dict[str, Any]:
    """The response object of a status. `shape`: how the path's API writes errors."""
    description, error = _EXAMPLES[status]
    examples = {type(error).code: {"value": _shown(error, shape)}}
    content = {"application/json": {"schema": schema, "examples": examples}}
    answer: dict[str, Any] = {"description": description, "content": content}
    if retry_after(error):
        seconds = {"description": "Seconds", "required": True, "schema": {"type": "integer", "minimum": 1}}
        answer["headers"] = {"Retry-After": seconds}
    return answer


def _shown(error: SluiceError, shape: ErrorShape) -> Any:  # noqa: ANN401 - JSON
    return json.loads(shape(error))
