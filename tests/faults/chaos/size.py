"""How much is asked of the cluster, and how much room it has: what two cores serve well within the deadline."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Size:
    """Lengths are in tokens."""

    num_cases: int
    """Different requests of a round."""
    num_again: int
    """Of them, those that are asked once more when all is over."""
    at_once: int
    """Clients under faults."""
    longest: int
    """The most that a request may ask for."""
    context: int
    pools: tuple[int, ...]
    """Of a worker, one of them: so tight that sequences are preempted."""
    host_gib: tuple[float, ...]
    """The host's cache: none, one that is soon full, one that is not."""
    has_two_ranks: bool
    """Whether a worker's engine may be two processes, which share the model's heads."""
    master_calm_s: tuple[float, float]
    """Between two faults of masters: most requests are to outlive none, since clients lose what ends with a master."""
    round_s: float
    """Under faults, before all is quiet again and new requests are drawn."""


TINY = Size(
    num_cases=80,
    num_again=20,
    at_once=20,
    longest=300,
    context=900,
    pools=(900, 1200, 2000),
    host_gib=(0, 0.001, 0.05),
    has_two_ranks=True,
    master_calm_s=(8.0, 25.0),
    round_s=90.0,
)
"""For a random model of two layers."""
REAL = Size(
    num_cases=20,
    num_again=6,
    at_once=8,
    longest=120,
    context=450,
    pools=(450, 600, 1200),
    host_gib=(0, 0.01, 0.05),
    has_two_ranks=False,
    master_calm_s=(20.0, 60.0),
    round_s=180.0,
)
"""For a model of some hundred million parameters, where a second is about twenty tokens of a sequence: shorter outputs
meet as many faults as longer ones of a fast model, and what is asked in peace takes less than the storm."""
