"""`sluice up` as a newcomer meets it: ready, one curl to paste, Ctrl-C leaves nothing; a lost process ends all."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

READY_WITHIN_S = 240.0
STOP_WITHIN_S = 90.0


class Up:
    """One running `sluice up` and what it has printed."""

    def __init__(self, log_dir: Path, *flags: str) -> None:
        self.log = log_dir / "up.log"
        command = [sys.executable, "-m", "services.cli.main", "up", "--http-port=0", "--grpc-port=0", *flags]
        self._log_file = self.log.open("w")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._log_file, text=True)

    def until_ready(self) -> str:
        """Return the banner; fails with the log when it does not come."""
        assert self.process.stdout is not None
        watchdog = threading.Timer(READY_WITHIN_S, self.process.terminate)
        watchdog.start()
        lines: list[str] = []
        for line in self.process.stdout:
            lines.append(line)
            if line.startswith("Ctrl-C"):
                watchdog.cancel()
                return "".join(lines)
        watchdog.cancel()
        pytest.fail(f"never ready:\n{self.log.read_text()[-4000:]}")

    def children(self) -> list[psutil.Process]:
        """Every process below, engines included."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def child(self, command: str) -> psutil.Process:
        """The direct child that runs `sluice COMMAND`."""
        below = psutil.Process(self.process.pid).children()
        (found,) = (process for process in below if command in process.cmdline())
        return found

    def close(self) -> None:
        """Leave nothing behind, however the test went."""
        self.process.terminate()
        try:
            self.process.wait(STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._log_file.close()


@pytest.fixture
def up(model_dir: Path, tmp_path: Path) -> Iterator[Up]:
    running = Up(tmp_path, f"--model={model_dir}", "--dtype=float32", "--kv-pool-tokens=4096", "--drain-s=20")
    yield running
    running.close()


def _curl_of(banner: str) -> list[str]:
    """The command of the banner as a shell would split it."""
    text = banner[banner.index("curl ") : banner.index("Ctrl-C")].replace("\\\n", " ").strip()
    split = subprocess.run(["bash", "-c", f"printf '%s\\0' {text}"], capture_output=True, text=True, check=True).stdout
    return split.split("\0")[:-1]


def test_pasted_curl_streams_the_answer_and_interrupt_leaves_nothing(up: Up) -> None:
    words = _curl_of(up.until_ready())
    url, body = words[2], words[words.index("-d") + 1]
    with httpx.stream("POST", url, content=body, headers={"Content-Type": "application/json"}, timeout=200) as answer:
        text = answer.read().decode()
    assert answer.status_code == 200
    assert text.rstrip().endswith("data: [DONE]")
    assert "Paris" in "".join(re.findall(r'"content": ?"([^"]*)"', text))
    children = up.children()
    assert len(children) >= 5  # pd_master, two control processes, two engines
    up.process.send_signal(signal.SIGINT)
    assert up.process.wait(STOP_WITHIN_S) == 0, up.log.read_text()[-4000:]
    assert [process.pid for process in children if process.is_running()] == []


def test_lost_process_stops_the_others_and_is_named(up: Up) -> None:
    up.until_ready()
    children = up.children()
    os.kill(up.child("decode").pid, signal.SIGKILL)
    assert up.process.wait(STOP_WITHIN_S) == 128 + signal.SIGKILL
    assert "decode-0 ended with status 137; stopping the others" in up.log.read_text()
    _, alive = psutil.wait_procs(children, timeout=60)
    assert alive == []


def test_who_did_not_answer_in_time_is_named(model_dir: Path, tmp_path: Path) -> None:
    late = Up(tmp_path, f"--model={model_dir}", "--start-timeout-s=1")
    try:
        assert late.process.wait(STOP_WITHIN_S) == 1
        assert "prefill-0 after 1 s (--start-timeout-s); stopping" in late.log.read_text()
    finally:
        late.close()
