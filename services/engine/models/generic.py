"""Any decoder of `transformers` that has no file of its own here: its modules compute, our pool and attention attend.

    ids, positions ─> the model's own forward ─> attention of layer i: q, k, v, rotated ─> `attend` ─> ... ─> logits

All tokens of a step are one row `[1, num_tokens]` with positions of their own; the model's cache and masks are not
used. It is slower than a family's own file: nothing is fused, and no step is captured. What the attention of a model
asks for, beyond plain causal attention over its keys, is seen in a first forward of two tokens, and refused by name.
"""

import inspect
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
        self._takes_wanted = "logits_to_keep" in inspect.signature(model.forward).parameters
        self._attend: Attend | None = None
        self._seen: Seen | None = None
        self._layer = 0
        self.vocab_size = 0
        """Known once it was probed."""
        name = f"sluice_{next(_names)}"
        AttentionInterface.register(name, self._attention)
        model.set_attn_implementation(name)

    def compute(self, ids: Tensor, positions: Tensor, wanted: Tensor | None, attend: Attend) -> Tensor:
        """Logits `[num_wanted, vocab_size]` of a step.

        ids, positions: [num_tokens]; wanted: the tokens whose logits are needed, all where it is None.
        """
        self._attend, self._layer = attend, 0
        keep: dict[str, Tensor] = {"logits_to_keep": wanted} if wanted is not None and self._takes_wanted else {}
        out = self._model(input_ids=ids[None], position_ids=positions[None], use_cache=False, **keep)
        logits: Tensor = out.logits[0]
        return logits if wanted is None or keep else logits[wanted]

    def states(self, ids: Tensor, wanted: Tensor | None, ops: Ops) -> Tensor:
        """What `logits` takes, of a step's tokens `wanted` or of all: the logits themselves."""
        return self.compute(ids, ops.positions, wanted, ops.attend_rotated)

    def logits(self, states: Tensor, ops: Ops) -> Tensor:  # noqa: ARG002  as of a Decoder
        """[n, vocab_size] of the tokens that are sampled from."""
        return states

    def probe(self, device: torch.device) -> Seen:
        """Run two tokens; returns what attention asks for. Raises ConfigError for what is not supported."""
        self._seen = seen = Seen()
        ids = torch.arange(2, device=device)
        logits = self.compute(ids, ids, None, lambda layer, q, k, v, scale: torch.zeros_like(q))  # noqa: ARG005
        self.vocab_size, self._seen = logits.shape[-1], None
        return seen

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


def _unsupported(what: str) -> ConfigError:
    return ConfigError(f"{what} is not supported")
