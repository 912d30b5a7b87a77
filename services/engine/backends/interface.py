"""What the engine's loop and the KV transfer ask of a device.

A backend either offers the operations that models call (`OpsBackend`, driven by `ModelRunner`), or computes and samples
whole steps itself (it is a `Runner`).
"""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from services.common.request import TokenLogprob
from services.engine.arrays import Ints
from services.engine.batch import Batch
from services.engine.models.layers import Decoder
from services.engine.ops import Ops, QkNorm

__all__ = ["Backend", "Copy", "Heads", "Ops", "OpsBackend", "QkNorm", "Runner", "StepResult"]


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


class Backend(Protocol):
    """A device and its pool. Owned by the engine's loop."""

    name: str
    device: torch.device
    pipeline_depth: int
    pool: Tensor
    """[num_layers, num_slots + 1, 2 * num_kv_heads, head_dim]; heads of K come first, then V."""

    def adopt(self, decoder: Decoder) -> Decoder:
        """Called once after loading: the decoder with weights in the layout that this backend computes fastest."""
        ...

    def gather(self, slots: Ints, page: Tensor) -> Copy:
        """Copy the KV of `slots` [n] into `page` [num_layers, n, 2 * num_kv_heads, head_dim], on the compute stream."""
        ...

    def scatter(self, page: Tensor, slots: Ints) -> Copy:
        """The reverse of `gather`."""
        ...


class OpsBackend(Backend, Ops, Protocol):
    """A backend whose operations models call one by one."""

    def prepare(self, batch: Batch) -> Tensor:
        """Take the step's positions and slots; return its input ids [num_tokens] on the device."""
        ...

    def remember(self, rows: Tensor, ids: Tensor) -> None:
        """Keep sampled `ids` [n] as the next inputs of `rows` [n]."""
        ...


class StepResult(Protocol):
    """A launched step. Reading waits for the device where the backend is asynchronous."""

    def token_ids(self) -> list[int]:
        """Sampled ids in the order of the batch's samples."""
        ...

    def logprobs(self) -> dict[int, TokenLogprob]:
        """Log-probabilities by sample index, of the samples that asked for them."""
        ...


class Runner(Protocol):
    """Launches steps. Owned by the loop."""

    @property
    def backend(self) -> Backend:
        """Where it computes."""
        ...

    def launch(self, batch: Batch) -> StepResult:
        """Compute a batch; its KV is in the pool and its ids are the rows' next inputs when the device gets there."""
        ...

    def set_next_ids(self, rows: list[int], ids: list[int]) -> None:
        """Give rows their next input ids from the host: tokens that were sampled elsewhere."""
        ...
