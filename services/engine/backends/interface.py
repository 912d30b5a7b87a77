"""What a backend offers: the operations that models are built from, on the step at hand.

Models call these and nothing else of the device, so a backend may fuse as it likes: rope with the KV write, the gate
with its GEMM. A step's own data (positions, slots, context lengths) is in the opaque value that `prepare` returned.
"""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from services.engine.arrays import Ints
from services.engine.batch import Batch


class QkNorm(NamedTuple):
    """Per-head RMS norm of queries and keys before rope (qwen3): weights [head_dim]."""

    q_weight: Tensor
    k_weight: Tensor
    eps: float


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


class Ops(Protocol):
    """Called by models, in the engine's process, on the one compute stream."""

    def embed(self, ids: Tensor, weight: Tensor) -> Tensor:
        """Rows of `weight` [vocab_size, hidden] for `ids` [num_tokens]."""
        ...

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """`x @ weight.T + bias`; x [num_tokens, in], weight [out, in]."""
        ...

    def gated_linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """`silu(gate) * up` where [gate, up] = linear(x); weight [2 * intermediate, in]."""
        ...

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Root-mean-square norm of x [num_tokens, hidden] in float32 (arXiv 1910.07467)."""
        ...

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Add x into `residual` in place and return the norm of the sum."""
        ...

    def attend(self, layer: int, qkv: Tensor, norm: QkNorm | None) -> Tensor:
        """Rope queries and keys, write keys and values to the step's slots, and attend causally.

        qkv: [num_tokens, (num_heads + 2 * num_kv_heads) * head_dim], may be overwritten.
        Returns [num_tokens, num_heads * head_dim].
        """
        ...

    def reduce(self, x: Tensor) -> Tensor:
        """Sum over tensor-parallel ranks; the identity on one."""
        ...


class Backend(Ops, Protocol):
    """A device: its pool, its tables and its operations. Owned by the model runner."""

    name: str
    device: torch.device
    pipeline_depth: int
    pool: Tensor
    """[num_layers, num_slots + 1, 2 * num_kv_heads, head_dim]; heads of K come first, then V."""

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
