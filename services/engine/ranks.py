"""Tensor parallel ranks of one engine: each holds its share of the heads and of the MLPs, and takes the same turns.

Rank 0 hears the control process and begins every turn (`agreement`). Sums over ranks are equal on all of them to the
last bit, and sampling noise is a function of the sequence: each rank samples for itself and draws the same tokens, so
that no step waits for ids from another rank. A checksum in every turn ends the engine should they ever differ.

The ranks of an engine are processes of one host. They meet in a folder of their own, made for one start: torch's store
is a file in it and the sockets lie beside, so there is no port to choose that somebody else could take meanwhile.
"""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from services.engine.agreement import Agreement
from services.engine.config import ConfigError, EngineConfig

_ENVIRONMENT = {
    "GLOO_SOCKET_IFNAME": "lo",  # one host: whatever its name resolves to is not asked
    "NCCL_NVLS_ENABLE": "0",
    # NVLink multicast: at the sizes of a decode step it buys nothing here, and it needs a fabric that every host of a
    # cluster would have to have in order.
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
}


class Ranks:
    """This process's place among them; made once by whoever loads the model. With one rank nothing is sent."""

    def __init__(self, rank: int = 0, count: int = 1, folder: str = "", device: torch.device | None = None) -> None:
        """Join the others in `folder`, which all name; waits for them."""
        self.rank, self.count, self.folder = rank, count, Path(folder)
        self.agreement = Agreement(rank, count, folder)
        if count > 1:
            for name, value in _ENVIRONMENT.items():
                os.environ.setdefault(name, value)
            on_cuda = device is not None and device.type == "cuda"
            store = f"file://{Path(folder).resolve() / 'store'}"
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if on_cuda else "gloo", init_method=store, rank=rank, world_size=count
            )

    def check(self, counts: dict[str, int]) -> None:
        """Raise ConfigError naming a count that cannot be split evenly."""
        for name, count in counts.items():
            if count % self.count:
                raise ConfigError(f"--tp: {self.count} is not allowed; it must divide the model's {name} of {count}")

    def total(self, x: Tensor) -> Tensor:
        """Sum x over ranks, in place."""
        if self.count > 1:
            dist.all_reduce(x)
        return x

    def each(self, n: int) -> list[int]:
        """Return every rank's n, in the order of ranks."""
        if self.count == 1:
            return [n]
        values = [torch.zeros(1, dtype=torch.int64) for _ in range(self.count)]
        dist.all_gather(values, torch.tensor([n]))
        return [int(value) for value in values]

    def gather(self, x: Tensor) -> Tensor:
        """Return `[count, *x.shape]`: every rank's x, of one shape."""
        if self.count == 1:
            return x[None]
        out = x.new_empty(self.count * x.shape[0], *x.shape[1:])
        dist.all_gather_into_tensor(out, x.contiguous())
        return out.view(self.count, *x.shape)

    def gather_columns(self, x: Tensor) -> Tensor:
        """Put every rank's columns side by side: `[n, k]` -> `[n, count * k]`."""
        return self.gather(x).transpose(0, 1).reshape(len(x), self.count * x.shape[1])

    def close(self) -> None:
        """Leave the others."""
        self.agreement.close()
        if self.count > 1:
            dist.destroy_process_group()


def join_ranks(config: EngineConfig, device: torch.device) -> Ranks:
    """Join the ranks that the configuration names."""
    return Ranks(config.rank, config.num_ranks, config.rendezvous, device)
