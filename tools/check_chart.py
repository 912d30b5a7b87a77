"""Check the chart: made files up to date, every option documented, every preset lints and renders as its golden file.

`python -m tools.check_chart` checks, `--update` writes the schema, the dashboards and the golden renders.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python
import yaml

from tools.chart_schema import missing_keys, render_schema
from tools.dashboards import DASHBOARDS, render_dashboard

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "helm" / "sluice"
SCHEMA = CHART / "values.schema.json"
PRESETS = CHART / "ci"
GOLDEN = ROOT / "tests" / "chart" / "golden"
ERROR = 3
WARNING = 2


def preset(name: str) -> dict[str, Any]:
    """The values of a preset."""
    values: dict[str, Any] = yaml.safe_load((PRESETS / f"{name}.yaml").read_text())
    return values


def preset_names() -> list[str]:
    """All presets, sorted."""
    return sorted(path.stem for path in PRESETS.glob("*.yaml"))


def render(values: dict[str, Any]) -> list[dict[str, Any]]:
    """The objects of a release `sluice` in namespace `serving`, in the order of their templates."""
    with helm_python.Chart.load(CHART) as chart:
        chart.validate_schema(values)
        files = chart.render(values, name="sluice", namespace="serving")
    texts = [text for path, text in sorted(files.items()) if path.endswith(".yaml")]
    return [found for text in texts for found in yaml.safe_load_all(text) if found]


def golden_text(name: str) -> str:
    """A preset's objects as text. Dashboards and alerts are files of their own and only named here."""
    objects = render(preset(name))
    for one in objects:
        if one["kind"] == "PrometheusRule":
            one["spec"] = "files/alerts.yaml"
        if one["kind"] == "ConfigMap" and "dashboard" in one["metadata"]["name"]:
            one["data"] = dict.fromkeys(one["data"], "files/dashboards")
        for labels in _labels(one):
            labels.pop("helm.sh/chart", None)
    return "\n---\n".join(yaml.safe_dump(one, sort_keys=True, width=120).strip() for one in objects) + "\n"


def _labels(one: dict[str, Any]) -> Iterator[dict[str, str]]:
    yield one["metadata"].get("labels", {})
    if one["kind"] == "Deployment":
        yield one["spec"]["template"]["metadata"]["labels"]


def lint_faults(name: str, **options: Any) -> list[str]:
    """What strict lint says of a preset."""
    report = helm_python.lint(CHART, preset(name), strict=True, **options)
    said = [f"{one['path']}: {one['error']}" for one in report["messages"] if one["severity"] >= WARNING]
    return [*said, *report["errors"]]


def made_files() -> dict[Path, str]:
    """Files of the chart that are made from code, and their text."""
    folder = CHART / "files" / "dashboards"
    return {SCHEMA: render_schema()} | {folder / f"{name}.json": render_dashboard(name) for name in DASHBOARDS}


def faults() -> Iterator[str]:
    """Yield one line for each thing that is wrong."""
    for path, text in made_files().items():
        if not path.exists() or path.read_text() != text:
            yield f"{path.name} is not what tools/ makes of the options and panels; run with --update"
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    yield from (f"values.yaml: {key} is an option of the process and missing here" for key in missing_keys(defaults))
    for name in preset_names():
        yield from (f"{name}: {fault}" for fault in lint_faults(name))
        golden = GOLDEN / f"{name}.yaml"
        if not golden.exists() or golden.read_text() != golden_text(name):
            yield f"{name}: renders otherwise than tests/chart/golden/{name}.yaml; look at it, then run with --update"


def update() -> None:
    """Write the schema and the golden renders."""
    for path, text in made_files().items():
        path.write_text(text)
    GOLDEN.mkdir(exist_ok=True)
    for name in preset_names():
        (GOLDEN / f"{name}.yaml").write_text(golden_text(name))


def main(argv: list[str]) -> int:
    """Check or update; 1 when something is wrong."""
    if argv == ["--update"]:
        update()
    found = list(faults())
    for fault in found:
        print(f"chart: {fault}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
