"""A decode step as a fixed list of launches over fixed buffers, so that a CUDA graph can hold it.

One token a row. Between the five products of a layer there is no kernel but attention: each product scales its input
by the norm's row factor, and adds the residual and prepares the next norm on its way out (`kernels.skinny_gemm`).
A product that runs through cuBLAS takes the ordinary norm and activation kernels beside it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernels.embedding import embedding
from kernels.experts import routed_experts
from kernels.layout import Heads, Rope, SlotTable
from kernels.ranks import Mailbox
from kernels.rms_norm import rms_norm
from kernels.skinny_gemm import GemmShape, NormIn, NormOut, SplitSpace, skinny_gemm
from kernels.streamed_gemm import StreamShape, streamed_gemm
from kernels.swiglu import swiglu
from services.engine.backends.cuda.rank_sums import RankSums
from services.engine.backends.cuda.recipe import DecodeRecipe, Product, SplitDepth
from services.engine.backends.cuda.step_attention import StepAttention
from services.engine.models.experts import RoutedMlp
from services.engine.models.layers import Block, Decoder, Linear

_EMBEDDING_TILES = 1


class DecodeBuffers:
    """Everything a step writes, for up to `max_rows` rows; shared by the graphs of all batch sizes.

    Graphs run one after another on one stream, so they may share it.
    """

    def __init__(self, decoder: Decoder, heads: Heads, max_rows: int, vocab: int) -> None:
        weight = decoder.embedding
        hidden, device = weight.shape[1], weight.device
        plain = [block.mlp.down.weight.shape[1] for block in decoder.blocks if not isinstance(block.mlp, RoutedMlp)]
        inner = max(plain, default=1)

        def rows(width: int, dtype: torch.dtype = weight.dtype) -> Tensor:
            return torch.zeros(max_rows, width, dtype=dtype, device=device)

        self.residual, self.normed, self.scaled = rows(hidden), rows(hidden), rows(hidden)
        self.qkv, self.attended = rows(heads.qkv_width), rows(heads.num_heads * heads.head_dim)
        self.gate_up, self.inner = rows(2 * inner), rows(inner)
        self.logits = rows(vocab)
        self.squares = torch.zeros(max(hidden // 16, 1), max_rows, device=device)
        self.split = SplitSpace(
            torch.empty(max(_SPLIT_FLOATS, _MAX_PARTS * max_rows * hidden), device=device),
            torch.zeros(4096, dtype=torch.int32, device=device),
        )


_SPLIT_FLOATS = 8 << 20
_MAX_PARTS = 4


class DecodeStep:
    """The launches of one batch size. Called by the backend, inside a graph capture or outside.

    `ids`, `context_lens` and `slots` are read when a launch runs, so a graph follows what is written into them.
    """

    def __init__(  # noqa: PLR0913 - what a step is made of
        self, decoder: Decoder, heads: Heads, rope: Rope, pool: Tensor, buffers: DecodeBuffers, rows: int,
        recipe: DecodeRecipe, sums: RankSums | None = None,
    ) -> None:  # fmt: skip
        """`sums`: of the ranks that the decoder is split over; None for one."""
        self._decoder, self._recipe, self._all, self._sums = decoder, recipe, buffers, sums
        self._attention = StepAttention(heads, rope, pool, rows, recipe)
        b = buffers
        self._residual, self._normed, self._scaled = b.residual[:rows], b.normed[:rows], b.scaled[:rows]
        self._qkv, self._attended = b.qkv[:rows], b.attended[:rows]
        self._gate_up, self._inner, self.logits = b.gate_up[:rows], b.inner[:rows], b.logits[:rows]
        self._parts: Tensor | None = None
        """Products `[parts, rows, hidden]` that are still to be added to the residual."""
        self._tiles = 0
        """Tiles of squares that the last producer of the residual left; 0 when it was cuBLAS."""

    def __call__(self, ids: Tensor, context_lens: Tensor, slots: SlotTable) -> Tensor:
        """Launch a step of `ids [rows]`; return the logits `[rows, vocab]`, overwritten by the next step."""
        decoder, pdl = self._decoder, self._recipe.pdl
        self._attention.plan(context_lens, slots)
        first = NormOut(decoder.blocks[0].attention_norm, self._scaled, self._all.squares)
        embedding(ids, decoder.embedding, self._residual, first, _EMBEDDING_TILES, pdl=pdl)
        self._tiles = _EMBEDDING_TILES
        for i, block in enumerate(decoder.blocks):
            last = i + 1 == len(decoder.blocks)
            next_norm = decoder.norm if last else decoder.blocks[i + 1].attention_norm
            self._layer(i, block, next_norm, context_lens, slots)
        self._from_residual(Linear(decoder.head), decoder.norm, self._recipe.head, self.logits)
        return self.logits

    def _layer(self, i: int, block: Block, next_norm: Tensor, context_lens: Tensor, slots: SlotTable) -> None:
        recipe, attention, mlp = self._recipe, block.attention, block.mlp
        self._from_residual(attention.qkv, block.attention_norm, recipe.qkv, self._qkv)
        self._attention(i, attention, self._qkv, context_lens, slots, self._attended)
        self._to_residual(self._attended, attention.out, recipe.out, block.mlp_norm)
        if isinstance(mlp, RoutedMlp):
            self._routed(mlp, block.mlp_norm)
            return
        self._gated(mlp.gate_up, block.mlp_norm)
        self._to_residual(self._inner, mlp.down, recipe.down, next_norm)

    def _routed(self, mlp: RoutedMlp, norm: Tensor) -> None:
        """Add the experts' output to the residual; no fused edges, and some small launches for the routing."""
        self._norm(norm)
        routed = routed_experts(self._normed, *mlp.choose(self._normed), mlp.gate_up, mlp.down)
        if self._sums is None:
            self._residual.add_(routed)
        else:
            self._sums.add(self._sums.partial(len(routed)).copy_(routed), self._residual)
        self._tiles = 0

    def _from_residual(self, linear: Linear, norm: Tensor, shape: Product, out: Tensor, *, gated: bool = False) -> None:
        """Write the product of the normed residual into `out`."""
        assert not isinstance(shape, SplitDepth)
        if shape is not None and self._tiles:
            norm_in = NormIn(self._all.squares, self._tiles, self._decoder.norm_eps)
            self._gemm(self._scaled, linear, out, shape, gated=gated, norm_in=norm_in)
            return
        self._norm(norm)
        if shape is not None:
            self._gemm(self._normed, linear, out, shape, gated=gated)
        else:
            _matmul(self._normed, linear, out)

    def _norm(self, weight: Tensor) -> None:
        """Bring the residual up to date and write its norm."""
        x, self._parts = self._parts, None
        rms_norm(
            self._residual if x is None else x, weight, self._normed, self._decoder.norm_eps,
            residual=None if x is None else self._residual, pdl=self._recipe.pdl,
        )  # fmt: skip

    def _gemm(  # noqa: PLR0913 - the edges of a product
        self, x: Tensor, linear: Linear, out: Tensor, shape: GemmShape | StreamShape, *, gated: bool = False,
        residual: Tensor | None = None, norm_in: NormIn | None = None, norm_out: NormOut | None = None,
        over: Mailbox | None = None,
    ) -> None:  # fmt: skip
        launch: Callable[..., None] = streamed_gemm if isinstance(shape, StreamShape) else skinny_gemm
        launch(x, linear.weight, out, shape, gated=gated, bias=linear.bias, residual=residual, norm_in=norm_in,
               norm_out=norm_out, split=self._all.split, over=over, pdl=self._recipe.pdl)  # fmt: skip

    def _gated(self, linear: Linear, norm: Tensor) -> None:
        shape = self._recipe.gate_up
        if shape is not None and linear.bias is None:  # the products add a bias behind the activation
            self._from_residual(linear, norm, shape, self._inner, gated=True)
        else:
            self._from_residual(linear, norm, None, self._gate_up)
            swiglu(self._gate_up, self._inner, pdl=self._recipe.pdl)

    def _to_residual(self, x: Tensor, linear: Linear, shape: Product, next_norm: Tensor) -> None:
        """Add the product of `x` to the residual, or leave it in parts for the norm behind to add."""
        if self._sums is not None:
            self._sum_to_residual(self._sums, x, linear, shape, next_norm)
            return
        if shape is None or isinstance(shape, SplitDepth):
            if shape is not None and shape.pays(len(x), linear.weight):
                self._parts = _products_in_parts(x, linear.weight, shape.parts, self._all.split.partial)
            else:
                torch.addmm(self._residual, x, linear.weight.t(), out=self._residual)
            if linear.bias is not None:
                self._residual.add_(linear.bias)
            self._tiles = 0
            return
        self._product_to_residual(x, linear, shape, next_norm)

    def _product_to_residual(
        self, x: Tensor, linear: Linear, shape: GemmShape | StreamShape, next_norm: Tensor, over: Mailbox | None = None
    ) -> None:  # fmt: skip
        """One launch with all edges; `over`: see `kernels.skinny_gemm`."""
        norm_out = NormOut(next_norm, self._scaled, self._all.squares)
        self._gemm(x, linear, self._residual, shape, residual=self._residual, norm_out=norm_out, over=over)
        self._tiles = -(-self._residual.shape[1] // shape.block_n)

    def _sum_to_residual(
        self, sums: RankSums, x: Tensor, linear: Linear, shape: Product, next_norm: Tensor
    ) -> None:  # fmt: skip
        """Add the sum over ranks of the products of `x`: the sum has the edges that the product has on one rank."""
        partial = sums.partial(len(x))
        if isinstance(shape, GemmShape | StreamShape):
            over = sums.box_of(shape, len(x))
            if over is not None:
                self._product_to_residual(x, linear, shape, next_norm, over)
                return
            self._gemm(x, linear, partial, shape)
        else:
            _matmul(x, linear, partial)
        norm_out = NormOut(next_norm, self._scaled, self._all.squares)
        self._tiles = sums.add(partial, self._residual, norm_out, pdl=self._recipe.pdl)


def _products_in_parts(x: Tensor, weight: Tensor, parts: int, space: Tensor) -> Tensor:
    """Return float32 `[parts, rows, n]` in `space`, whose sum is `x @ weight.T`."""
    (rows, k), n = x.shape, weight.shape[0]
    out = space[: parts * rows * n].view(parts, rows, n)
    a, b = x.view(rows, parts, k // parts).transpose(0, 1), weight.view(n, parts, k // parts).permute(1, 2, 0)
    if x.is_cuda:
        torch.bmm(a, b, out_dtype=torch.float32, out=out)
    else:
        torch.bmm(a.float(), b.float(), out=out)
    return out


def _matmul(x: Tensor, linear: Linear, out: Tensor) -> None:
    if linear.bias is None:
        torch.mm(x, linear.weight.t(), out=out)
    else:
        torch.addmm(linear.bias, x, linear.weight.t(), out=out)
