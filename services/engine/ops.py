"""The operations that models are built from, on the step at hand.

Models call these and nothing else of the device, so a backend may fuse as it likes: rope with the KV write, the gate
with its GEMM. A step's own data (positions, slots, context lengths) is the backend's, which `prepare` gave it.
"""

from typing import NamedTuple, Protocol

from torch import Tensor


class QkNorm(NamedTuple):
    """Per-head RMS norm of queries and keys before rope (qwen3): weights [head_dim]."""

    q_weight: Tensor
    k_weight: Tensor
    eps: float


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

    def experts(self, x: Tensor, chosen: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
        """`sum_j weights[:, j] * gated MLP of expert chosen[:, j]`; x [num_tokens, hidden].

        chosen: [num_tokens, k] int64; weights: [num_tokens, k]; gate_up: [E, 2 * intermediate, hidden], gate rows
        first; down: [E, hidden, intermediate].
        """
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

    @property
    def positions(self) -> Tensor:
        """The step's positions [num_tokens], int64."""
        ...

    def attend_rotated(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Write k and v to the step's slots and attend causally, for models that rotate queries and keys themselves.

        q: [num_tokens, num_heads, head_dim]; k, v: [num_tokens, num_kv_heads, head_dim]. Returns the shape of q.
        """
        ...

    def gather_columns(self, x: Tensor) -> Tensor:
        """Put the columns of all tensor-parallel ranks side by side."""
        ...

    def reduce(self, x: Tensor) -> Tensor:
        """Sum over tensor-parallel ranks; the identity on one."""
        ...
