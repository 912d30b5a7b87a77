"""Values, series and presets that the operator's pages name are those of the chart and the processes."""

import re

import pytest

from tests.chart.test_expressions import declared
from tools.chart_schema import values_schema
from tools.check_chart import ROOT, preset_names

TEXT = "".join((ROOT / "docs" / page).read_text() for page in ("operations.md", "runbooks.md"))
KEYS = sorted(set(re.findall(r"`((?:worker|decode|prefill|mixed|pdMaster|networkPolicy|model|image)(?:\.\w+)+)", TEXT)))
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
