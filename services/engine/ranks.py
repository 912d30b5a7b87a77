"""Tensor parallel ranks of one engine: each holds its share of the heads and of the MLPs, and takes the same turns.

Rank 0 hears the control process and passes every turn's commands on; from the same commands every rank makes the same
steps, rows and slots, so nothing else has to agree. Sums over ranks are equal on all of them to the last bit, and
sampling noise is a function of the sequence: they draw the same tokens.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from services.common.ipc import Command, decode_commands, encode
from services.engine.config import ConfigError, EngineConfig


class Ranks:
    """This process's place among them; made once by whoever loads the model. With one rank nothing is sent."""

    def __init__(self, rank: int = 0, count: int = 1, rendezvous: str = "") -> None:
        """Join the others at `rendezvous`, a `tcp://host:port` or `file://path` that all name; waits for them."""
        self.rank, self.count = rank, count
        if count > 1:
            dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=count)

    def check(self, counts: dict[str, int]) -> None:
        """Raise ConfigError naming a count that cannot be split evenly."""
        for name, count in counts.items():
            if count % self.count:
                raise ConfigError(f"num_ranks is {self.count}; the model's {name} of {count} cannot be split evenly")

    def total(self, x: Tensor) -> Tensor:
        """Sum x over ranks, in place."""
        if self.count > 1:
            dist.all_reduce(x)
        return x

    def least(self, n: int) -> int:
        """Return the smallest n of all ranks."""
        if self.count == 1:
            return n
        value = torch.tensor([n])
        dist.all_reduce(value, dist.ReduceOp.MIN)
        return int(value)

    def share(self, commands: list[Command]) -> list[Command]:
        """Return rank 0's commands of this turn, on every rank; others wait for them."""
        if self.count == 1:
            return commands
        frame = torch.frombuffer(bytearray(encode(commands)), dtype=torch.uint8) if self.rank == 0 else None
        size = torch.tensor([0 if frame is None else len(frame)])
        dist.broadcast(size, 0)
        if frame is None:
            frame = torch.empty(int(size), dtype=torch.uint8)
        dist.broadcast(frame, 0)
        return commands if self.rank == 0 else decode_commands(frame.numpy().tobytes())

    def close(self) -> None:
        """Leave the others."""
        if self.count > 1:
            dist.destroy_process_group()


def join_ranks(config: EngineConfig) -> Ranks:
    """Join the ranks that the configuration names."""
    return Ranks(config.rank, config.num_ranks, config.rendezvous)
