"""Logging of every process: one line an event, text for people or JSON for collectors, with the request it belongs to.

A line names its request by `extra={"request_id": ...}`.
"""

import logging
import sys
import time
import traceback

import msgspec

_QUIET_LOGGERS = ("asyncio", "grpc", "httpcore", "httpx", "urllib3")


def configure_logging(process: str, *, level: str = "info", format: str = "text") -> None:  # noqa: A002 - option's name
    """Send all log lines of this process to stderr; called once, first thing in a process's main.

    `process` names the process in each line, such as `prefill-0`. `level` and `format` are LogOptions' values.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(process) if format == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in _QUIET_LOGGERS:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))


class TextFormatter(logging.Formatter):
    """`13:45:10.123 INFO  services.decode.service [1f0c…] message`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, with the traceback below it where there is one."""
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        request_id = getattr(record, "request_id", "")
        name = record.name.removeprefix("services.")
        line = f"{clock}.{record.msecs:03.0f} {record.levelname:<7} {name}{f' [{request_id}]' if request_id else ''}"
        text = f"{line} {record.getMessage()}"
        return f"{text}\n{_traceback(record)}" if record.exc_info else text


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (RFC 3339, UTC), level, process, logger, request_id, message, exception."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """Return the line; keys without a value are left out."""
        clock = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{clock}.{min(int(record.msecs), 999):03d}Z",
            "level": record.levelname.lower(),
            "process": self._process,
            "logger": record.name,
            "request_id": getattr(record, "request_id", None),
            "message": record.getMessage(),
            "exception": _traceback(record) if record.exc_info else None,
        }
        return msgspec.json.encode({key: value for key, value in line.items() if value is not None}).decode()


def _traceback(record: logging.LogRecord) -> str:
    return "".join(traceback.format_exception(*record.exc_info)).rstrip() if record.exc_info else ""
