"""The parts that decoders are built from. Weights are this rank's share; head and width counts follow from them."""

from dataclasses import dataclass

from torch import Tensor

from services.engine.models.experts import RoutedMlp
from services.engine.ops import Ops, QkNorm


@dataclass(frozen=True, slots=True)
class Linear:
    """`x @ weight.T + bias`: weight [out, in], bias [out] or None."""

    weight: Tensor
    bias: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Attention:
    """Self-attention over the KV pool: q, k and v in one product, the output summed over ranks."""

    layer: int
    qkv: Linear
    out: Linear
    qk_norm: QkNorm | None = None

    def __call__(self, x: Tensor, ops: Ops) -> Tensor:
        """[num_tokens, hidden] -> [num_tokens, hidden]."""
        qkv = ops.linear(x, self.qkv.weight, self.qkv.bias)
        attended = ops.attend(self.layer, qkv, self.qk_norm)
        return ops.reduce(ops.linear(attended, self.out.weight, self.out.bias))


@dataclass(frozen=True, slots=True)
class GatedMlp:
    """SwiGLU (arXiv 2002.05202): gate and up in one product."""

    gate_up: Linear
    down: Linear

    def __call__(self, x: Tensor, ops: Ops) -> Tensor:
        """[num_tokens, hidden] -> [num_tokens, hidden]."""
        hidden = ops.gated_linear(x, self.gate_up.weight, self.gate_up.bias)
        return ops.reduce(ops.linear(hidden, self.down.weight, self.down.bias))


@dataclass(frozen=True, slots=True)
class Block:
    """One pre-norm decoder layer."""

    attention_norm: Tensor
    attention: Attention
    mlp_norm: Tensor
    mlp: GatedMlp | RoutedMlp


@dataclass(frozen=True, slots=True)
class Decoder:
    """A pre-norm decoder: embedding, blocks, final norm, output head."""

    embedding: Tensor  # [vocab_size, hidden]
    blocks: list[Block]
    norm: Tensor
    head: Tensor  # [vocab_size / ranks, hidden], or [vocab_size, hidden] on each; of the embedding itself when tied
    norm_eps: float

    @property
    def vocab_size(self) -> int:
        """Tokens of the whole vocabulary."""
        return self.embedding.shape[0]

    def forward(self, ids: Tensor, ops: Ops) -> Tensor:
        """Return the last layer's hidden states [num_tokens, hidden], not yet normed, and write the step's KV."""
        residual = ops.embed(ids, self.embedding)
        eps = self.norm_eps
        x = ops.rms_norm(residual, self.blocks[0].attention_norm, eps)
        for i, block in enumerate(self.blocks):
            if i:
                x = ops.add_rms_norm(x, residual, block.attention_norm, eps)
            x = ops.add_rms_norm(block.attention(x, ops), residual, block.mlp_norm, eps)
            x = block.mlp(x, ops)
        return residual.add_(x)

    def states(self, ids: Tensor, wanted: Tensor | None, ops: Ops) -> Tensor:
        """The forward's hidden states of the tokens `wanted` [n], int64, or of all: what `logits` takes."""
        hidden = self.forward(ids, ops)
        return hidden if wanted is None else hidden[wanted]

    def logits(self, hidden: Tensor, ops: Ops) -> Tensor:
        """[n, hidden] -> [n, vocab_size] of the tokens that are sampled from."""
        logits = ops.linear(ops.rms_norm(hidden, self.norm, self.norm_eps), self.head, None)
        return logits if logits.shape[1] == self.vocab_size else ops.gather_columns(logits)
