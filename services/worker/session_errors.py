"""How a session between pods ends, as the protos promise. Each end is followed by another session or by none."""

from services.common.errors import SluiceError


class ProtocolMismatchError(SluiceError):
    """The first message was no hello, or it speaks another protocol or is of another group."""

    code = "protocol_mismatch"
    http_status = 412
    grpc_status = "FAILED_PRECONDITION"


class SupersededError(SluiceError):
    """A newer session of the same peer took its place."""

    code = "superseded"
    http_status = 409
    grpc_status = "ABORTED"


class LeavingError(SluiceError):
    """This worker leaves, or is not ready yet."""

    code = "leaving"
    http_status = 503
    grpc_status = "UNAVAILABLE"
    retryable = True


class SessionOverflowError(SluiceError):
    """The other side has not read for so long that its session is ended."""

    code = "session_overflow"
    http_status = 503
    grpc_status = "RESOURCE_EXHAUSTED"


class UnwritableError(SluiceError):
    """What is to be said makes no message: a fault of this program, or stubs of another version."""

    code = "unwritable"
