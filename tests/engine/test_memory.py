"""Out of memory at start names the numbers and what to change."""

from pathlib import Path

import pytest
import torch

from services.engine import load
from services.engine.config import ConfigError
from services.engine.load import load_model
from services.engine.memory import fits
from tests.engine.driver import engine_config


@pytest.mark.parametrize(
    ("stage", "advice"), [("build_decoder", "narrower dtype"), ("make_runner", "lower memory_fraction")]
)
def test_a_model_that_does_not_fit_ends_with_advice(
    llama: Path, monkeypatch: pytest.MonkeyPatch, stage: str, advice: str
) -> None:
    def no_memory(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(load, stage, no_memory)
    with pytest.raises(ConfigError, match=f"does not fit the memory of .*{advice}"):
        load_model(engine_config(llama))


def test_what_a_device_has_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (3 << 30, 80 << 30))
    with (
        pytest.raises(ConfigError, match=r"3\.0 of 80\.0 GiB are free"),
        fits(torch.device("cuda", 0), "it", "do so"),
    ):
        raise torch.OutOfMemoryError
