"""Errors as `google.rpc.Status` with details: which field, when to come back, and the error's name."""

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from services.common.errors import SluiceError

_DOMAIN = "sluice"


def status_of(error: SluiceError) -> status_pb2.Status:
    """The status a client receives. `BadRequest` names the field, `RetryInfo` the wait, `ErrorInfo` the error."""
    details: list[Message] = [error_details_pb2.ErrorInfo(reason=error.code.upper(), domain=_DOMAIN)]
    if error.param is not None:
        violation = error_details_pb2.BadRequest.FieldViolation(field=error.param, description=error.message)
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if error.retryable:
        wait = duration_pb2.Duration()
        wait.FromNanoseconds(round((error.retry_after_s or 1.0) * 1e9))
        details.append(error_details_pb2.RetryInfo(retry_delay=wait))
    code = grpc.StatusCode[error.grpc_status].value[0]
    return status_pb2.Status(code=code, message=error.message, details=[_packed(detail) for detail in details])


def _packed(detail: Message) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(detail)
    return packed
