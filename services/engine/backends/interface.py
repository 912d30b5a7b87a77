"""What `ModelRunner` asks of a device: the operations that models call, and what stands around them in a step."""

from typing import NamedTuple, Protocol

from torch import Tensor

from services.engine.batch import Batch
from services.engine.models.layers import Decoder
from services.engine.ops import Ops, QkNorm
from services.engine.runner import Device

__all__ = ["Backend", "Heads", "Ops", "QkNorm"]


class Heads(NamedTuple):
    """Attention heads of this rank."""

    num_heads: int
    num_kv_heads: int
    head_dim: int


class Backend(Device, Ops, Protocol):
    """A device, its pool, its tables and its operations. Owned by the model runner."""

    def adopt(self, decoder: Decoder) -> Decoder:
        """Called once after loading: the decoder with weights in the layout that this backend computes fastest."""
        ...

    def prepare(self, batch: Batch) -> Tensor:
        """Take the step's positions and slots; return its input ids [num_tokens] on the device."""
        ...

    def remember(self, rows: Tensor, ids: Tensor) -> None:
        """Keep sampled `ids` [n] as the next inputs of `rows` [n]."""
        ...
