"""An engine on the cuda runner that launches nothing, for a machine without a card: what is left is the host's work.

The runner packs every array that it would send. To be imported before triton is.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

os.environ["TRITON_INTERPRET"] = "1"  # without a card nothing could be launched at all

from services.common import ipc
from services.common.request import SamplingParams
from services.engine import load
from services.engine.backends.cuda import decode_graphs, prefill_graphs, prefill_step, runner, slot_table
from services.engine.loop import Engine
from tests.engine.driver import engine_config
from tests.engine.tiny import EOS, VOCAB

GREEDY = SamplingParams(temperature=0.0)


def nothing(*_args: object, **_named: object) -> None:
    """Take the place of a launch."""


def idle_engine(folder: Path, **changes: Any) -> Engine:
    """Return an engine whose steps launch nothing: sampled ids stay 0. `changes` to its configuration."""
    for module, name, stand_in in (
        (decode_graphs, "captured", lambda _launches, _device, _pool: nothing),
        (prefill_graphs, "captured", lambda launches, _device, _pool: launches() or nothing),
        (prefill_graphs.PrefillGraphs, "warm", nothing),
        (prefill_step.PrefillStep, "begin", nothing),
        (prefill_step.PrefillStep, "final_states", lambda *_: torch.zeros(8, VOCAB)),
        (prefill_step.PrefillStep, "logits", lambda _step, states: states),
        (slot_table, "scatter_ints", nothing),
        (runner, "publish_ids", nothing),
        (runner, "launch_draws", nothing),
        (load, "make_runner", runner.CudaRunner),
    ):
        setattr(module, name, stand_in)
    config = engine_config(folder, **changes)
    return Engine(config, load.load_model(config))


def admits(prompts: list[bytes], num_tokens: int, sampling: SamplingParams, first_job: int) -> list[ipc.Command]:
    """Commands for `prompts`, packed, of `num_tokens` outputs each."""
    return [
        ipc.Admit(
            job_id=first_job + i, key=ipc.AttemptKey(str(first_job + i), 0), arrival=float(i), sampling=sampling,
            prompt_ids=prompt, stop=ipc.EngineStop(max_new_tokens=num_tokens, stop_token_ids=(EOS,)),
        )
        for i, prompt in enumerate(prompts)
    ]  # fmt: skip
