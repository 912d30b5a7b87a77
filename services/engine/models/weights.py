"""Weights from a checkpoint to the device: found by name, checked by shape, split by rank, fused as they are used."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from services.engine.config import ConfigError
from services.engine.models.layers import Linear


class WeightSource(Protocol):
    """Where tensors come from."""

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return the tensor on the CPU or the device; raises ConfigError when it is missing."""
        ...


class Weights:
    """Hands out this rank's share of each weight, on `device` in `dtype`. Used once, while the model is built."""

    def __init__(
        self, source: WeightSource, device: torch.device, dtype: torch.dtype, *, rank: int = 0, num_ranks: int = 1
    ) -> None:
        self._source = source
        self._device = device
        self._dtype = dtype
        self._rank = rank
        self._num_ranks = num_ranks

    def whole(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """One tensor, the same on every rank."""
        return self._read(name, shape).to(self._device, self._dtype)

    def share_of_rows(self, name: str, shape: tuple[int, int]) -> Tensor:
        """This rank's share of a tensor's rows; all of them, on every rank, where they cannot be split evenly."""
        if shape[0] % self._num_ranks:
            return self.whole(name, shape)
        return self.own_rows(self._read(name, shape)).to(self._device, self._dtype).clone()

    def own_rows(self, x: Tensor) -> Tensor:
        """The same share of a tensor that is here, sharing its memory."""
        n = len(x) // self._num_ranks
        return x if len(x) % self._num_ranks else x[self._rank * n : (self._rank + 1) * n]

    def split_outputs(self, parts: Mapping[str, int], num_inputs: int, *, bias: bool) -> Linear:
        """Linear layers side by side in one: `parts` maps each name (without `.weight`) to its number of outputs."""
        weight = self._empty(sum(parts.values()) // self._num_ranks, num_inputs)
        biases = self._empty(weight.shape[0]) if bias else None
        start = 0
        for name, num_outputs in parts.items():
            n = self._share(name, num_outputs)
            mine = slice(self._rank * n, (self._rank + 1) * n)
            weight[start : start + n] = self._read(name + ".weight", (num_outputs, num_inputs))[mine]
            if biases is not None:
                biases[start : start + n] = self._read(name + ".bias", (num_outputs,))[mine]
            start += n
        return Linear(weight, biases)

    def split_inputs(self, name: str, num_outputs: int, num_inputs: int, *, bias: bool) -> Linear:
        """One linear layer whose outputs are summed over ranks; only rank 0 adds the bias."""
        n = self._share(name, num_inputs)
        mine = slice(self._rank * n, (self._rank + 1) * n)
        weight = self._empty(num_outputs, n)
        weight.copy_(self._read(name + ".weight", (num_outputs, num_inputs))[:, mine])
        if not bias or self._rank:
            return Linear(weight)
        return Linear(weight, self.whole(name + ".bias", (num_outputs,)))

    def _empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, device=self._device, dtype=self._dtype)

    def _share(self, name: str, n: int) -> int:
        if n % self._num_ranks:
            raise ConfigError(f"{name}: {n} cannot be split over {self._num_ranks} ranks")
        return n // self._num_ranks

    def _read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        tensor = self._source.read(name, shape)
        if tuple(tensor.shape) != shape:
            raise ConfigError(f"weight {name} has shape {list(tensor.shape)}, expected {list(shape)}")
        return tensor


class SafetensorsSource:
    """`model.safetensors`, or the files that `model.safetensors.index.json` lists."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file_of = _files_by_name(folder)
        self._open = {file: _opened(folder / file) for file in set(self._file_of.values())}

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:  # noqa: ARG002  checked by the caller
        """See WeightSource."""
        file = self._file_of.get(name)
        if file is None:
            raise ConfigError(f"{self._folder}: no weight named {name} in its safetensors files")
        tensor: Tensor = self._open[file].get_tensor(name)  # type: ignore[no-untyped-call]
        return tensor


def _files_by_name(folder: Path) -> dict[str, str]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        weight_map: dict[str, str] = json.loads(index.read_text())["weight_map"]
        for file in sorted(set(weight_map.values())):
            if not (folder / file).is_file():
                raise ConfigError(f"{index} names {file}, which is not in the folder")
        return weight_map
    single = folder / "model.safetensors"
    if not single.is_file():
        raise ConfigError(f"model folder {folder} has neither model.safetensors nor model.safetensors.index.json")
    with _opened(single) as file:
        return dict.fromkeys(file.keys(), single.name)


def _opened(path: Path) -> safe_open:
    try:
        return safe_open(path, framework="pt")
    except SafetensorError as error:
        raise ConfigError(f"{path} cannot be read; is the file whole? {error}") from error


class RandomSource:
    """Normal weights of standard deviation 0.02, norms of one: enough for timing, meaningless as text."""

    def __init__(self, device: torch.device, dtype: torch.dtype, seed: int) -> None:
        self._generator = torch.Generator(device).manual_seed(seed)
        self._device = device
        self._dtype = dtype

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """See WeightSource; the values depend on the order of reads and the seed."""
        if name.endswith("norm.weight"):
            return torch.ones(shape, device=self._device, dtype=self._dtype)
        tensor = torch.empty(shape, device=self._device, dtype=self._dtype)
        return tensor.normal_(std=0.02, generator=self._generator)
