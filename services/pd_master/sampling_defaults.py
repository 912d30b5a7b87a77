"""The sampling a model's makers recommend (`generation_config.json`), for what a client leaves open."""

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta


class SamplingDefaults(msgspec.Struct, frozen=True):
    """Values of the fields that clients may leave out; without a recommendation, the neutral ones."""

    temperature: Annotated[float, Meta(ge=0, le=100)] = 1.0
    top_k: Annotated[int, Meta(ge=0)] = 0
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    min_p: Annotated[float, Meta(ge=0, le=1)] = 0.0
    repetition_penalty: Annotated[float, Meta(gt=0, le=100)] = 1.0


class _Config(msgspec.Struct):
    """The fields of the file that count; a null says nothing."""

    do_sample: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


def read_defaults(folder: Path) -> SamplingDefaults:
    """Neutral values without the file, and where it says `do_sample: false`, which is about another program's defaults.

    Raises ValueError for a file that makes no sense.
    """
    path = folder / "generation_config.json"
    if not path.is_file():
        return SamplingDefaults()
    try:
        config = msgspec.json.decode(path.read_bytes(), type=_Config)
        given = {name: value for name, value in msgspec.to_builtins(config).items() if value is not None}
        if given.pop("do_sample", None) is False:
            return SamplingDefaults()
        return msgspec.convert(given, SamplingDefaults)
    except msgspec.MsgspecError as error:
        raise ValueError(f"{path}: {error}") from error
