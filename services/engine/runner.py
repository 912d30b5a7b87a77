"""What the loop needs of a model on a device: launch a step, read its results when they are due, copy pages.

`ModelRunner` is the general one, over a backend's operations. A backend that captures whole steps brings a runner of
its own; the loop, the KV transfer and the tests do not see the difference.
"""

from typing import Protocol

import torch
from torch import Tensor

from services.common.request import TokenLogprob
from services.engine.arrays import Ints
from services.engine.batch import Batch
from services.engine.prompt_scoring import ChunkScores


class Copy(Protocol):
    """Something launched that the device will have done: a copy between pool and page, or a step."""

    def done(self) -> bool:
        """Whether the device has finished it: only then may a page go on."""
        ...


class Done:
    """A `Copy` of a device that has done everything when a call returns."""

    def done(self) -> bool:
        """See Copy."""
        return True


class Fetched(Protocol):
    """A page of host memory that is on its way to the device, or there."""

    def put(self, slots: Ints, skip: int) -> None:
        """Copy the KV of its tokens from `skip` on, as many as `slots` [n], into the pool, on the compute stream."""
        ...


class HostPages(Protocol):
    """Host memory behind a pool, in pages, and the copies between the two: ordered on the device, never waited for."""

    num_pages: int
    page_tokens: int
    fetches_at_once: int
    """Pages that may be fetched and not yet put or forgotten."""

    def keep(self, slots: Ints, pages: list[int]) -> None:
        """Copy the KV of `slots` [n], as launched steps leave it, to pages; the slots may be written on return."""
        ...

    def fetch(self, page: int, num_tokens: int) -> Fetched:
        """Bring the first tokens of a page to the device. What is fetched may be put, or just forgotten."""
        ...


class Device(Protocol):
    """A device with a KV pool on it."""

    name: str
    device: torch.device
    pipeline_depth: int
    """Steps to launch before the oldest one's results are read: 0 where launching is synchronous."""
    pool: Tensor
    """[num_layers, num_slots + 1, 2 * num_kv_heads, head_dim]; heads of K come first, then V."""

    def gather(self, slots: Ints, page: Tensor, first_head: int, after: Copy) -> Copy:
        """Copy the KV of `slots` [n] into `page` [num_layers, n, 2 * h, head_dim], beside the steps.

        The page holds heads [first_head, first_head + h) of the pool. `after`: a step's `written`, which the copy waits
        for on the device. Slots that it reads must not be written before `end_gathers`.
        """
        ...

    def end_gathers(self) -> None:
        """What is launched from here on waits, on the device, for all gathers so far: it may write their slots."""
        ...

    def scatter(self, page: Tensor, slots: Ints, first_head: int = 0) -> Copy:
        """The reverse of `gather`, on the compute stream: a step launched later finds the KV in `slots`."""
        ...

    def host_pages(self, num_pages: int, page_tokens: int) -> HostPages:
        """Take host memory for the pool's KV."""
        ...


class StepResult(Protocol):
    """A launched step. Reading waits for the device where launching did not."""

    @property
    def written(self) -> Copy:
        """Done once the step's KV is in the pool."""
        ...

    def token_ids(self) -> list[int]:
        """Sampled ids in the order of the batch's samples."""
        ...

    def logprobs(self) -> dict[int, TokenLogprob]:
        """Log-probabilities by sample index, of the samples that asked for them."""
        ...

    def prompt_scores(self) -> list[ChunkScores]:
        """Of the batch's scored tokens, in their order; only after `token_ids`."""
        ...


class Runner(Protocol):
    """Owned by the loop, which calls it from one thread."""

    @property
    def backend(self) -> Device:
        """Where steps run."""
        ...

    def launch(self, batch: Batch) -> StepResult:
        """Compute a batch; its KV is in the pool and its ids are the rows' next inputs when the device gets there."""
        ...

    def set_next_ids(self, rows: list[int], ids: list[int]) -> None:
        """Give rows their next input ids from the host: tokens that were sampled elsewhere."""
        ...
