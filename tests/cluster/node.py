"""A part of the test node that a test takes away and brings back: the API server."""

import os
import subprocess
import time
from pathlib import Path

from tests.cluster.kube import FOLDER, TOOL


def on_node(*command: str) -> str:
    """Run a command in the node's namespaces; its stdout."""
    return subprocess.check_output([os.environ[TOOL], "exec", str(FOLDER), *command], text=True)


class ApiServer:
    """The node's API server process."""

    def __init__(self) -> None:
        self._pid_file = FOLDER / "apiserver.pid"
        text = on_node("cat", f"/proc/{self._pid_file.read_text().strip()}/cmdline")
        self._command = text.rstrip("\0").split("\0")

    def stop(self) -> None:
        """End it, and every connection to it."""
        on_node("kill", "-KILL", self._pid_file.read_text().strip())

    def start(self) -> None:
        """Start it again as it was and wait until it is ready."""
        words = " ".join(f"'{word}'" for word in self._command)
        log, pid = FOLDER / "apiserver.log", self._pid_file
        on_node("sh", "-c", f"setsid nohup {words} >>{log} 2>&1 & echo $! >{pid}")
        deadline = time.monotonic() + 60
        while not self._is_ready():
            assert time.monotonic() < deadline, Path(log).read_text()[-2000:]
            time.sleep(0.5)

    @staticmethod
    def _is_ready() -> bool:
        done = subprocess.run(
            [str(FOLDER / "bin" / "kubectl"), "get", "--raw", "/readyz"],
            env=os.environ | {"KUBECONFIG": str(FOLDER / "admin.kubeconfig")}, capture_output=True, check=False,
        )  # fmt: skip
        return done.returncode == 0
