"""A model is named by a path or a hub id; anything else is refused with what was expected."""

from pathlib import Path

import pytest

from services.common.model_source import model_name, resolve_model
from services.common.options import ConfigError


def test_folder_is_found_by_path_and_named_by_its_last_part(tmp_path: Path) -> None:
    folder = tmp_path / "tiny-llama"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    assert resolve_model(str(folder)) == folder.resolve()
    assert model_name(f"{folder}/") == "tiny-llama"


def test_gguf_is_taken_as_file_and_inside_a_folder(tmp_path: Path) -> None:
    gguf = tmp_path / "tiny.gguf"
    gguf.touch()
    assert resolve_model(str(gguf)) == gguf.resolve()
    assert resolve_model(str(tmp_path)) == tmp_path.resolve()


@pytest.mark.parametrize("model", ["", "./gone", "/gone/too", "~/gone", "no-owner", "a/b/c"])
def test_missing_path_that_is_no_hub_id_is_refused(model: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="--model: "):
        resolve_model(model)


def test_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").touch()
    with pytest.raises(ConfigError, match="a file must be a GGUF"):
        resolve_model(str(tmp_path / "weights.bin"))


def test_hub_id_that_cannot_be_downloaded_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(model: str, allow_patterns: list[str]) -> str:
        assert "*.safetensors" in allow_patterns
        raise OSError(f"no network for {model}")

    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
    with pytest.raises(ConfigError, match="'owner/model' could not be downloaded from the hub: no network for"):
        resolve_model("owner/model")
    assert model_name("owner/model") == "owner/model"
