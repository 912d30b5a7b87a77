"""A prompt's ordinary way through the prefill worker's core."""

import msgspec

from services.common import ipc
from services.common.errors import OverloadedError
from services.common.ipc import AttemptKey
from services.common.messages import (
    Abort,
    Failed,
    Placed,
    Prefilling,
    PromptScored,
    Queued,
    Redirect,
    RefusalReason,
    Refused,
)
from services.common.peer_messages import (
    Cancel,
    Granted,
    JoinConfirmed,
    Reserve,
)
from services.common.request import FinishReason, SamplingParams
from services.worker.jobs import PromptPart, ReserveFirst
from services.worker.protocol import effects as fx
from tests.unit.protocol.cores import AT_D0, D0, KEY, M0, handover, output, request, submit
from tests.unit.protocol.handoff_bench import PrefillBench
from tests.unit.protocol.sim.expected import scores


def test_reserve_goes_out_when_compute_starts_and_only_once() -> None:
    bench = PrefillBench()
    bench.master(submit())
    assert bench.to_master() == [Queued(KEY)]
    assert bench.to_peer(D0) == []
    bench.event(ipc.Admitted(1, 2, 3))
    assert bench.to_master() == [Prefilling(KEY, 2)]
    assert [type(one) for one in bench.to_peer(D0)] == [Reserve]
    bench.event(ReserveFirst(1))
    assert bench.to_peer(D0) == []


def test_reserve_goes_out_before_compute_when_the_router_says_so() -> None:
    bench = PrefillBench()
    bench.master(submit())
    bench.event(ReserveFirst(1))
    assert [type(one) for one in bench.to_peer(D0)] == [Reserve]
    bench.peer(Granted(KEY, 1))
    assert bench.take(fx.JobGranted) == [fx.JobGranted(1)]
    assert bench.take(fx.EngineCommand) == []
    bench.event(ipc.Admitted(1, 0, 3))
    assert bench.take(fx.EngineCommand) == [fx.EngineCommand(ipc.Place(1, "d0", KEY, 1))]


def test_placed_is_said_before_the_first_push() -> None:
    bench = PrefillBench()
    bench.computing()
    bench.said.clear()
    bench.peer(Granted(KEY, 1))
    kinds = [type(one) for one in bench.said]
    assert kinds.index(fx.SendToMaster) < kinds.index(fx.EngineCommand)
    assert bench.to_master() == [Placed(KEY, D0)]


def test_first_token_is_shown_from_the_grant_on() -> None:
    bench = PrefillBench()
    bench.computing()
    bench.event(output(1, 0))
    assert bench.take(fx.Follow) == []
    bench.peer(Granted(KEY, 0))
    assert [one.choice for one in bench.take(fx.Follow)] == [0]
    assert handover() in bench.to_peer(D0)


def test_kv_is_released_only_when_the_other_side_has_joined() -> None:
    bench = PrefillBench()
    bench.computed()
    bench.take(fx.EngineCommand)
    assert bench.core.num_jobs == 1
    bench.peer(JoinConfirmed(KEY))
    assert bench.take(fx.EngineCommand) == [fx.EngineCommand(ipc.Release(1))]
    assert bench.core.held(M0) == [KEY]
    bench.master(Abort([KEY]))
    assert bench.is_empty


def test_prompt_whose_only_token_ends_it_needs_no_decode_worker() -> None:
    bench = PrefillBench()
    bench.computing()
    bench.to_peer(D0)
    bench.event(output(1, 0, finish=FinishReason.LENGTH))
    assert bench.to_peer(D0) == [Cancel(KEY)]
    assert len(bench.take(fx.Follow)) == 1
    assert bench.take(fx.EngineCommand) == [fx.EngineCommand(ipc.Release(1))]
    assert bench.core.num_jobs == 0


def test_only_choices_that_go_on_are_handed_over() -> None:
    bench = PrefillBench()
    bench.computing(num_choices=2)
    bench.peer(Granted(KEY, 0))
    bench.to_peer(D0)
    bench.event(output(1, 0, choice=0, finish=FinishReason.STOP))
    assert bench.to_peer(D0) == []
    bench.event(output(1, 0, choice=1))
    (handed,) = bench.to_peer(D0)
    assert [one.choice for one in handed.first] == [1]


def test_prompt_that_the_router_gives_up_is_refused_with_its_retry_after() -> None:
    bench = PrefillBench()
    bench.master(submit())
    bench.said += bench.core.job_refused(1, OverloadedError("full", retry_after_s=7.0), 0.0)
    assert bench.to_master()[-1] == Refused(KEY, RefusalReason.QUEUE_FULL, 7.0, "full")
    assert bench.core.num_jobs == 0


def test_drain_gives_back_what_is_not_granted_and_finishes_what_is() -> None:
    bench = PrefillBench()
    bench.computed()
    bench.master(submit(AttemptKey("s", 1)))
    bench.said += bench.core.drain(0.0)
    assert bench.to_master()[-1] == Refused(AttemptKey("s", 1), RefusalReason.DRAINING)
    assert bench.core.num_jobs == 1
    bench.master(submit(AttemptKey("t", 1)))
    assert bench.to_master() == [Refused(AttemptKey("t", 1), RefusalReason.DRAINING)]


def test_prompt_the_engine_ended_by_itself_is_a_failure_and_a_cancel() -> None:
    bench = PrefillBench()
    bench.computed()
    bench.to_peer(D0)
    bench.event(ipc.Ended(1))
    assert bench.to_peer(D0) == [Cancel(KEY)]
    assert isinstance(bench.to_master()[-1], Failed)


def test_a_prompts_scores_are_said_before_token_0_and_again_under_a_new_number() -> None:
    bench = PrefillBench()
    scored = msgspec.structs.replace(request(), sampling=SamplingParams(num_prompt_logprobs=0))
    bench.master(msgspec.structs.replace(submit(), request=scored, score_prompt=True))
    (start,) = bench.take(fx.StartJob)
    assert isinstance(start.command, ipc.Admit)
    assert start.command.sampling.num_prompt_logprobs == 0
    bench.event(ipc.Admitted(1, 0, 3))
    bench.event(PromptPart(1, scores(1, 3)))
    bench.event(output(1, 0))
    assert PromptScored(KEY, scores(1, 3)) not in bench.to_master()  # no place to decode is granted yet (R4)
    bench.said.clear()
    bench.peer(Granted(KEY, 0))
    kinds = [type(one.event) if isinstance(one, fx.SendToMaster) else type(one) for one in bench.said]
    assert kinds.index(PromptScored) < kinds.index(fx.Follow)
    bench.master(Redirect(KEY, 2, AT_D0))
    bench.said.clear()
    bench.peer(Granted(AttemptKey("r", 2), 0))
    assert PromptScored(AttemptKey("r", 2), scores(1, 3)) in bench.to_master()


def test_a_prompt_whose_scores_the_master_has_is_not_scored_again() -> None:
    bench = PrefillBench()
    scored = msgspec.structs.replace(request(), sampling=SamplingParams(num_prompt_logprobs=0))
    bench.master(msgspec.structs.replace(submit(), request=scored))
    (start,) = bench.take(fx.StartJob)
    assert isinstance(start.command, ipc.Admit)
    assert start.command.sampling.num_prompt_logprobs is None
