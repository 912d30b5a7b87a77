"""The cpu engine beside transformers, in one run with the same threads, dtype, prompts and greedy tokens.

    python -m bench.cpu_engine [--model FOLDER] [--dtype float32] [--threads 2] [--streams 16] [--json FILE]

Rounds alternate between the two, so that whatever else the machine does falls on both. One stream is timed against
`generate`; then as many requests as `--streams` one by one and all at once. Each round's prompts are new, so that no
prefix is cached. Medians over rounds, with the fastest and slowest beside them.
"""

import argparse
import json
import os
import random
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as in the engine process; it must stand before torch loads

import torch

from services.cli.demo_model import demo_model_folder
from services.common import ipc
from services.common.request import SamplingParams
from services.engine.config import Dtype, EngineConfig
from services.engine.load import load_model
from services.engine.loop import Engine


@dataclass(frozen=True)
class Figures:
    """Output tokens a second over the rounds."""

    what: str
    median: float
    slowest: float
    fastest: float


class EngineSide:
    """Sluice's engine, turned in this process through its whole loop."""

    def __init__(self, model: Path, dtype: Dtype, threads: int) -> None:
        config = EngineConfig(
            endpoint="",
            model=str(model),
            dtype=dtype,
            num_threads=threads,
            num_kv_tokens=32_768,
        )
        self._engine = Engine(config, load_model(config))
        self._next_job = 0

    def generate(self, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
        """Greedy tokens of prompts that run together."""
        first = self._next_job + 1
        self._next_job += len(prompts)
        commands: list[ipc.Command] = [_admit(first + i, prompt, num_tokens) for i, prompt in enumerate(prompts)]
        outputs: list[list[int]] = [[] for _ in prompts]
        events = self._engine.turn(commands)
        while True:
            for event in events:
                if isinstance(event, ipc.StepDone):
                    for output in event.outputs:
                        outputs[output.job_id - first] += output.token_ids
            if not self._engine.has_work:
                return outputs
            events = self._engine.turn([])


def _admit(job_id: int, prompt: list[int], num_tokens: int) -> ipc.Admit:
    return ipc.Admit(
        job_id=job_id,
        key=ipc.AttemptKey(str(job_id), 0),
        prompt_ids=ipc.pack_ids(prompt),
        sampling=SamplingParams(temperature=0.0),
        stop=ipc.EngineStop(max_new_tokens=num_tokens),
        arrival=float(job_id),
    )


class ReferenceSide:
    """transformers' `generate`, one prompt at a time."""

    def __init__(self, model: Path, dtype: str) -> None:
        from transformers import AutoModelForCausalLM

        self._model: Any = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype)).eval()

    def generate(self, prompt: list[int], num_tokens: int) -> list[int]:
        """Greedy tokens, however many ends of text come."""
        ids = torch.tensor([prompt])
        with torch.inference_mode():
            out = self._model.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, pad_token_id=0, eos_token_id=None,
                max_new_tokens=num_tokens, min_new_tokens=num_tokens,
            )  # fmt: skip
        tokens: list[int] = out[0, len(prompt) :].tolist()
        return tokens


def measure(options: argparse.Namespace) -> list[Figures]:
    """Run all rounds; one list of figures for each kind of run."""
    engine = EngineSide(options.model, options.dtype, options.threads)
    reference = ReferenceSide(options.model, options.dtype)
    rates: dict[str, list[float]] = {"transformers, one stream": [], "engine, one stream": []}
    together = f"engine, {options.streams} streams at once"
    apart = f"engine, {options.streams} streams one by one"
    rates |= {apart: [], together: []}
    n = options.new_tokens
    for number in range(-1, options.rounds):  # the first warms both up
        prompts = [_prompt(options.prompt_tokens) for _ in range(2 * options.streams + 1)]
        seconds = {
            "transformers, one stream": _time(lambda p=prompts[0]: reference.generate(p, n)),
            "engine, one stream": _time(lambda p=prompts[0]: engine.generate([p], n)),
            apart: _time(lambda p=prompts: [engine.generate([x], n) for x in p[1 : options.streams + 1]]),
            together: _time(lambda p=prompts: engine.generate(p[options.streams + 1 :], n)),
        }
        if number >= 0:
            for what, taken in seconds.items():
                rates[what].append(n * (options.streams if "streams" in what else 1) / taken)
    return [Figures(what, statistics.median(each), min(each), max(each)) for what, each in rates.items()]


def _prompt(num_tokens: int) -> list[int]:
    return [random.randrange(1000, 40_000) for _ in range(num_tokens)]


def _time(run: Any) -> float:  # noqa: ANN401  any call without arguments
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=demo_model_folder())
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    figures = measure(options)
    print(f"\n{options.dtype}, {options.threads} threads, prompts of {options.prompt_tokens}, {options.new_tokens} new")
    print(f"{'':40} {'tokens/s':>9} {'slowest':>9} {'fastest':>9}")
    for each in figures:
        print(f"{each.what:40} {each.median:9.1f} {each.slowest:9.1f} {each.fastest:9.1f}")
    reference, one, apart, together = (each.median for each in figures)
    print(f"one stream: {one / reference:.2f} times transformers; at once: {together / apart:.2f} times one by one")
    if options.json:
        options.json.write_text(json.dumps([asdict(each) for each in figures], indent=2))


if __name__ == "__main__":
    main()
