"""Every expression of every panel and alert returns data from a real run, or is listed here with the reason why not."""

import asyncio
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chart.prometheus import Prometheus, is_installed, scraping
from tests.chart.test_expressions import alerts, keda_queries, panels
from tests.integration.client import stream_all
from tests.integration.cluster import Cluster
from tests.integration.oracle import Oracle
from tests.integration.prompts import CHAT

pytestmark = pytest.mark.skipif(not is_installed(), reason="Debian's package prometheus is missing")

EMPTY_WHEN_ALL_IS_WELL = {
    "gateway/HTTP errors/{{path}} {{status}}": "no answer was a 5xx",
    "gateway/gRPC answers/{{method}} {{status}}": "the load came over HTTP",
    "gateway/Discovery/stale {{pod}}": "workers are a static list",
    "gateway/Discovery/{{state}} {{pod}}": "workers are a static list",
    "gateway/Failures of discovery/{{reason}}": "workers are a static list",
    "transfer/Failures/{{kind}} {{pod}}": "no transfer failed",
    "overview/Failed requests/share": "no request failed",
}

SLOW_FIRST_TOKENS = """sluice_gateway_time_to_first_token_seconds_count
    - ignoring(le) sluice_gateway_time_to_first_token_seconds_bucket{le="2.0"} > 0"""


@pytest.fixture(scope="module")
def prometheus(model_dir: Path, oracle: Oracle, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that has seen a load."""
    folder = tmp_path_factory.mktemp("prometheus")
    prompts = [oracle.chat_ids(text) for text in CHAT[:6]]
    with Cluster(model_dir, folder, 1, 1) as cluster, scraping(cluster, folder) as server:
        for _ in range(4):
            asyncio.run(stream_all(cluster.url, prompts, 8, at_once=3))
            time.sleep(2.5)  # so that a rate sees a counter at several scrapes
        yield server


def test_every_panel_has_data(prometheus: Prometheus) -> None:
    queries = panels()
    assert set(EMPTY_WHEN_ALL_IS_WELL) <= set(queries)
    wanted = set(queries) - set(EMPTY_WHEN_ALL_IS_WELL)
    deadline = time.monotonic() + 60
    while empty := {where for where in wanted if not prometheus.query(queries[where])}:
        assert time.monotonic() < deadline, f"no data: {sorted(empty)}"  # of a machine that was late to be scraped
        time.sleep(1)


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_autoscaler_of_a_role_gets_its_ratio(prometheus: Prometheus, role: str) -> None:
    (found,) = prometheus.query(keda_queries()[role])
    assert 0 <= float(found["value"][1]) < 10


def test_every_alert_has_data_to_decide_on(prometheus: Prometheus) -> None:
    """Its expression without the threshold: an alert that is silent for want of series would be silent for ever."""
    names = {rule["alert"]: set(re.findall(r"\b(?:sluice|process)_\w+", rule["expr"])) for rule in alerts()}
    missing = {
        alert: name
        for alert, found in names.items()
        for name in found
        if not prometheus.query(name) and not name.startswith(("sluice_discovery", "sluice_transfer_failures"))
    }
    assert missing == {}


def test_no_alert_fires_on_a_healthy_run(prometheus: Prometheus) -> None:
    firing = {rule["alert"] for rule in alerts() if prometheus.query(rule["expr"])}
    if prometheus.query(SLOW_FIRST_TOKENS):
        firing.discard("SluiceSlowFirstToken")  # a slow machine's alert is right
    assert firing == set()
