"""A real one-node Kubernetes for tests, and what tests ask of it. Found through SLUICE_TEST_CLUSTER.

The node has a network namespace of its own, which this process enters: pods and Services then answer it directly.
Nothing needs cluster DNS. One such cluster at a time on a machine.
"""

import base64
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

    def ready_pod(self, component: str) -> str:
        """A pod that is ready, once there is one: a late probe on a busy machine takes it out for a moment."""
        found: list[str] = []

        def is_there() -> bool:
            found.extend(self.ready_pods(component))
            return bool(found)

        self.wait(f"a ready pod of {component}", is_there)
        return found[0]

    def wait(self, what: str, holds: Callable[[], bool], timeout_s: float = 120.0) -> float:
        """Wait until something holds and return how long it took; an AssertionError shows the pods as they are."""
        start = time.monotonic()
        while not holds():
            if time.monotonic() - start > timeout_s:
                raise AssertionError(f"{what}: not within {timeout_s} s\n{self.describe()}")
            time.sleep(_POLL_S)
        return time.monotonic() - start

    def token(self, account: str) -> str:
        """The token of a service account."""
        (found,) = (one for one in self.get("serviceaccounts") if one["metadata"]["name"] == account)
        name = found["secrets"][0]["name"]
        return base64.b64decode(self.kubectl("get", "secret", name, "-o", "jsonpath={.data.token}")).decode()

    def restarts(self, pod: str) -> int:
        """How often the pod's container was started again."""
        status = json.loads(self.kubectl("get", "pod", pod, "-o", "json"))["status"]
        return sum(one["restartCount"] for one in status["containerStatuses"])

    def engine_pid(self, pod: str) -> str:
        """The engine's process id inside a worker's pod."""
        script = "for p in /proc/[0-9]*; do grep -qa services.engine.main $p/cmdline && echo ${p#/proc/}; done"
        found = self.kubectl("exec", pod, "--", "sh", "-c", script, check=False).split()
        return found[0]

    def scale(self, component: str, replicas: int) -> None:
        """Set a component's replicas and wait until as many are Ready and no other pod is left."""
        self.kubectl("scale", f"deployment/sluice-{component}", f"--replicas={replicas}")
        self.wait(f"{component} x {replicas}", lambda: self.settled(component, replicas))

    def settled(self, component: str, replicas: int) -> bool:
        """As many pods as wanted, all of them Ready."""
        return len(self.ready_pods(component)) == replicas == len(self.pods(component))

    def describe(self) -> str:
        """Pods and the ends of their logs, for a failure's message; empty while the API server is away."""
        text = self.kubectl("get", "pods", "-o", "wide", check=False)
        for name in self.kubectl("get", "pods", "-o", "name", check=False).split():
            text += f"\n--- {name}\n" + self.kubectl("logs", name, "--tail=15", check=False)
        return text + "\n" + "\n".join(self.kubectl("get", "events", check=False).splitlines()[-15:])


def is_ready(pod: Manifest) -> bool:
    """Ready and not being deleted."""
    conditions = pod["status"].get("conditions", [])
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
    return ready and "deletionTimestamp" not in pod["metadata"]


@contextmanager
def running_cluster(images: list[Path]) -> Iterator[Kube]:
    """Start a node with these images, enter its network, and end it; one that already runs is used and left running."""
    tool, was_running = os.environ[TOOL], _is_running()
    if not was_running:
        _tidy()
        subprocess.run([tool, "up", str(FOLDER)], check=True, timeout=600)
    for image in images:  # afterwards, since the tool gives the node two minutes, and on a busy machine they take more
        subprocess.run([tool, "import", str(FOLDER), image], check=True, timeout=600)
    home = Path("/proc/self/ns/net").open()  # noqa: SIM115 - held until the way back
    try:
        with Path(f"/proc/{_node_pid()}/ns/net").open() as there:
            _enter(there.fileno())
        yield Kube()
    finally:
        _enter(home.fileno())
        home.close()
        if not was_running:
            subprocess.run([tool, "down", str(FOLDER)], capture_output=True, check=False)


def _node_pid() -> str:
    return (FOLDER / "ns.pid").read_text().strip()


def _is_running() -> bool:
    return (FOLDER / "ns.pid").exists() and Path(f"/proc/{_node_pid()}").exists()


def _tidy() -> None:
    """Remove what a node that was killed left behind, and links to images of an earlier run."""
    subprocess.run([os.environ[TOOL], "down", str(FOLDER)], capture_output=True, check=False)
    for old in (FOLDER / "images").glob("*-*.tar"):
        old.unlink()


def _enter(namespace_fd: int) -> None:
    """Move this thread, and those it starts from now on, into a network namespace."""
    if ctypes.CDLL(None, use_errno=True).setns(namespace_fd, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")
