"""A prompt's scores where it decodes, on a mixed worker or a decode worker: it may be preempted before they are all
here."""

from typing import Any

import msgspec
import pytest

from services.common import ipc
from services.common.messages import Prefilling, PromptScored
from services.common.prompt_logprobs import PromptLogprobs
from services.common.request import SamplingParams
from services.decode.reservations import DecodeReservations
from services.worker.jobs import PromptPart
from services.worker.protocol import effects as fx
from services.worker.protocol.core import ProtocolCore
from services.worker.protocol.local import LocalAttempts
from tests.unit.protocol.cores import KEY, Bench, output, request, submit
from tests.unit.protocol.sim.expected import scores


def part(first: int, count: int) -> PromptLogprobs:
    """Of `count` prompt tokens from position `first` on."""
    return scores(first, first + count)


def starts(bench: Bench) -> list[tuple[int, int | None]]:
    """Jobs that were started, and what they are to score."""
    commands = [one.command for one in bench.take(fx.StartJob)]
    return [(one.job_id, one.sampling.num_prompt_logprobs) for one in commands if isinstance(one, ipc.Admit)]


def test_a_prompt_computed_in_two_goes_is_said_once_and_whole() -> None:
    bench = Bench(LocalAttempts)
    scored = msgspec.structs.replace(request(), sampling=SamplingParams(num_prompt_logprobs=0))
    bench.master(msgspec.structs.replace(submit(decode=None), request=scored, score_prompt=True))
    assert starts(bench) == [(1, 0)]
    bench.event(ipc.Admitted(1, 0, 3))
    bench.event(PromptPart(1, part(1, 1)))
    bench.event(ipc.Preempted(1, 0))
    bench.event(ipc.Ended(1))
    assert starts(bench) == [(2, 0)]
    bench.event(PromptPart(2, part(1, 1)))
    assert not any(isinstance(one, PromptScored) for one in bench.to_master())
    bench.event(PromptPart(2, part(2, 1)))
    assert bench.to_master() == [PromptScored(KEY, scores(1, 3))]
    bench.event(output(2, 0))
    bench.event(ipc.Preempted(2, 0))
    assert starts(bench) == [(3, None)]  # what the master has is not computed again


@pytest.mark.parametrize("core", [LocalAttempts, DecodeReservations])
def test_a_prompt_of_one_token_is_scored_with_nothing_before_its_output(core: type[ProtocolCore[Any]]) -> None:
    bench = Bench(core)
    one = msgspec.structs.replace(request(), prompt_ids=[50], sampling=SamplingParams(num_prompt_logprobs=0))
    bench.master(msgspec.structs.replace(submit(decode=None), request=one, score_prompt=True))
    assert starts(bench) == [(1, None)]  # there is nothing to compute
    bench.to_master()
    bench.event(ipc.Admitted(1, 0, 1))
    told = [effect for effect in bench.said if isinstance(effect, fx.SendToMaster | fx.Follow)]
    assert [type(effect) for effect in told] == [fx.SendToMaster, fx.SendToMaster, fx.Follow]
    assert bench.to_master() == [Prefilling(KEY, 0), PromptScored(KEY, scores(1, 1))]
    bench.event(ipc.Preempted(1, 0))
    bench.event(ipc.Ended(1))
    bench.event(ipc.Admitted(2, 0, 1))
    assert not any(isinstance(event, PromptScored) for event in bench.to_master())  # said once
