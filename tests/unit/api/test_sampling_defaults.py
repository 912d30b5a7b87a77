"""What clients leave open is the model's own recommendation."""

import json
from pathlib import Path

import pytest

from services.pd_master.sampling_defaults import SamplingDefaults, read_defaults
from tests.fakes.dispatcher import FakeModel
from tests.unit.api.conftest import Api
from tests.unit.api.tiny_model import write_tiny_model

RECOMMENDED = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "eos_token_id": [1, 2]}


def write(folder: Path, config: object) -> Path:
    (folder / "generation_config.json").write_text(json.dumps(config))
    return folder


def test_recommended_values_are_read(tmp_path: Path) -> None:
    assert read_defaults(write(tmp_path, RECOMMENDED)) == SamplingDefaults(0.6, 20, 0.95)


@pytest.mark.parametrize("config", [{}, {"temperature": None}, {"do_sample": False, "temperature": 0.2}])
def test_without_a_recommendation_the_values_are_neutral(tmp_path: Path, config: object) -> None:
    assert read_defaults(write(tmp_path, config)) == SamplingDefaults()


def test_without_a_file_the_values_are_neutral(tmp_path: Path) -> None:
    assert read_defaults(tmp_path) == SamplingDefaults()


@pytest.mark.parametrize("config", [[], {"temperature": "hot"}, {"top_p": 0}, {"temperature": -1}])
def test_a_file_that_makes_no_sense_is_named(tmp_path: Path, config: object) -> None:
    with pytest.raises(ValueError, match=r"generation_config\.json"):
        read_defaults(write(tmp_path, config))


async def test_clients_values_win(api: Api, tmp_path: Path) -> None:
    folder = write(write_tiny_model(tmp_path), RECOMMENDED)
    api.models.served = [FakeModel("tiny", folder, vocab_size=api.text.vocab_size)]
    for given, expected in [({}, (0.6, 20, 0.95)), ({"temperature": 0, "top_p": 1, "top_k": -1}, (0.0, 0, 1.0))]:
        body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], **given}
        assert (await api.http.post("/v1/chat/completions", json=body)).status_code == 200
        sampling = api.dispatcher.requests[-1].sampling
        assert (sampling.temperature, sampling.top_k, sampling.top_p) == expected
