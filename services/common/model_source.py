"""From what a person calls a model to the folder it lies in. No torch: control processes read its tokenizer too."""

from pathlib import Path

from services.common.options import ConfigError

_FILES = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt", "*.gguf")


def resolve_model(model: str) -> Path:
    """Return the local folder (or GGUF file) of a model, downloading it when `model` is a hub id, `owner/name`.

    Raises ConfigError when it is neither an existing path nor a model that the hub gives.
    """
    path = Path(model).expanduser()
    if path.exists():
        return _checked(path)
    if model.count("/") != 1 or model.startswith((".", "~", "/")):
        raise ConfigError(
            f"--model: {model!r} is not allowed; it is no existing path, nor a hub id of the form owner/name"
        )
    return _checked(_download(model))


def model_name(model: str) -> str:
    """Return the name a model is served under when none was given: the hub id, or the last part of the path."""
    path = Path(model).expanduser()
    return path.resolve().name if path.exists() else model


def _checked(path: Path) -> Path:
    if path.is_file() and path.suffix != ".gguf":
        raise ConfigError(f"--model: {path} is not allowed; a file must be a GGUF, else give the folder")
    if path.is_dir() and not (path / "config.json").is_file() and not any(path.glob("*.gguf")):
        raise ConfigError(f"--model: {path} is not allowed; the folder has neither config.json nor a GGUF file")
    return path.resolve()


def _download(model: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(model, allow_patterns=list(_FILES)))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConfigError(f"--model: {model!r} could not be downloaded from the hub: {reason}") from error
