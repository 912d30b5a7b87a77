"""An MLP of routed experts: each token takes the few that its router scores highest (arXiv 1701.06538)."""

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from services.engine.ops import Ops


@dataclass(frozen=True, slots=True)
class RoutedMlp:
    """`sum_e p_e * expert_e(x)` over the `num_chosen` likeliest experts; each expert is a gated MLP.

    With E experts of intermediate width I (this rank's share): router [E, hidden], whole on every rank; gate_up
    [E, 2 * I, hidden]; down [E, hidden, I]. `normalised`: the chosen experts' probabilities are made to sum to 1.
    """

    router: Tensor
    gate_up: Tensor
    down: Tensor
    num_chosen: int
    normalised: bool

    def __call__(self, x: Tensor, ops: Ops) -> Tensor:
        """[num_tokens, hidden] -> [num_tokens, hidden]."""
        chosen, weights = self.choose(x)
        return ops.reduce(ops.experts(x, chosen, weights, self.gate_up, self.down))

    def choose(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return each token's experts [num_tokens, num_chosen], int64, and their weights in x's dtype."""
        scores = functional.linear(x, self.router).float().softmax(-1)
        weights, chosen = scores.topk(self.num_chosen, dim=-1)
        if self.normalised:
            weights = weights / weights.sum(-1, keepdim=True)
        return chosen, weights.to(x.dtype)
