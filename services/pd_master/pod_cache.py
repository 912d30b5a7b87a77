"""What the API server has told of the workers' pods, and what follows for their addresses. Pure.

    no IP yet, or no port named grpc --> left out        Ready --> gets work
    not Ready, or being deleted --> no new work           finished or deleted --> gone

Discovery only supplies addresses (R14): a pod that is not Ready keeps its address, and so its sessions.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

PORT_NAME = "grpc"
_FINISHED = frozenset({"Succeeded", "Failed"})

Manifest = dict[str, Any]
"""An object as the API server writes it in JSON."""


@dataclass(frozen=True, slots=True)
class WorkerPod:
    """One pod that may be spoken to."""

    address: str
    """host:port of its gRPC."""
    takes_work: bool


def worker_pod(manifest: Manifest) -> WorkerPod | None:
    """Read one pod; None when there is nobody to speak to."""
    status = manifest.get("status", {})
    ip, port = status.get("podIP"), _port(manifest.get("spec", {}))
    if not ip or port is None or status.get("phase") in _FINISHED:
        return None
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions", []))
    leaving = "deletionTimestamp" in manifest["metadata"]
    return WorkerPod(f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}", ready and not leaving)


def _port(spec: Manifest) -> int | None:
    ports = (port for container in spec.get("containers", []) for port in container.get("ports", []))
    return next((int(port["containerPort"]) for port in ports if port.get("name") == PORT_NAME), None)


class PodCache:
    """The pods by uid, so that a pod of the same name that came later is another one. Owned by discovery."""

    def __init__(self) -> None:
        self._pods: dict[str, WorkerPod] = {}

    def replace(self, manifests: Iterable[Manifest]) -> None:
        """Take a whole list: what is not in it is gone."""
        found = {one["metadata"]["uid"]: worker_pod(one) for one in manifests}
        self._pods = {uid: pod for uid, pod in found.items() if pod is not None}

    def put(self, manifest: Manifest) -> None:
        """A pod was added or changed."""
        uid, pod = manifest["metadata"]["uid"], worker_pod(manifest)
        if pod is None:
            self._pods.pop(uid, None)
        else:
            self._pods[uid] = pod

    def remove(self, manifest: Manifest) -> None:
        """A pod was deleted."""
        self._pods.pop(manifest["metadata"]["uid"], None)

    @property
    def addresses(self) -> frozenset[str]:
        """Everybody who may be spoken to."""
        return frozenset(pod.address for pod in self._pods.values())

    @property
    def withheld(self) -> frozenset[str]:
        """Those among them that get no new work: an address that passed on to a new pod goes by the new one."""
        return self.addresses - {pod.address for pod in self._pods.values() if pod.takes_work}
