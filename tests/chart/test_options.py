"""An option of a process and the value of the chart are one thing with one name, default and bounds."""

import re
from typing import Any

import pytest
import yaml

from services.common.config import GatewayConfig, WorkerConfig
from services.common.options import Options, read, specs
from tests.chart.objects import of_kind
from tools.chart_schema import camel, option_keys
from tools.check_chart import CHART, preset, preset_names, render

CONFIGS: dict[str, type[Options]] = {"pd-master": GatewayConfig, "prefill": WorkerConfig, "decode": WorkerConfig}
DELIBERATE = {
    ("pdMaster", "logFormat"), ("pdMaster", "drainS"), ("worker", "logFormat"), ("worker", "drainS"),
    ("worker", "kvMemoryFraction"), ("worker", "transferPageBytes"),
}  # fmt: skip
"""Defaults that suit a cluster of GPUs, where the process's own suit a laptop."""


def environment(objects: list[dict[str, Any]], component: str) -> dict[str, str]:
    """What a component's ConfigMap gives its process, and the worker's own address."""
    (found,) = (one for one in of_kind(objects, "ConfigMap") if one["metadata"]["name"] == f"sluice-{component}")
    data: dict[str, str] = found["data"]
    return data if component == "pd-master" else data | {"SLUICE_ADVERTISE_ADDRESS": "10.0.0.1:9001"}


@pytest.mark.parametrize("component", CONFIGS)
@pytest.mark.parametrize("name", preset_names())
def test_process_accepts_the_environment_it_gets(name: str, component: str) -> None:
    env = environment(render(preset(name)), component)
    assert read(CONFIGS[component], [], env)
    assert all(isinstance(value, str) for value in env.values())


@pytest.mark.parametrize(("section", "config"), [("pdMaster", GatewayConfig), ("worker", WorkerConfig)])
def test_defaults_are_those_of_the_process(section: str, config: type[Options]) -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())[section]
    of_process = {camel(spec.name): "" if spec.default is None else spec.default for spec in specs(config)}
    differing = {(section, key) for key in option_keys(config) if values[key] != of_process[key]}
    assert differing <= DELIBERATE


@pytest.mark.parametrize(("component", "config"), [("pd-master", GatewayConfig), ("decode", WorkerConfig)])
def test_every_option_with_a_value_is_in_the_environment(component: str, config: type[Options]) -> None:
    section = yaml.safe_load((CHART / "values.yaml").read_text())["pdMaster" if component == "pd-master" else "worker"]
    given = {key for key in option_keys(config) if section[key] not in ("", None, [])}
    reaching = environment(render({}), component)
    assert {key for key in given if f"SLUICE_{snake(key)}" not in reaching} == set()


def snake(key: str) -> str:
    """kvPoolTokens -> KV_POOL_TOKENS."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", key).upper()


def test_changed_options_reach_the_process() -> None:
    changed = {"chunkTokens": 777, "prefixCache": False, "kvMemoryFraction": 0.55, "transferPageBytes": 1 << 30}
    config = read(WorkerConfig, [], environment(render({"decode": changed}), "decode"))
    assert (config.chunk_tokens, config.prefix_cache, config.kv_memory_fraction) == (777, False, 0.55)
    assert config.transfer_page_bytes == 1 << 30


def test_key_of_a_role_replaces_the_shared_one_for_that_role_alone() -> None:
    objects = render({"worker": {"maxRunningRequests": 10}, "decode": {"maxRunningRequests": 20}})
    found = {role: environment(objects, role)["SLUICE_MAX_RUNNING_REQUESTS"] for role in ("prefill", "decode")}
    assert found == {"prefill": "10", "decode": "20"}
