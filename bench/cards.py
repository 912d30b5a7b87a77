"""The tests on GPUs and the main tables of `docs/performance.md` about them, in one run.

    python -m bench.cards [--only engine soak ...] [--model FOLDER] [--out FOLDER]
    python -m bench.cards --list

Takes what the machine's cards allow: one for an engine and for KV between two processes on it, two for ranks, KV from
card to card and goodput. Each runs in a process of its own, one after the other, so that none slows another; its output
goes to FOLDER too, and a table of how each ended stands last. `--model` names a real checkpoint with its tokenizer, for
what needs one. Side-by-side comparisons of the page have commands of their own, which stand beside them there.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass(frozen=True, slots=True)
class Stage:
    """One command, after `python -m`."""

    name: str
    command: str
    cards: int = 1
    needs_model: bool = False


STAGES = (
    Stage("tests", "pytest -q tests/kernels tests/engine/test_handover.py tests/engine/transfer/test_device_pages.py "
          "--deselect tests/kernels/test_oracle.py"),
    Stage("oracle", "pytest -q tests/kernels/test_oracle.py", needs_model=True),
    Stage("engine", "bench.engine --rounds 3"),
    Stage("prefill", "bench.engine --only prefill --rounds 7"),
    Stage("kernels", "bench.kernels"),
    Stage("grammar", "bench.grammar --random --backend cuda --dtype bfloat16 --steps 64 --rounds 3 --model {model}",
          needs_model=True),
    Stage("transfer", "bench.transfer --device cuda:0 --mib 64 --depth 1 4 8"),
    Stage("decode-beside-transfer", "bench.transfer_decode --device cuda:0 --gb-per-s 25 0"),
    Stage("exposed", "bench.transfer_exposed --device cuda:0 --rounds 3 --tail 128 0"),
    Stage("rank-tests", "pytest -q tests/kernels/test_cuda_ranks.py tests/engine/test_rank_transfer.py", 2),
    Stage("ranks", "bench.ranks --ranks 1 2 --through peer nccl --rows 1 16 64", 2),
    Stage("card-to-card", "bench.transfer --device cuda:0 --peer-device cuda:1 --mib 64 256 --depth 1 4 "
          "--total-mib 2048", 2),
    Stage("exposed-card-to-card", "bench.transfer_exposed --device cuda:0 --peer-device cuda:1 --lengths 4096 "
          "--tail 128 0 --rounds 3", 2),
    Stage("goodput", "bench.goodput --devices 0,1 --shape 1024/256 --low 26 --high 44 --runs 3 --seconds 20 "
          "--processes 8 -- --chunk-tokens 8192 --kv-memory-fraction 0.85 --transfer-page-bytes 67108864 "
          "--require-lane cuda_ipc --no-prefix-cache", 2),
    Stage("soak", "bench.soak --seconds 600"),
)  # fmt: skip


def why_not(stage: Stage, model: Path | None) -> str:
    """What `stage` lacks here; empty where it can run."""
    if torch.cuda.device_count() < stage.cards:
        return f"needs {stage.cards} of the machine's cards, which has {torch.cuda.device_count()}"
    return "needs --model" if stage.needs_model and model is None else ""


def run(stage: Stage, model: Path | None, out: Path) -> str:
    """Run one stage, its output here and in `out`; return how it ended."""
    words = [sys.executable, "-m", *stage.command.format(model=model).split()]
    env = os.environ | ({"SLUICE_ORACLE_MODEL": str(model)} if model else {})
    began = time.monotonic()
    with (out / f"{stage.name}.log").open("w") as log, subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env
    ) as process:  # fmt: skip
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            log.write(line)
    how = "ok" if process.returncode == 0 else f"exit status {process.returncode}"
    return f"{how}, {time.monotonic() - began:.0f} s"


def main() -> None:
    """Exit with 1 when a stage failed or none could run."""
    names = [stage.name for stage in STAGES]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="STAGE", help=", ".join(names))
    parser.add_argument("--list", action="store_true", help="print the commands and run none")
    parser.add_argument("--model", type=Path, help="folder of a real checkpoint")
    parser.add_argument("--out", type=Path, default=Path("build/cards"), help="for the logs; default: build/cards")
    options = parser.parse_args()
    stages = [stage for stage in STAGES if stage.name in options.only]
    if options.list:
        for stage in stages:
            print(f"{stage.name:24}{stage.cards}  python -m {stage.command}")
        return
    options.out.mkdir(parents=True, exist_ok=True)
    ends: dict[str, str] = {}
    for number, stage in enumerate(stages, start=1):
        print(f"\n==> {number}/{len(stages)} {stage.name}: python -m {stage.command}", flush=True)
        lacking = why_not(stage, options.model)
        ends[stage.name] = f"not run: {lacking}" if lacking else run(stage, options.model, options.out)
        print(f"==> {ends[stage.name]}", flush=True)
    print("\n" + "\n".join(f"{name:24}{end}" for name, end in ends.items()))
    ran = [end for end in ends.values() if not end.startswith("not run")]
    sys.exit(not ran or not all(end.startswith("ok") for end in ran))


if __name__ == "__main__":
    main()
