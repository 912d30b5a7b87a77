"""Log lines carry the request id and, as JSON, stay one line with the traceback inside."""

import json
import logging
from collections.abc import Callable, Iterator

import pytest

from services.common.log import configure_logging


@pytest.fixture
def stderr(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[[], str]]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield lambda: capsys.readouterr().err
    root.handlers[:] = handlers
    root.setLevel(level)


def test_text_line_names_request_and_module(stderr: Callable[[], str]) -> None:
    configure_logging("decode-0", level="info", format="text")
    logging.getLogger("services.decode.service").info("joined after %s ms", 3, extra={"request_id": "ab12"})
    assert stderr().rstrip().endswith("INFO    decode.service [ab12] joined after 3 ms")


def test_json_line_holds_traceback_and_process(stderr: Callable[[], str]) -> None:
    configure_logging("decode-0", level="info", format="json")
    try:
        raise ValueError("no")
    except ValueError:
        logging.getLogger("services.x").exception("broke", extra={"request_id": "ab12"})
    (line,) = stderr().splitlines()
    entry = json.loads(line)
    assert entry["process"] == "decode-0"
    assert entry["request_id"] == "ab12"
    assert entry["level"] == "error"
    assert "ValueError: no" in entry["exception"]


def test_lines_below_the_level_are_dropped(stderr: Callable[[], str]) -> None:
    configure_logging("p", level="warning")
    logging.getLogger("services.x").info("quiet")
    logging.getLogger("httpx").info("quiet")
    assert stderr() == ""
