"""Any decoder of `transformers` that has no file of its own here: its modules compute, our pool and attention attend.

    ids, positions ─> the model's body ─> attention of layer i: q, k, v, rotated ─> `attend` ─> ... ─> hidden states
    hidden states ─> the model's own forward, its body left out ─> logits

All tokens of a step are one row `[1, num_tokens]` with positions of their own; the model's cache and masks are not
used. It is slower than a family's own file: nothing is fused, and no step is captured. What the attention of a model
asks for, beyond plain causal attention over its keys, is seen in a first forward of two tokens, and refused by name.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import torch
from torch import Tensor

from services.engine.config import ConfigError
from services.engine.ops import Ops

Attend = Callable[[int, Tensor, Tensor, Tensor, float], Tensor]
"""(layer, q [num_tokens, num_heads, head_dim], k, v [num_tokens, num_kv_heads, head_dim], scale) -> like q. It writes
k and v to the step's slots first."""

_REFUSED = {
    "softcap": "a soft cap on attention scores",
    "s_aux": "attention sinks",
    "position_bias": "a position bias in attention",
    "head_mask": "a head mask",
}
_HARMLESS = {"position_ids", "cache_position", "input_ids"}
_names = count()


@dataclass(slots=True)
class Seen:
    """What attention was called with in a forward of two tokens; shapes [1, heads, 2, head_dim], an entry a layer."""

    queries: list[tuple[int, ...]] = field(default_factory=list)
    keys: list[tuple[int, ...]] = field(default_factory=list)
    windows: list[int] = field(default_factory=list)
    """Of the layers that have one."""


class GenericDecoder:
    """A model of transformers whose attention calls `attend`. Owned by the runner."""

    def __init__(self, model: Any) -> None:  # noqa: ANN401  transformers gives no types
        from transformers import AttentionInterface

        self._model = model
        self._body = model.get_decoder()
        self._body_output: Any = None
        """The class of what the body returns, once it was probed."""
        self._attend: Attend | None = None
        self._seen: Seen | None = None
        self._layer = 0
        self.vocab_size = 0
        """Known once it was probed."""
        name = f"sluice_{next(_names)}"
        AttentionInterface.register(name, self._attention)
        model.set_attn_implementation(name)

    def states(self, ids: Tensor, wanted: Tensor | None, ops: Ops) -> Tensor:
        """Hidden states [n, hidden_size] of a step's tokens `wanted` [n], or of all: what `logits` takes."""
        return self.hidden(ids, ops.positions, wanted, ops.attend_rotated)

    def logits(self, hidden: Tensor, ops: Ops) -> Tensor:  # noqa: ARG002  as of a Decoder
        """[n, hidden_size] -> [n, vocab_size] of the tokens that are sampled from."""
        return self.head(hidden)

    def hidden(self, ids: Tensor, positions: Tensor, wanted: Tensor | None, attend: Attend) -> Tensor:
        """As `states`; ids, positions: [num_tokens]."""
        hidden: Tensor = self._run(self._body, ids, positions, attend).last_hidden_state[0]
        return hidden if wanted is None else hidden[wanted]

    def head(self, hidden: Tensor) -> Tensor:
        """As `logits`. Some families scale or cap what their head says: the model's own forward does that."""

        def given(*_args: object, **_options: object) -> Any:  # noqa: ANN401
            return self._body_output(last_hidden_state=hidden[None])

        self._body.forward = given  # of this module alone: the class's own is behind it
        try:
            ids = torch.zeros(1, len(hidden), dtype=torch.int64, device=hidden.device)
            logits: Tensor = self._model(input_ids=ids, use_cache=False).logits[0]
        finally:
            del self._body.forward
        return logits

    def probe(self, device: torch.device) -> Seen:
        """Run two tokens; returns what attention asks for. Raises ConfigError for what is not supported."""
        self._seen = seen = Seen()
        ids = torch.arange(2, device=device)
        logits = self._run(self._model, ids, ids, _attend_nothing).logits[0]
        self.vocab_size, self._seen = logits.shape[-1], None
        body = self._run(self._body, ids, ids, _attend_nothing)
        self._body_output = type(body)
        if not torch.allclose(self.head(body.last_hidden_state[0]), logits, rtol=1e-2, atol=1e-2, equal_nan=True):
            raise _unsupported("a head that takes more than the body's hidden states")
        return seen

    def _run(self, module: Any, ids: Tensor, positions: Tensor, attend: Attend) -> Any:  # noqa: ANN401
        """The output of the model or its body for a step; ids, positions: [num_tokens]."""
        self._attend, self._layer = attend, 0
        return module(input_ids=ids[None], position_ids=positions[None], use_cache=False)

    def _attention(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,  # noqa: ANN401
        scaling: float | None = None, **options: Any,
    ) -> tuple[Tensor, None]:  # fmt: skip
        """See transformers' AttentionInterface; query [1, num_heads, num_tokens, head_dim], key and value alike."""
        if self._seen is not None:
            self._look(module, (query, key, value), attention_mask, options)
        assert self._attend is not None
        q, k, v = (part[0].transpose(0, 1) for part in (query, key, value))
        out = self._attend(self._layer, q, k, v, query.shape[-1] ** -0.5 if scaling is None else scaling)
        self._layer += 1
        return out[None], None

    def _look(
        self, module: Any, parts: tuple[Tensor, Tensor, Tensor], mask: Tensor | None, options: Mapping[str, Any]  # noqa: ANN401
    ) -> None:  # fmt: skip
        assert self._seen is not None
        query, key, value = parts
        for name, what in _REFUSED.items():
            if options.get(name) is not None:
                raise _unsupported(what)
        others = [name for name, given in options.items() if isinstance(given, Tensor) and name not in _HARMLESS]
        if others:
            raise _unsupported(f"attention that takes {', '.join(others)}")
        if mask is not None:
            raise _unsupported("a mask of its own in attention, as ALiBi is")
        if options.get("is_causal") is False or not getattr(module, "is_causal", True):
            raise _unsupported("attention that is not causal")
        if key.shape[2] != query.shape[2]:
            raise _unsupported("cross-attention")
        if key.shape != value.shape or key.shape[3] != query.shape[3]:
            raise _unsupported("keys and values of different sizes")
        self._seen.queries.append(tuple(query.shape))
        self._seen.keys.append(tuple(key.shape))
        window = options.get("sliding_window")
        self._seen.windows += [window] if isinstance(window, int) else []


def _attend_nothing(layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:  # noqa: ARG001
    return torch.zeros_like(q)


def _unsupported(what: str) -> ConfigError:
    return ConfigError(f"{what} is not supported")
