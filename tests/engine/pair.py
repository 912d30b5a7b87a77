"""A prefill and a decode engine in real processes that know each other, and both control processes' parts."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from services.common import ipc
from services.common.identity import group_name
from tests.engine.driver import GREEDY
from tests.engine.process import EngineProcess

PAGES = {"page_bytes": 16 << 10, "num_pages": 4, "depth": 2, "checksum": True}


@dataclass
class Pair:
    """A prefill and a decode engine that know each other; plays both control processes."""

    prefill: EngineProcess
    decode: EngineProcess
    next_job: int = field(default=0)

    def key(self, job_id: int) -> ipc.AttemptKey:
        return ipc.AttemptKey(f"{job_id:032x}", 1)

    def admit(self, prompt: tuple[int, ...], num_tokens: int, **changes: object) -> ipc.Admit:
        self.next_job += 1
        values: dict[str, object] = {"choices": (0,), "output_ids": b"", "sampling": GREEDY} | changes
        return ipc.Admit(
            job_id=self.next_job,
            key=self.key(self.next_job),
            prompt_ids=ipc.pack_ids(list(prompt)),
            stop=ipc.EngineStop(max_new_tokens=num_tokens, stop_token_ids=self.decode.ready.eos_token_ids),
            arrival=float(self.next_job),
            hand_over=True,
            **values,  # type: ignore[arg-type]
        )

    def reserve(self, admit: ipc.Admit) -> ipc.Reserved:
        ids = admit.prompt_ids + admit.output_ids
        self.decode.send(ipc.Reserve(admit.job_id, admit.key, ids, admit.arrival))
        return self.decode.wait(ipc.Reserved, lambda event: event.job_id == admit.job_id)

    def place(self, admit: ipc.Admit, skip: int) -> None:
        self.prefill.send(ipc.Place(admit.job_id, self.decode.config.worker_id, admit.key, skip))

    def first_tokens(self, admit: ipc.Admit) -> dict[int, int]:
        while any(not self.prefill.outputs(admit.job_id, choice) for choice in admit.choices):
            self.prefill.wait(ipc.StepDone)
        return {choice: self.prefill.outputs(admit.job_id, choice)[0] for choice in admit.choices}

    def join(self, admit: ipc.Admit, first: dict[int, int]) -> None:
        num_prompt = len(admit.prompt_ids) // 4
        self.decode.send(ipc.Join(admit.job_id, first, num_prompt, admit.sampling, admit.stop))
        self.decode.wait(ipc.Joined, lambda event: event.job_id == admit.job_id)
        self.prefill.send(ipc.Release(admit.job_id))
        self.prefill.wait(ipc.Ended, lambda event: event.job_id == admit.job_id)

    def finish(self, admit: ipc.Admit) -> None:
        self.decode.wait(ipc.Ended, lambda event: event.job_id == admit.job_id)

    def check(self) -> None:
        self.prefill.check()
        self.decode.check()

    def connect(self) -> None:
        """Let the prefill engine reach the decode engine and prove the pair."""
        ready, config = self.decode.ready, self.decode.config
        group = group_name(ready.model_fingerprint, ready.layout, ready.transfer_protocol)
        self.prefill.send(
            ipc.ConnectPeer(config.worker_id, "127.0.0.1", ready.transfer_ports, config.incarnation, group)
        )
        assert self.prefill.wait(ipc.PeerProven).peer_id == config.worker_id

    def abort_on_both(self, admit: ipc.Admit) -> None:
        """End it on both engines; each says so."""
        for engine in (self.prefill, self.decode):
            engine.send(ipc.Abort(admit.job_id))
            engine.wait(ipc.Ended, lambda event: event.job_id == admit.job_id)

    def fails_unreserved(self, admit: ipc.Admit) -> None:
        """Push what the decode engine has promised no room for: it fails once, and the job stays until it is ended."""
        self.prefill.send(admit)
        self.place(admit, 0)
        failed = self.prefill.wait(ipc.TransferFailed)
        assert (failed.job_id, failed.kind) == (admit.job_id, "refused")
        self.prefill.send(ipc.CheckIntegrity(1))
        integrity = self.prefill.wait(ipc.Integrity)
        assert (integrity.problems, integrity.num_jobs) == ([], 1)
        self.prefill.send(ipc.Abort(admit.job_id))
        self.prefill.wait(ipc.Ended)
        assert sum(event == failed for event in self.prefill.events) == 1


@contextmanager
def connected_pair(model: Path, folder: Path) -> Iterator[Pair]:
    """Both start at once; ended when the block ends."""
    with (
        EngineProcess(model, folder, role="prefill", transfer=PAGES, wait=False) as prefill,
        EngineProcess(model, folder, role="decode", transfer=PAGES) as decode,
    ):
        prefill.ready = prefill.wait(ipc.EngineReady)
        pair = Pair(prefill, decode)
        pair.connect()
        yield pair
