"""What a step says of its sequences, on its way to the control process."""

import struct

from services.common import ipc
from services.common.request import FinishReason

USAGE = ipc.Usage(9, 9, 0, 0, 0)


def test_tokens_in_columns_are_read_one_by_one_before_the_others() -> None:
    columns = ipc.TokenColumns(struct.pack("<2q", 1 << 40, 7), *map(ipc.pack_ids, ([0, 3], [5, 0], [128_255, 9])))
    ended = ipc.SequenceOutput(8, 0, 2, [4], finish=FinishReason.STOP, stop_token_id=4)
    done = ipc.StepDone(1, [ended], USAGE, 0.01, 3, 0, tokens=columns)
    events: list[ipc.Event] = [done]
    (read,) = ipc.decode_events(ipc.encode(events))
    assert isinstance(read, ipc.StepDone)
    assert read.outputs == [ipc.SequenceOutput(1 << 40, 0, 5, [128_255]), ipc.SequenceOutput(7, 3, 0, [9]), ended]


def test_a_step_that_says_nothing_has_no_outputs() -> None:
    assert ipc.StepDone(1, [], USAGE, 0.01, 0, 8).outputs == []
