"""What the selector is told of prefix caches."""

import pytest

from services.common.errors import NoWorkerError
from services.common.messages import Limits, Load, Role, WorkerRef
from services.common.prefix_blocks import BLOCK_TOKENS, prompt_names
from services.common.request import Request, SamplingParams, StopParams
from services.pd_master.dispatcher import SnapshotChooser
from services.pd_master.prefix_index import PrefixIndex
from services.pd_master.selector import USUAL, Snapshot, WorkerView

PREFILL, DECODE = WorkerRef("p", "1"), WorkerRef("d", "1")
PROMPT = [7] * (8 * BLOCK_TOKENS)
PLAIN = Request("r", "m", PROMPT, SamplingParams(), StopParams(20))
SCORED = Request("r", "m", PROMPT, SamplingParams(num_prompt_logprobs=0), StopParams(20))


class CountedIndex(PrefixIndex):
    """Counts its prompts."""

    num_asked = 0

    def cached_tokens(self, prompt_ids: list[int]) -> dict[WorkerRef, int]:
        self.num_asked += 1
        return super().cached_tokens(prompt_ids)


def chooser(*, takes_work: bool = True) -> tuple[SnapshotChooser, CountedIndex]:
    """Of a pair whose decode worker holds the whole prompt, and whose prefill worker has a long queue."""
    limits = Limits(10_000, 8, 10_000, 100, (0,), 64)
    views = tuple(
        WorkerView(worker, role, "g", "m", "w:1", limits, Load(predicted_wait_s=wait_s), takes_work, proven, 0, 0)
        for worker, role, wait_s, proven in (
            (PREFILL, Role.PREFILL, 5.0, {DECODE: 10.0}),
            (DECODE, Role.DECODE, 0.0, {}),
        )
    )
    prefixes = CountedIndex()
    prefixes.stored(DECODE, prompt_names(PROMPT))
    return SnapshotChooser(lambda: Snapshot(views, 0.0), prefixes, USUAL), prefixes


def test_prompt_that_a_decode_worker_holds_is_computed_there_unless_it_is_scored() -> None:
    choose, _ = chooser()
    assert choose.pair(PLAIN, frozenset()).prefill == DECODE
    assert choose.pair(SCORED, frozenset()).prefill == PREFILL, "scoring computes all of it"


def test_prompt_is_hashed_once_for_a_choice_and_not_where_there_is_none() -> None:
    choose, prefixes = chooser()
    choose.pair(PLAIN, frozenset())
    assert prefixes.num_asked == 1
    closed, prefixes = chooser(takes_work=False)
    with pytest.raises(NoWorkerError):
        closed.pair(PLAIN, frozenset())
    assert prefixes.num_asked == 0
