"""One end of a transfer as an engine with random weights: the Llama-3.1-8B shape on CUDA, a tiny one on a CPU."""

from __future__ import annotations

import gc
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from bench.engine import SHAPE
from services.common import ipc
from services.common.identity import group_name
from services.common.request import SamplingParams
from services.engine.config import EngineConfig
from services.engine.load import load_model
from services.engine.loop import Engine
from services.engine.transfer.wire import TRANSFER_PROTOCOL
from services.engine.transfer_setup import TransferEnd, open_transfer

TINY = SHAPE | {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 512, "dtype": "float32",
}  # fmt: skip
GREEDY = SamplingParams(temperature=0.0)


class RandomEngine:
    """An engine turned in this process, with its end of the KV transfer."""

    def __init__(self, device: str, **settings: Any) -> None:
        """`device`: "cpu" or "cuda:N"; `settings` are EngineConfig's. Collections are off from then on."""
        sys.setswitchinterval(1e-4)
        is_cpu = device == "cpu"
        if not is_cpu:
            torch.cuda.set_device(device)
        shape = TINY if is_cpu else SHAPE
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps(shape))
            config = EngineConfig(
                endpoint="", model=folder, load_format="random", backend="cpu" if is_cpu else "cuda", incarnation="e",
                **settings,
            )  # fmt: skip
            model = load_model(config)
            transfer = open_transfer(config, model)
            assert transfer is not None
            self.transfer: TransferEnd = transfer
            self.engine = Engine(config, model, transfer)
        self.group = group_name(model.fingerprint, model.layout, TRANSFER_PROTOCOL)
        self.token_bytes: int = model.kv_bytes_per_token
        self.vocab_size: int = model.config.vocab_size
        gc.collect()
        gc.freeze()
        gc.disable()

    def prompt(self, length: int) -> list[int]:
        """Random ids that share nothing with another prompt."""
        ids: list[int] = torch.randint(0, self.vocab_size, (length,)).tolist()
        return ids

    def turn(self, *commands: ipc.Command) -> list[ipc.Event]:
        """One turn of the loop."""
        return self.engine.turn(list(commands))


def admit(job_id: int, prompt: list[int], num_tokens: int, *, hand_over: bool = False) -> ipc.Admit:
    """A greedy request."""
    return ipc.Admit(
        job_id=job_id, key=key_of(job_id), prompt_ids=ipc.pack_ids(prompt), sampling=GREEDY,
        stop=ipc.EngineStop(max_new_tokens=num_tokens), arrival=float(job_id), hand_over=hand_over,
    )  # fmt: skip


def key_of(job_id: int) -> ipc.AttemptKey:
    """The attempt's name that both processes derive."""
    return ipc.AttemptKey(f"{job_id:032x}", 1)
