"""What a backend offers to the model runner and to the KV transfer, beside the operations that models call."""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from services.engine.arrays import Ints
from services.engine.batch import Batch
from services.engine.models.layers import Decoder
from services.engine.ops import Ops, QkNorm

__all__ = ["Backend", "Copy", "Heads", "Ops", "QkNorm"]


class Heads(NamedTuple):
    """Attention heads of this rank."""

    num_heads: int
    num_kv_heads: int
    head_dim: int


class Copy(Protocol):
    """A launched copy between pool and page."""

    def done(self) -> bool:
        """Whether the device has finished it: only then may the page go on."""
        ...


class Backend(Ops, Protocol):
    """A device: its pool, its tables and its operations. Owned by the model runner."""

    name: str
    device: torch.device
    pipeline_depth: int
    pool: Tensor
    """[num_layers, num_slots + 1, 2 * num_kv_heads, head_dim]; heads of K come first, then V."""

    def adopt(self, decoder: Decoder) -> Decoder:
        """Called once after loading: the decoder with weights in the layout that this backend computes fastest."""
        ...

    def prepare(self, batch: Batch) -> Tensor:
        """Take the step's positions and slots; return its input ids [num_tokens] on the device."""
        ...

    def gather(self, slots: Ints, page: Tensor) -> Copy:
        """Copy the KV of `slots` [n] into `page` [num_layers, n, 2 * num_kv_heads, head_dim], on the compute stream."""
        ...

    def scatter(self, page: Tensor, slots: Ints) -> Copy:
        """The reverse of `gather`."""
        ...

    def remember(self, rows: Tensor, ids: Tensor) -> None:
        """Keep sampled `ids` [n] as the next inputs of `rows` [n]."""
        ...
