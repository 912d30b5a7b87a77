"""One cluster for all tests of this folder, with Sluice installed from its chart. Skipped where there is no cluster."""

import functools
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.helm import helm
from tests.cluster.images import TAG, build_images
from tests.cluster.kube import TOOL, Kube, running_cluster
from tests.cluster.load import OUTPUT_TOKENS, Prompt
from tests.integration.oracle import Oracle
from tests.integration.prompts import CHAT
from tools.check_chart import preset

LIVENESS_S = 60
"""The chart's livenessBudgetSeconds: a wedged engine is restarted within it."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test builds images and starts a node; later ones wait for rollouts."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(1800))


@pytest.fixture(scope="session", autouse=True)
def _cluster_is_there() -> None:
    if not Path(os.environ.get(TOOL, "")).is_file():
        pytest.skip(f"{TOOL} names no cluster tool")


@pytest.fixture(scope="session")
def model_dir() -> Path:
    """The demo model's folder."""
    from services.cli.demo_model import fetch_demo_model

    return fetch_demo_model()


@pytest.fixture(scope="session")
def expected(model_dir: Path) -> dict[Prompt, tuple[int, ...]]:
    """What the oracle answers to a few prompts, computed before the cluster takes the machine."""
    oracle = Oracle(model_dir)
    prompts = [oracle.chat_ids(text) for text in CHAT[:6]]
    return {prompt: tuple(oracle.generate(prompt, OUTPUT_TOKENS)) for prompt in prompts}


@pytest.fixture(scope="session")
def kube(expected: dict[Prompt, tuple[int, ...]]) -> Iterator[Kube]:
    """The cluster; `expected` first, since its threads shall not be in the node's network."""
    assert expected
    images = build_images()
    with running_cluster(list(images.values())) as running:
        yield running


def values(model_dir: Path) -> dict[str, Any]:
    """The cpu-demo preset with the images and the model of this machine."""
    of_demo = preset("cpu-demo")
    of_demo["image"] = {name: {"repository": f"localhost/sluice/{name}", "tag": TAG} for name in ("gateway", "worker")}
    of_demo["model"]["hostPath"]["path"] = str(model_dir)
    of_demo["networkPolicy"] = {"prometheus": [{"namespaceSelector": {}}]}
    small = {"requests": {"cpu": "50m", "memory": "256Mi"}, "limits": {"memory": "3Gi"}}
    of_demo["pdMaster"]["resources"] = of_demo["worker"]["resources"] = small
    of_demo["worker"] |= {"engineStallS": 12, "livenessBudgetSeconds": LIVENESS_S}
    return of_demo


@pytest.fixture(scope="session")
def installed(kube: Kube, model_dir: Path) -> Iterator["Release"]:
    """Sluice from its chart, ready."""
    release = Release(kube, values(model_dir))
    release.install()
    yield release
    helm("uninstall", namespace=kube.namespace, wait="watcher", timeout=120)


class Release:
    """The release `sluice`, through the Helm engine."""

    def __init__(self, kube: Kube, of_test: dict[str, Any]) -> None:
        self._kube = kube
        self.values = of_test
        self.install_s = 0.0

    def install(self) -> None:
        """Install and wait until all pods are Ready."""
        began = time.monotonic()
        waiting = {"wait": "watcher", "timeout": 400, "create_namespace": True}
        helm("install", values=self.values, namespace=self._kube.namespace, **waiting)
        self.install_s = time.monotonic() - began

    def upgrade(self, **changed: dict[str, Any]) -> None:
        """Upgrade with changed values and wait until the rollout is through."""
        merged = {key: {**self.values.get(key, {}), **changed.get(key, {})} for key in self.values | changed}
        helm("upgrade", values=merged, namespace=self._kube.namespace, wait="watcher", timeout=400)
        roles = [
            role for role in ("prefill", "decode", "mixed") if merged.get(role, {}).get("enabled", role != "mixed")
        ]
        for component in ("pd-master", *roles):
            self._kube.wait(f"{component} rolled out", functools.partial(self._kube.settled, component, 1), 240)
        self.values = merged

    def test(self) -> None:
        """`helm test`. Raises when it fails."""
        helm("test", namespace=self._kube.namespace, timeout=180)
