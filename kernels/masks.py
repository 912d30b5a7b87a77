"""Tokens ruled out of rows of logits by bits. Only what is ruled out is written: logits are not read."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.launch import expect_rows_contiguous, expect_shape

_WORDS = 64
"""Words a program: 2048 tokens."""


@triton.jit
def _rule_out(logits_ptr, rows_ptr, words_ptr, vocab, num_words, row_stride, WORDS: tl.constexpr):
    """Grid `(n, cdiv(num_words, WORDS))`."""
    mask = tl.program_id(0)
    base = logits_ptr + tl.load(rows_ptr + mask).to(tl.int64) * row_stride
    at = tl.program_id(1) * WORDS + tl.arange(0, WORDS)
    words = tl.load(words_ptr + mask * num_words + at, mask=at < num_words, other=-1)
    bit = tl.arange(0, 32)
    cols = at[:, None] * 32 + bit[None, :]
    is_out = ((words[:, None] >> bit[None, :]) & 1) == 0
    tl.store(base + cols, tl.full([WORDS, 32], float("-inf"), tl.float32), mask=is_out & (cols < vocab))


def rule_out(logits: torch.Tensor, rows: torch.Tensor, words: torch.Tensor) -> None:
    """Set to -inf, in row `rows[i]` of the logits, each token whose bit in `words[i]` is 0, for each i.

    Args:
        logits: `[num_rows, vocab]`, bf16 | fp16 | fp32, last dimension contiguous; written.
        rows: `[n]` int32.
        words: `[n, cdiv(vocab, 32)]` int32, contiguous: bit b of word w is token 32 w + b.

    Raises:
        ValueError: a shape does not fit.
    """
    count, vocab = rows.shape[0], logits.shape[1]
    num_words = triton.cdiv(vocab, 32)
    expect_rows_contiguous("logits", logits)
    expect_shape("words", words, (count, num_words))
    if count:
        _rule_out[(count, triton.cdiv(num_words, _WORDS))](
            logits, rows, words, vocab, num_words, logits.stride(0), WORDS=_WORDS, num_warps=4
        )
