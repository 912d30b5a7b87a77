"""Every preset is clean and renders as its golden file; `python -m tools.check_chart --update` writes those anew."""

from typing import Any

import helm_python
import pytest

from tools.check_chart import CHART, GOLDEN, faults, golden_text, lint_faults, preset, preset_names

OLD_CLUSTER = "v1.20.0"
NEEDS_IMAGE_VOLUMES = "2p4d-rdma"


def test_chart_has_no_fault() -> None:
    assert list(faults()) == []


@pytest.mark.parametrize("name", preset_names())
def test_preset_renders_as_its_golden_file(name: str) -> None:
    assert golden_text(name) == (GOLDEN / f"{name}.yaml").read_text()


@pytest.mark.parametrize("name", sorted({*preset_names()} - {NEEDS_IMAGE_VOLUMES}))
def test_preset_lints_strictly_for_an_old_cluster_too(name: str) -> None:
    assert lint_faults(name, kube_version=OLD_CLUSTER) == []


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (preset(NEEDS_IMAGE_VOLUMES), "model.source: image needs Kubernetes 1.31 or newer with image volumes"),
        ({"worker": {"rdma": {"enabled": True, "claimTemplate": "nic"}}}, "prefill.rdma.claimTemplate: needs"),
    ],
)
def test_what_the_cluster_would_drop_in_silence_is_refused(
    values: dict[str, Any], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Lint goes on after `fail` and tells what it said; an install ends there."""
    helm_python.lint(CHART, values, strict=True, kube_version="v1.30.4")
    assert message in capfd.readouterr().err
    helm_python.lint(CHART, values, strict=True, kube_version="v1.31.0")
    assert "fail" not in capfd.readouterr().err
