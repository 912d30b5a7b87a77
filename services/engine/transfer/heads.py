"""Which of a model's KV heads a rank holds: what two ranks have to say to each other follows from it."""

from typing import NamedTuple


class HeadRange(NamedTuple):
    """KV heads [first, first + num_heads) of the whole model."""

    first: int
    num_heads: int

    @classmethod
    def of_rank(cls, num_kv_heads: int, rank: int, num_ranks: int) -> "HeadRange":
        """The heads of one rank; `num_ranks` divides `num_kv_heads`."""
        share = num_kv_heads // num_ranks
        return cls(rank * share, share)

    def meet(self, other: "HeadRange") -> "HeadRange":
        """The heads in both; `num_heads` is 0 when there are none."""
        first = max(self.first, other.first)
        end = min(self.first + self.num_heads, other.first + other.num_heads)
        return HeadRange(first, max(0, end - first))

    def shares(self, num_kv_heads: int) -> list[int]:
        """How many of these heads, of a model's `num_kv_heads`, a rank of another engine can hold, whatever the number
        of its ranks; the most first."""
        counts = (count for count in range(1, num_kv_heads + 1) if num_kv_heads % count == 0)
        others = (HeadRange.of_rank(num_kv_heads, rank, count) for count in counts for rank in range(count))
        return sorted({self.meet(other).num_heads for other in others} - {0}, reverse=True)


ONE_HEAD = HeadRange(0, 1)
"""Where pages are bytes and nobody looks for heads in them."""
