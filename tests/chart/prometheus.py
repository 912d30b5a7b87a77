"""Debian's Prometheus on loopback, scraping processes with the labels that the chart's PodMonitor gives them."""

import json
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.integration.cluster import Cluster, http_get
from tests.ports import free_ports

BINARY = "prometheus"
SCRAPE_S = 1


def is_installed() -> bool:
    """Whether Debian's package is there."""
    return shutil.which(BINARY) is not None


class Prometheus:
    """A running server."""

    def __init__(self, url: str) -> None:
        self.url = url

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples of an instant query. AssertionError when the server refuses it."""
        status, text = http_get(f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': expression})}", 10)
        assert status == 200, f"{expression}: {text}"
        found: list[dict[str, Any]] = json.loads(text)["data"]["result"]
        return found


def _job(name: str, port: int) -> dict[str, Any]:
    labels = {"namespace": "serving", "release": "sluice", "pod": name, "role": name.rpartition("-")[0] or name}
    labels["role"] = "pd-master" if name == "pd-master" else labels["role"]
    return {"targets": [f"127.0.0.1:{port}"], "labels": labels}


@contextmanager
def scraping(cluster: Cluster, folder: Path) -> Iterator[Prometheus]:
    """A Prometheus that scrapes every process of a cluster each second."""
    jobs = [_job(name, process.http_port) for name, process in cluster.processes.items()]
    config = {
        "global": {"scrape_interval": f"{SCRAPE_S}s"},
        "scrape_configs": [{"job_name": "sluice", "static_configs": jobs}],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    (port,) = free_ports(1)
    command = [
        BINARY, f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}", "--log.level=error",
    ]  # fmt: skip
    process = subprocess.Popen(command)
    try:
        server = Prometheus(f"http://127.0.0.1:{port}")
        deadline = time.monotonic() + 60
        while http_get(f"{server.url}/-/ready")[0] != 200:
            assert time.monotonic() < deadline, "Prometheus does not come up"
            time.sleep(0.2)
        yield server
    finally:
        process.terminate()
        process.wait(20)
