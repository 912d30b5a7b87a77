"""Fixtures of the integration tests: the demo model, the oracle, and clusters of real processes."""

import os
from pathlib import Path

import pytest

from tests.integration.oracle import Oracle


@pytest.fixture(scope="session")
def model_dir() -> Path:
    """The demo model's folder, made by `sluice fetch-demo-model` (`make test` does so)."""
    from services.cli.demo_model import fetch_demo_model

    return fetch_demo_model()


@pytest.fixture(scope="session")
def oracle(model_dir: Path) -> Oracle:
    """transformers on the same folder."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    return Oracle(model_dir)


@pytest.fixture(scope="session")
def log_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the processes under test log."""
    return tmp_path_factory.mktemp("logs")
