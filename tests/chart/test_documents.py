"""Values, series and presets that the operator's pages name are those of the chart and the processes."""

import re
import subprocess
from pathlib import Path

import pytest

from services.common.config import GatewayConfig, WorkerConfig
from services.common.options import read
from tests.chart.test_expressions import declared
from tools.chart_schema import values_schema
from tools.check_chart import ROOT, preset_names

PAGES = ("docs/operations.md", "docs/runbooks.md", "helm/sluice/README.md")
TEXT = "".join((ROOT / page).read_text() for page in PAGES)
KEYS = sorted(set(re.findall(r"`((?:worker|decode|prefill|mixed|pdMaster|networkPolicy|model|image)(?:\.\w+)+)", TEXT)))
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
SERIES = sorted(set(re.findall(r"`(sluice_\w+)[`{]", TEXT)))


@pytest.mark.parametrize("key", KEYS)
def test_value_of_the_pages_is_one_of_the_chart(key: str) -> None:
    schema = values_schema()
    definitions, here = schema["definitions"], schema
    for word in key.split("."):
        here = here["properties"][word]
        here = definitions[here["$ref"].rpartition("/")[2]] if "$ref" in here else here


@pytest.mark.parametrize("series", SERIES)
def test_series_of_the_pages_is_one_of_a_process(series: str) -> None:
    assert declared() & {series, f"{series}_count"}


def test_table_of_presets_is_whole() -> None:
    table = TEXT.partition("good starts")[2].partition("What was measured")[0]
    assert sorted(re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE)) == preset_names()


def test_every_block_says_what_it_is() -> None:
    """A block that is marked as shell is tried; nothing that could be typed stands in another one."""
    opened = OPERATIONS.split("\n```")[1::2]
    assert {block.partition("\n")[0] for block in opened} <= {"sh", "yaml", "text"}


def test_sluice_accepts_its_command_lines(tmp_path: Path) -> None:
    """Those of the blocks, with their variables filled in by a shell."""
    seen = tmp_path / "seen"
    stub = f"sluice() {{ printf '%s\\n' \"$*\" >>{seen}; }}\n"
    for block in re.findall(r"^```sh\n(.*?)^```", OPERATIONS, re.DOTALL | re.MULTILINE):
        if "\nsluice " in block or " sluice prefill" in block:
            subprocess.run(["bash", "-euc", stub + block], check=True)
    lines = [line.split() for line in seen.read_text().splitlines()]
    assert [words[0] for words in lines] == ["prefill", "decode", "pd-master"]
    for role, *options in lines:
        assert read(GatewayConfig if role == "pd-master" else WorkerConfig, options, {})


def test_docker_builds_what_the_dockerfile_has() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    arguments = set(re.findall(r"--build-arg (\w+)=", OPERATIONS))
    assert arguments
    assert arguments <= set(re.findall(r"^ARG (\w+)", dockerfile, re.MULTILINE))
    assert set(re.findall(r"--target (\w+)", OPERATIONS)) == {"gateway", "worker"}
    assert {"gateway", "worker"} <= set(re.findall(r" AS ([\w-]+)$", dockerfile, re.MULTILINE))
