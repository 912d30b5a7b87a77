"""Every error a client can see: a name, an HTTP status, a gRPC status, and whether trying again can help.

Raised anywhere in the control stack, turned into an answer only at the HTTP handler and the gRPC interceptor.
"""

from typing import ClassVar


class SluiceError(Exception):
    """Base of all errors with a meaning for the caller; `message` is written for a person."""

    code: ClassVar[str] = "internal_error"
    http_status: ClassVar[int] = 500
    grpc_status: ClassVar[str] = "INTERNAL"
    """Name of a `grpc.StatusCode` member."""
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        """The request field at fault, where there is one."""
        self.retry_after_s = retry_after_s


class InvalidRequestError(SluiceError):
    """The request itself is wrong; `param` names the field."""

    code = "invalid_request"
    http_status = 400
    grpc_status = "INVALID_ARGUMENT"


class ContextLengthError(InvalidRequestError):
    """Prompt plus the tokens asked for do not fit the model's context or the pool of any worker."""

    code = "context_length_exceeded"


class ModelNotFoundError(SluiceError):
    """No such model here; the message lists those that are."""

    code = "model_not_found"
    http_status = 404
    grpc_status = "NOT_FOUND"


class RequestTooLargeError(SluiceError):
    """The body is larger than the gateway accepts."""

    code = "request_too_large"
    http_status = 413
    grpc_status = "RESOURCE_EXHAUSTED"


class OverloadedError(SluiceError):
    """Queues are full or the queue budget ran out; nothing was computed for the client yet."""

    code = "overloaded"
    http_status = 429
    grpc_status = "RESOURCE_EXHAUSTED"
    retryable = True


class NoWorkerError(SluiceError):
    """No ready prefill or decode worker of one group."""

    code = "no_worker"
    http_status = 503
    grpc_status = "UNAVAILABLE"
    retryable = True


class ShuttingDownError(SluiceError):
    """This gateway ends and cannot wait for the request any longer; another one may take it."""

    code = "shutting_down"
    http_status = 503
    grpc_status = "UNAVAILABLE"
    retryable = True


class DeadlineError(SluiceError):
    """The request's total deadline passed."""

    code = "deadline_exceeded"
    http_status = 504
    grpc_status = "DEADLINE_EXCEEDED"
    retryable = True


class RequestAbortedError(SluiceError):
    """The client or an operator ended the request."""

    code = "aborted"
    http_status = 499
    grpc_status = "CANCELLED"


class WorkerFailedError(SluiceError):
    """Workers failed while they held this request and no attempt is left (R12)."""

    code = "worker_failed"
    http_status = 500
    grpc_status = "INTERNAL"
    retryable = True
