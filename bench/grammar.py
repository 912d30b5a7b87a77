"""What a grammar costs a decode step: the engine's whole loop with and without one, in one run.

    python -m bench.grammar [--model FOLDER] [--backend cpu] [--rows 32] [--steps 48] [--rounds 5] [--temperature 1 0]
    python -m bench.grammar --random --backend cuda --dtype bfloat16

`--random` takes random weights of the Llama-3.1-8B shape, all 128,256 logits of it, with the model's tokenizer.
Rounds alternate between rows that are free and rows held to a JSON schema, with equal prompts and sampling, so that
whatever else the machine does falls on both. A round's time is the mean from one step's results to the next's, over
steps that only decode all rows: results that come early after late ones must not count as fast steps. Then medians over
rounds.
"""

import argparse
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as in the engine process; it must stand before torch loads

from bench.engine import SHAPE
from services.cli.demo_model import demo_model_folder
from services.common import ipc
from services.common.request import GrammarKind, GrammarSpec, SamplingParams
from services.engine.config import EngineConfig
from services.engine.load import load_model
from services.engine.loop import Engine

_ORDER = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "count": {"type": "integer"},
        "price": {"type": "number"},
        "tags": {"type": "array", "items": {"enum": ["new", "used", "sold", "lost"]}},
    },
    "required": ["name", "count", "price", "tags"],
    "additionalProperties": False,
}
SCHEMA = {"type": "array", "items": _ORDER, "minItems": 200}
"""More than any round writes, so that no row ends."""


class Rows:
    """One engine, turned in this process."""

    def __init__(self, options: argparse.Namespace, model: Path) -> None:
        config = EngineConfig(
            endpoint="", model=str(model), backend=options.backend, dtype=options.dtype,
            load_format="random" if options.random else "auto",
            num_threads=options.threads, num_kv_tokens=options.rows * (options.steps + 96) + 1024,
            max_running_requests=options.rows,
        )  # fmt: skip
        self._engine = Engine(config, load_model(config))
        self._next_job = 0
        self._options = options

    def step_s(self, grammar: GrammarSpec | None, temperature: float) -> float:
        """Time of a step that decodes all rows, in seconds: the mean."""
        options = self._options
        first = self._next_job + 1
        self._next_job += options.rows
        sampling = SamplingParams(temperature=temperature, seed=first, grammar=grammar)
        commands: list[ipc.Command] = [_admit(first + i, sampling, options.steps) for i in range(options.rows)]
        events = self._engine.turn(commands)
        taken: list[float] = []
        last: float | None = None
        while self._engine.has_work or self._engine.only_waits or events:
            for event in events:
                if isinstance(event, ipc.GrammarRefused):
                    raise SystemExit(f"the model takes no such grammar: {event.message}")
                if isinstance(event, ipc.StepDone):
                    now = time.perf_counter()
                    full = event.num_decode_rows == options.rows and not event.prefilling
                    if full and last is not None:
                        taken.append(now - last)
                    last = now if full else None
            if self._engine.only_waits:
                time.sleep(1e-3)  # for the grammar, which a thread compiles
            events = self._engine.turn([])
        return statistics.mean(taken)


def _admit(job_id: int, sampling: SamplingParams, num_tokens: int) -> ipc.Admit:
    prompt = [random.Random(job_id).randrange(1000, 40_000) for _ in range(32)]
    stop = ipc.EngineStop(max_new_tokens=num_tokens)
    key = ipc.AttemptKey(str(job_id), 0)
    return ipc.Admit(job_id, key, ipc.pack_ids(prompt), sampling, stop, arrival=float(job_id))


def _random_model(source: Path, folder: Path) -> Path:
    (folder / "config.json").write_text(json.dumps(SHAPE))
    for file in source.glob("tokenizer*"):
        shutil.copy(file, folder)
    return folder


def main() -> None:
    """Print both times and what the grammar adds."""
    options = _parse()
    sys.setswitchinterval(1e-4)  # as the engine process does
    with tempfile.TemporaryDirectory() as folder:
        rows = Rows(options, _random_model(options.model, Path(folder)) if options.random else options.model)
        for temperature in options.temperature:
            _compare(rows, options, temperature)


def _compare(rows: Rows, options: argparse.Namespace, temperature: float) -> None:
    grammar = GrammarSpec(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA))
    free: list[float] = []
    bound: list[float] = []
    for number in range(-1, options.rounds):  # the first warms both up
        for grammar_or_none, times in ((None, free), (grammar, bound)):
            taken = rows.step_s(grammar_or_none, temperature)
            if number >= 0:
                times.append(taken)
    before, after = statistics.median(free), statistics.median(bound)
    added = statistics.median([b / f - 1 for f, b in zip(free, bound, strict=True)])
    print(
        f"{options.rows} rows, temperature {temperature:g}: free {before * 1e3:.2f} ms a step, "
        f"with a grammar {after * 1e3:.2f} ms; {added:+.1%} by the median of {options.rounds} pairs of rounds",
        flush=True,
    )


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=demo_model_folder())
    parser.add_argument("--random", action="store_true", help="see above; FOLDER may hold a tokenizer alone")
    parser.add_argument("--backend", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--temperature", type=float, nargs="+", default=[1.0, 0.0])
    return parser.parse_args()


if __name__ == "__main__":
    main()
