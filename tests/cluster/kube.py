"""A real one-node Kubernetes for tests, and what tests ask of it. Found through SLUICE_TEST_CLUSTER.

The node has a network namespace of its own, which this process enters: pods and Services then answer it directly.
Nothing needs cluster DNS. One such cluster at a time on a machine.
"""

import ctypes
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TOOL = "SLUICE_TEST_CLUSTER"
FOLDER = Path("/tmp/sluice-k8s")
_CLONE_NEWNET = 0x40000000
_POLL_S = 0.3

Manifest = dict[str, Any]


class Kube:
    """kubectl on the running cluster, and what is built of it. Made by `running_cluster`."""

    def __init__(self, namespace: str = "serving") -> None:
        self.namespace = namespace
        self.kubeconfig = FOLDER / "admin.kubeconfig"

    def kubectl(self, *words: str, stdin: str | None = None, check: bool = True) -> str:
        """Run kubectl in the namespace; its stdout. Raises AssertionError with its stderr."""
        done = subprocess.run(
            [str(FOLDER / "bin" / "kubectl"), "--namespace", self.namespace, *words],
            env=os.environ | {"KUBECONFIG": str(self.kubeconfig)},
            input=stdin, capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip
        if check and done.returncode:
            raise AssertionError(f"kubectl {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def get(self, kind: str, *words: str) -> list[Manifest]:
        """Objects of a kind."""
        items: list[Manifest] = json.loads(self.kubectl("get", kind, "-o", "json", *words))["items"]
        return items

    def pods(self, component: str) -> list[Manifest]:
        """The pods of a component, oldest first."""
        found = self.get("pods", "-l", f"app.kubernetes.io/component={component}")
        return sorted(found, key=lambda one: str(one["metadata"]["creationTimestamp"]))

    def ready_pods(self, component: str) -> list[str]:
        """Names of the Ready pods that are not on their way out."""
        return [one["metadata"]["name"] for one in self.pods(component) if is_ready(one)]

    def service_url(self, name: str, port: int) -> str:
        """A Service's URL by its cluster IP."""
        (found,) = (one for one in self.get("services") if one["metadata"]["name"] == name)
        return f"http://{found['spec']['clusterIP']}:{port}"

    def wait(self, what: str, holds: Callable[[], bool], timeout_s: float = 120.0) -> float:
        """Wait until something holds and return how long it took; an AssertionError shows the pods as they are."""
        start = time.monotonic()
        while not holds():
            if time.monotonic() - start > timeout_s:
                raise AssertionError(f"{what}: not within {timeout_s} s\n{self.describe()}")
            time.sleep(_POLL_S)
        return time.monotonic() - start

    def scale(self, component: str, replicas: int) -> None:
        """Set a component's replicas and wait until as many are Ready and no other pod is left."""
        self.kubectl("scale", f"deployment/sluice-{component}", f"--replicas={replicas}")
        self.wait(f"{component} x {replicas}", lambda: self.settled(component, replicas))

    def settled(self, component: str, replicas: int) -> bool:
        """As many pods as wanted, all of them Ready."""
        return len(self.ready_pods(component)) == replicas == len(self.pods(component))

    def describe(self) -> str:
        """Pods and the ends of their logs, for a failure's message."""
        text = self.kubectl("get", "pods", "-o", "wide", check=False)
        for one in self.get("pods"):
            name = one["metadata"]["name"]
            text += f"\n--- {name}\n" + self.kubectl("logs", name, "--tail=15", check=False)
        return text + "\n" + "\n".join(self.kubectl("get", "events", check=False).splitlines()[-15:])


def is_ready(pod: Manifest) -> bool:
    """Ready and not being deleted."""
    conditions = pod["status"].get("conditions", [])
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
    return ready and "deletionTimestamp" not in pod["metadata"]


@contextmanager
def running_cluster(images: list[Path]) -> Iterator[Kube]:
    """Start a node with these images, enter its network, and end it."""
    tool = os.environ[TOOL]
    subprocess.run([tool, "down", str(FOLDER)], capture_output=True, check=False)
    for old in (FOLDER / "images").glob("*-*.tar"):
        old.unlink()  # links to images of an earlier run
    subprocess.run([tool, "up", str(FOLDER), *map(str, images)], check=True, timeout=400)
    home = Path("/proc/self/ns/net").open()  # noqa: SIM115 - held until the way back
    try:
        with Path(f"/proc/{(FOLDER / 'ns.pid').read_text().strip()}/ns/net").open() as there:
            _enter(there.fileno())
        yield Kube()
    finally:
        _enter(home.fileno())
        home.close()
        subprocess.run([tool, "down", str(FOLDER)], capture_output=True, check=False)


def _enter(namespace_fd: int) -> None:
    """Move this thread, and those it starts from now on, into a network namespace."""
    if ctypes.CDLL(None, use_errno=True).setns(namespace_fd, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")
