"""The speed table: decode and prefill of the Llama-3.1-8B shape through the engine's own loop, beside floors and bars.

    python -m bench.engine [--rounds 3] [--json FILE] [--only decode prefill ttft sampling]
                           [--rows 1 17 256]

Random bf16 weights. Requests are Admit commands, turned in this process, and ids are read back from its events. A
decode figure is (time for 130 tokens - time for 2) / 128, all requests together; their prompts are in the prefix cache
by then, so that both times are decode's. Medians over rounds, with the fastest and slowest beside them. Floors: bytes
read over the read bandwidth, or FLOPs over the matmul rate, both measured in the same run.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from bench import ceilings
from services.common import ipc
from services.common.request import SamplingParams
from services.engine.config import EngineConfig
from services.engine.load import load_model
from services.engine.loop import Engine

SHAPE = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256,
    "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": False,
    "dtype": "bfloat16",
}  # fmt: skip
LAYER_WEIGHTS = 4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336
HEAD_WEIGHTS = 4096 * 128256
KV_BYTES = 32 * 2 * 8 * 128 * 2
DECODE = {(1, 1024): 4.2, (16, 1024): 4.9, (17, 1024): None, (64, 1024): 6.8, (129, 1024): None, (256, 1024): 16.0,
          (64, 8000): 20.5}  # fmt: skip
PREFILL = {(8, 1024): 46_000, (1, 8192): 40_000}
TTFT = (128, 512)
GREEDY = SamplingParams(temperature=0.0)
TOP_P = SamplingParams(temperature=0.8, top_p=0.9)


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table; `bar` is what the project asks for, None where it only reports."""

    what: str
    unit: str
    median: float
    low: float
    high: float
    floor: float | None = None
    bar: float | None = None


class Bench:
    """One engine and its requests."""

    def __init__(self, rounds: int, rows: list[int] | None = None, **changes: Any) -> None:
        """`rows`: of the decode figures to measure, all by default; `changes` to the engine's configuration."""
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps(SHAPE))
            settings: dict[str, Any] = {"max_running_requests": 256, "max_context_tokens": 8320, "chunk_tokens": 8192}
            config = EngineConfig(
                endpoint="", model=folder, load_format="random", backend="cuda", **settings | changes
            )  # fmt: skip
            self.model = load_model(config)
            self.engine = Engine(config, self.model)
        self.ready_s = time.monotonic() - began
        self.rounds, self.rows = rounds, rows
        self._next_job = 0
        self.turn_s = 0.0
        self.turns = 0

    def run(self, prompts: list[list[int]], num_tokens: int, sampling: SamplingParams = GREEDY) -> float:
        """Seconds from the commands to the last id read back."""
        first = self._next_job + 1
        self._next_job += len(prompts)
        commands: list[ipc.Command] = [
            ipc.Admit(
                job_id=first + i, key=ipc.AttemptKey(str(first + i), 0), prompt_ids=ipc.pack_ids(prompt),
                sampling=sampling, stop=ipc.EngineStop(max_new_tokens=num_tokens), arrival=float(first + i),
            )
            for i, prompt in enumerate(prompts)
        ]  # fmt: skip
        began = time.perf_counter()
        num_ids = num_ids_of(self.engine.turn(commands))
        while self.engine.has_work:
            turned = time.perf_counter()
            events = self.engine.turn([])
            ipc.encode(events)
            self.turn_s += time.perf_counter() - turned
            self.turns += 1
            num_ids += num_ids_of(events)
        took = time.perf_counter() - began
        if num_ids != num_tokens * len(prompts):
            raise RuntimeError(f"{num_ids} ids came back of {num_tokens * len(prompts)}")
        return took

    def host_ms(self, run: Callable[[], object]) -> float:
        """Milliseconds a turn that the loop works and its events are encoded, without its waits for the device, over
        `run`."""
        waiting = self.engine._runner.waiting  # type: ignore[attr-defined] # the cuda runner's own
        before: float = waiting.seconds
        self.turn_s, self.turns = 0.0, 0
        run()
        waited: float = waiting.seconds - before
        return 1e3 * (self.turn_s - waited) / self.turns

    def spread(self, once: Callable[[], float]) -> tuple[float, float, float]:
        """Median, lowest and highest over the rounds."""
        values = [once() for _ in range(self.rounds)]
        return statistics.median(values), min(values), max(values)


def num_ids_of(events: list[ipc.Event]) -> int:
    """How many tokens they tell of."""
    steps = [event for event in events if isinstance(event, ipc.StepDone)]
    return sum(len(output.token_ids) for step in steps for output in step.outputs)


def prompts_of(count: int, length: int) -> list[list[int]]:
    """Random prompts that share nothing with any other."""
    prompts: list[list[int]] = torch.randint(0, 128_000, (count, length)).tolist()
    return prompts


def decode_floor_ms(rows: int, context: int, ceiling: ceilings.Ceilings) -> float:
    """All weights and the contexts' KV read once; or the products' FLOPs, where those take longer."""
    weights = 32 * LAYER_WEIGHTS + HEAD_WEIGHTS
    kv = rows * (context + 66) * KV_BYTES / ceiling.read_tb_s / 1e9
    return max(2 * weights / ceiling.read_tb_s / 1e9, 2 * rows * weights / ceiling.matmul_tflop_s / 1e9) + kv


def prefill_floor(prompts: int, length: int, ceiling: ceilings.Ceilings) -> float:
    """Tokens a second when every product and causal attention run at the matmul rate."""
    tokens = prompts * length
    flops = 2 * tokens * 32 * LAYER_WEIGHTS + 2 * prompts * HEAD_WEIGHTS + 32 * 4 * 4096 * prompts * length**2 / 2
    return tokens * ceiling.matmul_tflop_s * 1e12 / flops


def decode(bench: Bench, ceiling: ceilings.Ceilings) -> Iterator[Figure]:
    """Milliseconds a step, and the host's share of it at the largest batch."""
    for (rows, context), bar in DECODE.items():
        if bench.rows is not None and rows not in bench.rows:
            continue
        prompts = prompts_of(rows, context)
        bench.run(prompts, 2)

        def step_ms(prompts: list[list[int]] = prompts) -> float:
            return 1e3 * (bench.run(prompts, 130) - bench.run(prompts, 2)) / 128

        yield Figure(f"decode B={rows}, context {context}", "ms/step", *bench.spread(step_ms),
                     decode_floor_ms(rows, context, ceiling), bar)  # fmt: skip
        if rows == 256:
            host = bench.spread(lambda prompts=prompts: bench.host_ms(lambda: bench.run(prompts, 130)))  # type: ignore[misc]
            yield Figure("host work a step, B=256", "ms", *host, bar=1.0)


def prefill(bench: Bench, ceiling: ceilings.Ceilings) -> Iterator[Figure]:
    """Prompt tokens a second, first tokens read back."""
    for (count, length), bar in PREFILL.items():
        bench.run(prompts_of(count, length), 1)
        rate = bench.spread(lambda n=count, k=length: n * k / bench.run(prompts_of(n, k), 1))  # type: ignore[misc]
        yield Figure(f"prefill {count} x {length}", "tok/s", *rate, prefill_floor(count, length, ceiling), bar)


def ttft(bench: Bench, ceiling: ceilings.Ceilings) -> Iterator[Figure]:
    """Milliseconds from the command to the first token of one prompt on an idle engine."""
    for length in TTFT:
        bench.run(prompts_of(1, length), 1)
        yield Figure(f"first token, 1 x {length}", "ms",
                     *bench.spread(lambda k=length: 1e3 * bench.run(prompts_of(1, k), 1)),  # type: ignore[misc]
                     max(decode_floor_ms(1, 0, ceiling), 1e3 * length / prefill_floor(1, length, ceiling)))  # fmt: skip


def sampling(bench: Bench, _ceiling: ceilings.Ceilings) -> Iterator[Figure]:
    """What top-p costs a step beyond greedy at the largest batch.

    Neighbouring runs are compared, whichever comes first: between runs further apart the card's clock changes more than
    a draw takes.
    """
    prompts = prompts_of(256, 64)
    bench.run(prompts, 2, TOP_P)

    def difference(turn: int) -> float:
        order = (GREEDY, TOP_P) if turn % 2 else (TOP_P, GREEDY)
        took = {params.top_p: bench.run(prompts, 66, params) for params in order}
        return 1e3 * (took[TOP_P.top_p] - took[GREEDY.top_p]) / 65

    pairs = [difference(turn) for turn in range(4 * bench.rounds)]
    yield Figure("top-p 0.9 beyond greedy, B=256", "ms/step", statistics.median(pairs), min(pairs), max(pairs), bar=0.3)


PARTS = {"decode": decode, "prefill": prefill, "ttft": ttft, "sampling": sampling}


def line(figure: Figure) -> str:
    """Format a figure."""
    floor = "" if figure.floor is None else f"{figure.floor:9.2f}"
    bar = "" if figure.bar is None else f"{figure.bar:9.1f}"
    return (
        f"{figure.what:34} {figure.median:10.3f} {figure.unit:8} {figure.low:10.3f} {figure.high:10.3f} {floor:>9} "
        f"{bar:>9}"
    )


def main() -> None:
    """Measure, print the table last, write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--rows", type=int, nargs="*", help="of decode; all by default")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s", stream=sys.stderr)
    sys.setswitchinterval(1e-4)
    ceiling = ceilings.measure(torch.device("cuda"))
    torch.cuda.empty_cache()
    bench = Bench(options.rounds, options.rows)
    gc.collect()
    gc.freeze()
    gc.disable()  # as the engine process does
    figures = [Figure("from start to ready", "s", bench.ready_s, bench.ready_s, bench.ready_s)]
    for part in options.only:
        for figure in PARTS[part](bench, ceiling):
            figures.append(figure)
            print(line(figure), file=sys.stderr, flush=True)
    print(f"{torch.cuda.get_device_name()}, {ceiling}")
    print(f"{'':34} {'median':>10} {'':8} {'lowest':>10} {'highest':>10} {'floor':>9} {'bar':>9}")
    for figure in figures:
        print(line(figure))
    if options.json:
        options.json.write_text(json.dumps({"ceilings": asdict(ceiling), "figures": [asdict(f) for f in figures]}))


if __name__ == "__main__":
    main()
