"""`sluice up` for the length of a measurement."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TextIO

import httpx

from services.common.ports import free_ports


@contextlib.contextmanager
def serving(
    options: Sequence[str], *, num_pairs: int = 1, ready_s: float = 120.0, log: TextIO | None = None
) -> Iterator[str]:
    """Start it with free ports and these options, and yield its URL once `num_pairs` pairs of workers serve.

    Its output goes to `log`, or where this process's goes. Raises RuntimeError when it ends or is not ready in time.
    """
    http_port, grpc_port = free_ports(2)
    ports = ["--http-port", str(http_port), "--grpc-port", str(grpc_port)]
    command = [sys.executable, "-m", "services.cli.main", "up", *options, *ports]
    process = subprocess.Popen(command, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{http_port}"
    try:
        _wait_served(url, process, num_pairs, ready_s)
        yield url
    finally:
        process.terminate()
        process.wait(30)


def _wait_served(url: str, process: subprocess.Popen[bytes], num_pairs: int, ready_s: float) -> None:
    deadline = time.monotonic() + ready_s
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{url}/get_server_info", timeout=2).json()["num_pairs"] >= num_pairs:
                return
        time.sleep(0.2)
    if process.poll() is not None:
        raise RuntimeError(f"sluice up ended with status {process.returncode} before it served; its log says why")
    raise RuntimeError(f"sluice up did not serve {num_pairs} pairs within {ready_s:g} s")
