"""Every expression of every alert and panel parses, and names only series that a process declares."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from services.common.metrics import WorkerMetrics
from services.engine.counters import EngineCounters
from services.pd_master.fleet_metrics import FleetCollector
from services.pd_master.kubernetes_discovery import DiscoveryMetrics
from services.pd_master.metrics import GatewayMetrics
from services.pd_master.prefix_index import PrefixIndex
from services.pd_master.processes import ParentMetrics
from services.pd_master.selector import Snapshot
from tests.chart.objects import of_kind
from tools.check_chart import CHART, ROOT, render
from tools.dashboards import DASHBOARDS

ALERTS = CHART / "files" / "alerts.yaml"
_NAME = re.compile(r"\b(?:sluice|process)_[a-z0-9_]+\b")
needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="Debian's package prometheus is missing")


def declared() -> set[str]:
    """The series of all processes, by the names that samples have."""
    registry = CollectorRegistry()
    DiscoveryMetrics(registry)
    FleetCollector(registry, lambda: Snapshot((), 0.0), PrefixIndex())
    names = {f"sluice_engine_{name}_total" for name in EngineCounters().values()}  # made as the engine reports them
    workers, gateway = WorkerMetrics(has_prefill=True, has_decode=True), GatewayMetrics()
    for source in (workers.registry, gateway.registry, ParentMetrics().registry, registry):
        for family in source.collect():
            suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}.get(family.type, [""])
            names |= {family.name + suffix for suffix in suffixes}
    return names


def alerts() -> list[dict[str, Any]]:
    """All alerts."""
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def panels() -> dict[str, str]:
    """Every expression of every panel, with Grafana's variables filled in."""
    found = {}
    for name in DASHBOARDS:
        for panel in json.loads((CHART / "files" / "dashboards" / f"{name}.json").read_text())["panels"]:
            for target in panel["targets"]:
                text = target["expr"].replace("$__rate_interval", "1m")
                text = text.replace("$namespace", "serving").replace("$release", "sluice")
                found[f"{name}/{panel['title']}/{target['legendFormat']}"] = text
    return found


def keda_queries() -> dict[str, str]:
    """What each role's ScaledObject asks Prometheus, by role."""
    keda = {"enabled": True, "serverAddress": "http://prometheus:9090"}
    made = of_kind(render({"worker": {"keda": keda}}), "ScaledObject")
    return {one["metadata"]["name"].rpartition("-")[2]: one["spec"]["triggers"][0]["metadata"]["query"] for one in made}


def test_every_series_is_one_that_a_process_declares() -> None:
    known = declared()
    used = {where: set(_NAME.findall(text)) for where, text in panels().items()}
    used |= {rule["alert"]: set(_NAME.findall(rule["expr"])) for rule in alerts()}
    assert all(used.values())
    assert {where: names - known for where, names in used.items() if names - known} == {}


def test_every_alert_has_a_section_in_the_runbooks() -> None:
    headings = set(re.findall(r"^## (\w+)$", (ROOT / "docs" / "runbooks.md").read_text(), re.MULTILINE))
    assert {rule["alert"] for rule in alerts()} == headings
    for rule in alerts():
        assert rule["annotations"]["runbook_url"] == f"docs/runbooks.md#{rule['alert'].lower()}"
        assert rule["labels"]["severity"] in {"warning", "critical"}


@needs_promtool
def test_every_expression_parses(tmp_path: Path) -> None:
    rules = [{"record": f"panel:{index}", "expr": text} for index, text in enumerate(panels().values())]
    file = tmp_path / "panels.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    done = subprocess.run(["promtool", "check", "rules", file, ALERTS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_alerts_fire_when_they_should_and_only_then() -> None:
    tests = Path(__file__).parent / "alerts_test.yaml"
    done = subprocess.run(["promtool", "test", "rules", tests], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
