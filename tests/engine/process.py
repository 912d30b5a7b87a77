"""A real engine process on the other end of a real ZMQ socket, driven without asyncio."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import msgspec
import zmq

from services.common import ipc
from services.engine.config import EngineConfig
from tests.engine.driver import engine_config

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 120.0
E = TypeVar("E", bound=ipc.Event)


class EngineProcess:
    """Started by a test, which sends commands and waits for events; of several ranks, as many processes."""

    def __init__(self, folder: Path, socket_folder: Path, *, wait: bool = True, **changes: Any) -> None:
        worker_id = changes.setdefault("worker_id", changes.get("role", "engine"))
        endpoint = f"ipc://{socket_folder / changes.pop('socket_name', worker_id)}.sock"
        changes.setdefault("incarnation", f"{worker_id}-start")
        module = changes.pop("module", "services.engine.main")
        if changes.get("num_ranks", 1) > 1:
            changes["rendezvous"] = str(socket_folder / f"{worker_id}-ranks")
            Path(changes["rendezvous"]).mkdir()
        config = msgspec.structs.replace(engine_config(folder), **({"endpoint": endpoint} | changes))
        self.config = config
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PAIR)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(endpoint)
        self.ranks = [_start(module, msgspec.structs.replace(config, rank=rank)) for rank in range(config.num_ranks)]
        self.process = self.ranks[0]
        self.events: list[ipc.Event] = []
        self._unread: list[ipc.Event] = []
        if wait:
            self.ready = self.wait(ipc.EngineReady)

    def send(self, *commands: ipc.Command) -> None:
        """One frame."""
        self._socket.send(ipc.encode(list(commands)))

    def wait(self, kind: type[E], where: Callable[[E], bool] = lambda _: True) -> E:
        """The next event of a kind, passing over others; all are kept in `events`."""
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            while self._unread:
                event = self._unread.pop(0)
                if isinstance(event, kind) and where(event):
                    return event
            if self._socket.poll(200):
                self._unread = ipc.decode_events(self._socket.recv())
                self.events += self._unread
            elif any(process.poll() is not None for process in self.ranks):
                break
        log = self.stop()
        raise AssertionError(f"no {kind.__name__} came; the engine's log ends:\n{log[-3000:]}")

    def outputs(self, job_id: int, choice: int = 0) -> list[int]:
        """Tokens reported so far."""
        steps = [event for event in self.events if isinstance(event, ipc.StepDone)]
        return [
            token
            for step in steps
            for output in step.outputs
            if (output.job_id, output.choice) == (job_id, choice)
            for token in output.token_ids
        ]

    def check(self) -> ipc.Integrity:
        """Ask for integrity; nothing may be left over."""
        self.send(ipc.CheckIntegrity(7))
        answer = self.wait(ipc.Integrity)
        assert answer.problems == []
        assert answer.num_jobs == 0
        assert answer.usage.held_slots == answer.usage.reserved_slots == 0
        assert answer.usage.pages_in_use == answer.usage.pages_quarantined == 0
        return answer

    def stop(self) -> str:
        """Kill it if it runs; returns its log, of all ranks."""
        log = ""
        for process in self.ranks:
            if process.poll() is None:
                process.kill()
            assert process.stderr is not None
            log += process.stderr.read()
            process.wait()
        self._socket.close()
        return log

    def __enter__(self) -> "EngineProcess":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _start(module: str, config: EngineConfig) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-m", module, "-"],
        stdin=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write(json.dumps(msgspec.to_builtins(config)) + "\n")
    process.stdin.flush()
    return process
