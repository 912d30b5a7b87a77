"""Draws from filtered, tempered distributions with the noise of each sequence's own key, on the CPU.

Gumbel-max: argmax(logit / temperature + noise) is a draw from the softmax. Filters therefore only have to say who takes
part; nothing is normalised or sorted over the whole vocabulary, unless a top-p nucleus is very wide.
"""

import numpy as np
import torch
from torch import Tensor

from services.common.request import SamplingParams
from services.engine.noise import Keys, gumbel

_NUCLEUS = 256
"""Candidates that a top-p nucleus is looked for in at first; a wider one is looked for among all tokens."""


def draw(logits: Tensor, params: list[SamplingParams], keys: list[int]) -> Tensor:
    """logits: [n, vocab_size], float32, edited; row i is drawn under params[i], temperature > 0. Returns [n] int64."""
    temperatures = torch.tensor([p.temperature for p in params])
    scaled = logits / temperatures[:, None]
    ids = torch.empty(len(params), dtype=torch.int64)
    packed = np.array(keys, np.uint64)
    cut = np.array([p.top_k > 0 or p.top_p < 1.0 for p in params])
    for rows, pick in ((np.flatnonzero(~cut), _draw_all), (np.flatnonzero(cut), _draw_cut)):
        if len(rows):
            ids[torch.from_numpy(rows)] = pick(scaled[rows], [params[i] for i in rows.tolist()], packed[rows])
    return ids


def _draw_all(scaled: Tensor, params: list[SamplingParams], keys: Keys) -> Tensor:
    """Every token takes part, but for those below min-p."""
    _drop_below_min_p(scaled, params)
    noise = gumbel(keys, np.arange(scaled.shape[1], dtype=np.uint32))
    return (scaled + torch.from_numpy(noise)).argmax(-1)


def _draw_cut(scaled: Tensor, params: list[SamplingParams], keys: Keys) -> Tensor:
    """Only the top-k, and of them the top-p nucleus."""
    widest = max(p.top_k for p in params)
    if any(p.top_p < 1.0 and p.top_k == 0 for p in params):
        widest = max(widest, _NUCLEUS)
    values, ids = _candidates(scaled, params, min(widest, scaled.shape[1]))
    _drop_below_min_p(values, params)
    noise = gumbel(keys, ids.numpy().astype(np.uint32))
    best = (values + torch.from_numpy(noise)).argmax(-1, keepdim=True)
    return ids.gather(1, best).squeeze(1)


def _candidates(scaled: Tensor, params: list[SamplingParams], k: int) -> tuple[Tensor, Tensor]:
    """The k likeliest tokens of each row, -inf where top-k or top-p rules one out: values and ids, [n, k]."""
    vocab_size = scaled.shape[1]
    values, ids = scaled.topk(k, dim=-1)
    top_k = torch.tensor([p.top_k or vocab_size for p in params])
    values.masked_fill_(torch.arange(k) >= top_k[:, None], -torch.inf)
    # Probabilities among the top-k tokens: with a top-k all of them are here, without one the rest counts too.
    everything = torch.where(top_k < vocab_size, values.logsumexp(-1), scaled.logsumexp(-1))
    mass = (values - everything[:, None]).exp().cumsum(-1)
    top_p = torch.tensor([p.top_p for p in params])
    if k < vocab_size and bool(((mass[:, -1] < top_p) & (top_k > k)).any()):
        return _candidates(scaled, params, vocab_size)
    before = torch.nn.functional.pad(mass[:, :-1], (1, 0))
    outside = before >= top_p[:, None]
    outside[:, 0] = False  # the likeliest token always takes part
    return values.masked_fill_(outside & (top_p < 1.0)[:, None], -torch.inf), ids


def _drop_below_min_p(scaled: Tensor, params: list[SamplingParams]) -> None:
    """Rule out, in place, tokens less likely than min_p times the likeliest (arXiv 2407.01082)."""
    if any(p.min_p > 0 for p in params):
        least = torch.tensor([p.min_p for p in params]).log() + scaled.max(-1).values
        scaled.masked_fill_(scaled < least[:, None], -torch.inf)
