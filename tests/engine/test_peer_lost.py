"""A decode engine dies in the middle of a push: the prompt's KV stays, and moves to the next one as a new attempt."""

import signal
from pathlib import Path

import msgspec

from services.common import ipc
from tests.engine.pair import PAGES, connected_pair
from tests.engine.process import EngineProcess
from tests.engine.tiny import prompt_of, reference_greedy


def test_kv_moves_to_the_next_start_of_a_lost_decode_engine(llama: Path, tmp_path: Path) -> None:
    with connected_pair(llama, tmp_path) as pair:
        prompt = prompt_of(100)
        admit = pair.admit(prompt, 10)
        pair.prefill.send(admit)
        pair.place(admit, pair.reserve(admit).cached_tokens)
        pair.decode.process.send_signal(signal.SIGSTOP)
        first = pair.first_tokens(admit)
        pair.decode.process.kill()
        failed = pair.prefill.wait(ipc.TransferFailed)
        assert (failed.job_id, failed.kind) == (admit.job_id, "peer_lost")
        assert any(isinstance(event, ipc.PeerLost) for event in pair.prefill.events) or pair.prefill.wait(ipc.PeerLost)
        with EngineProcess(
            llama, tmp_path, role="decode", transfer=PAGES, incarnation="second-start", socket_name="second"
        ) as again:
            pair.decode = again
            pair.connect()
            retry = msgspec.structs.replace(admit, key=ipc.AttemptKey(admit.key.request_id, admit.key.attempt + 1))
            pair.place(retry, pair.reserve(retry).cached_tokens)
            pair.join(retry, first)
            pair.finish(retry)
            assert [first[0], *again.outputs(admit.job_id)] == reference_greedy(llama, prompt, 10)
            pair.check()
