"""Every preset is clean and renders as its golden file; `python -m tools.check_chart --update` writes those anew."""

import pytest

from tools.check_chart import GOLDEN, faults, golden_text, lint_faults, preset_names

OLD_CLUSTER = "v1.20.0"


def test_chart_has_no_fault() -> None:
    assert list(faults()) == []


@pytest.mark.parametrize("name", preset_names())
def test_preset_renders_as_its_golden_file(name: str) -> None:
    assert golden_text(name) == (GOLDEN / f"{name}.yaml").read_text()


@pytest.mark.parametrize("name", preset_names())
def test_preset_lints_strictly_for_an_old_cluster_too(name: str) -> None:
    assert lint_faults(name, kube_version=OLD_CLUSTER) == []
