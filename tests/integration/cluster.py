"""A whole Sluice on loopback for tests: the real commands as processes that can be killed and started again."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.ports import free_ports

START_TIMEOUT_S = 240.0
"""Of a machine that has much else to do."""
PAGE_S = 60.0
PATIENT = ["--queue-budget-s", "86400", "--deadline-s", "86400", "--worker-timeout-s", "30"]
"""A gateway's: on a busy machine requests wait long, or are predicted to, and a worker that is slow to speak is not
lost. An option of the test's own behind it counts."""
POLL_S = 0.1


def http_get(url: str, timeout_s: float = 10.0) -> tuple[int, str]:
    """Status and body; status 0 when nobody answers."""
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


@dataclass
class Process:
    """One `sluice` command under test; its output goes to a log file."""

    name: str
    arguments: list[str]
    log: Path
    http_port: int
    popen: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it (again)."""
        with self.log.open("ab") as log:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", "services.cli.child", str(os.getpid()), *self.arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
            )

    def kill(self) -> None:
        """`kill -9` the process and all it has started, as a lost pod loses them."""
        self._signal_group(signal.SIGKILL)

    def pause(self) -> None:
        """Stop it without ending it: a wedged pod."""
        self._signal_group(signal.SIGSTOP)

    def resume(self) -> None:
        """Undo `pause`."""
        self._signal_group(signal.SIGCONT)

    def pause_engine(self) -> None:
        """Stop a worker's engine alone: its control process answers, its device does nothing."""
        os.kill(self.engine_pid(), signal.SIGSTOP)

    def resume_engine(self) -> None:
        """Undo `pause_engine`."""
        os.kill(self.engine_pid(), signal.SIGCONT)

    def engine_pid(self) -> int:
        """The engine that this worker's control process started."""
        assert self.popen is not None
        family = [self.popen.pid]
        for pid in family:
            if b"services.engine.main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
            family += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        raise AssertionError(f"{self.name} has no engine:\n{self.tail()}")

    def stop(self, timeout_s: float = 60.0) -> int:
        """SIGTERM, then its exit status; a process that outlives the timeout is killed and fails the test."""
        assert self.popen is not None
        self.popen.terminate()
        try:
            return self.popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self.name} did not end within {timeout_s} s of SIGTERM:\n{self.tail()}") from None

    def tail(self, lines: int = 40) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:]) if self.log.exists() else ""

    @property
    def running(self) -> bool:
        """Started and not ended."""
        return self.popen is not None and self.popen.poll() is None

    def ready(self) -> bool:
        """Its own /readiness."""
        return http_get(f"http://127.0.0.1:{self.http_port}/readiness")[0] == 200

    def metrics(self) -> str:
        """Its own /metrics; empty when it has ended. Raises AssertionError when it runs and does not answer."""
        deadline = time.monotonic() + PAGE_S
        while self.running:
            status, page = http_get(f"http://127.0.0.1:{self.http_port}/metrics")
            if status == 200:
                return page
            assert time.monotonic() < deadline, f"{self.name} runs and has no /metrics ({status}):\n{self.tail()}"
            time.sleep(POLL_S)
        return ""

    def value(self, series: str) -> float:
        """One of its metrics without labels; 0 as long as it was not told, and when the process has ended."""
        found = re.search(rf"^{re.escape(series)} (\S+)$", self.metrics(), re.MULTILINE)
        return float(found.group(1)) if found else 0.0

    def _signal_group(self, number: int) -> None:
        assert self.popen is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.popen.pid, number)
        if number == signal.SIGKILL:
            self.popen.wait(10)


@dataclass
class Cluster:
    """pd_master, prefill and decode workers as processes of this machine."""

    model: Path
    logs: Path
    prefill: int = 1
    decode: int = 1
    worker_options: list[str] = field(default_factory=list)
    gateway_options: list[str] = field(default_factory=list)
    local_prefill_tokens: int = 0
    """Every prompt goes the whole way, unless a test is about the short cut."""
    own_options: dict[str, list[str]] = field(default_factory=dict)
    """By the worker's name, such as "decode-1"."""
    processes: dict[str, Process] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Lay out ports and commands; nothing runs yet."""
        names = [f"prefill-{i}" for i in range(self.prefill)] + [f"decode-{i}" for i in range(self.decode)]
        ports = iter(free_ports(2 * len(names) + 2))
        addresses = []
        for name in names:
            grpc_port, http_port = next(ports), next(ports)
            addresses.append(f"127.0.0.1:{grpc_port}")
            self._add(
                name,
                name.split("-")[0],
                grpc_port,
                http_port,
                [*self._worker_options(grpc_port), *self.own_options.get(name, [])],
            )
        self.grpc_port, self.http_port = next(ports), next(ports)
        workers = ["--workers", ",".join(addresses)]
        options = [*workers, "--local-prefill-tokens", str(self.local_prefill_tokens), *PATIENT, *self.gateway_options]
        self._add("pd-master", "pd-master", self.grpc_port, self.http_port, options)

    @property
    def url(self) -> str:
        """Base URL of the gateway."""
        return f"http://127.0.0.1:{self.http_port}"

    def __enter__(self) -> "Cluster":
        try:
            for process in self.processes.values():
                process.start()
            self.wait_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every process, whatever state it is in."""
        for process in self.processes.values():
            if process.popen is not None:
                process.kill()

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Until the gateway serves a model and sees every worker that runs, with every pair proven."""
        deadline = time.monotonic() + timeout_s
        while not self._all_ready():
            for process in self.processes.values():
                if process.popen is not None and process.popen.poll() not in {None, -signal.SIGKILL}:
                    raise AssertionError(f"{process.name} ended with {process.popen.returncode}:\n{process.tail()}")
            if time.monotonic() > deadline:
                tails = "\n".join(f"--- {p.name}\n{p.tail(15)}" for p in self.processes.values())
                raise AssertionError(f"not ready within {timeout_s} s:\n{tails}")
            time.sleep(POLL_S)

    def _all_ready(self) -> bool:
        if not all(process.ready() for process in self.processes.values() if process.running):
            return False
        num_pairs = self._num_running("prefill") * self._num_running("decode")
        status, body = http_get(self.url + "/get_server_info")
        if status != 200:
            return False
        info = json.loads(body)
        return bool(info["models"]) and info["num_pairs"] == num_pairs

    def _num_running(self, role: str) -> int:
        return sum(process.running for process in self.workers(role))

    def workers(self, role: str) -> Iterator[Process]:
        """The worker processes of a role."""
        return (process for name, process in self.processes.items() if name.startswith(role))

    def _worker_options(self, grpc_port: int) -> list[str]:
        address = ["--advertise-address", f"127.0.0.1:{grpc_port}"]
        return ["--model", str(self.model), "--threads", "1", *address, *self.worker_options]

    def _add(self, name: str, command: str, grpc_port: int, http_port: int, options: list[str]) -> None:
        network = ["--host", "127.0.0.1", "--grpc-port", str(grpc_port), "--http-port", str(http_port)]
        self.processes[name] = Process(name, [command, *network, *options], self.logs / f"{name}.log", http_port)
