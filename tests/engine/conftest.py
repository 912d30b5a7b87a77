"""Models made once for all tests of the engine."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.engine.tiny import make_model


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Tiny tensors gain nothing from threads, and machines that run tests have few cores."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Family -> folder of its tiny model."""
    made: dict[str, Path] = {}

    def get(family: str) -> Path:
        if family not in made:
            made[family] = make_model(family, tmp_path_factory.mktemp(family))
        return made[family]

    return get


@pytest.fixture(scope="session")
def llama(model_of: Callable[[str], Path]) -> Path:
    """The model that most tests use."""
    return model_of("llama")
