"""Hold the simulator against a running server: fit, replay and simulate in turns.

    python -m bench.agreement --url http://127.0.0.1:8000 --model smollm2 --pool 32768 --chunk-tokens 512 \
        --trace azure_2023_conv.csv --requests 24 --rate 0.7 --max-prompt-tokens 256 --max-output-tokens 64

A machine that others use too is now faster and now slower. So each replay stands between two fits of the cost model,
and is simulated with the mean of both; the last lines are medians over the rounds and how far the rounds are apart.
The server should have its prefix cache off, since every round sends the same prompts, and must have one worker of each
role and `--local-prefill-tokens 0`: the simulator's decode workers compute no prompts. Outputs are as long as in the
trace, which the simulated Router is told as well.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from bench import fit_costs
from bench.replay.__main__ import replay
from bench.replay.client import Asked
from bench.simulate.cost import Costs
from bench.simulate.figures import Figures, Slo
from bench.simulate.fleet import Setup
from bench.simulate.measure import figures_of, simulate
from bench.simulate.trace import Arrival, read_trace, scaled, shortened
from services.router.work import RouterConfig

_ANY = Slo(60.0, 60.0)
COMPARED: dict[str, Callable[[Figures], float]] = {
    "TTFT p50 s": lambda one: one.ttft_s[0],
    "TTFT p90 s": lambda one: one.ttft_s[1],
    "tokens/s": lambda one: one.output_tokens_per_s,
    "TPOT p50 s": lambda one: one.tpot_s[0],
}


@dataclass(frozen=True, slots=True)
class Round:
    """One replay and its simulation."""

    simulated: Figures
    replayed: Figures

    def pair(self, name: str) -> tuple[float, float]:
        """Simulated and replayed, of a name in COMPARED."""
        figure = COMPARED[name]
        return figure(self.simulated), figure(self.replayed)


def between(one: Costs, other: Costs) -> Costs:
    """The mean of two fits of one server."""
    first, second = asdict(one), asdict(other)
    means = {f.name: (first[f.name] + second[f.name]) / 2 for f in fields(Costs) if f.type == "float"}
    return Costs(**(first | means))


def simulated(costs: Costs, arrivals: list[Arrival], chunk_tokens: int) -> Figures:
    """The same arrivals on one simulated pair of workers."""
    router = RouterConfig(costs.pool_slots, chunk_tokens=chunk_tokens, step_budget_tokens=chunk_tokens)
    setup = Setup(costs, rule="oracle", sheds=False, decode=router, prefill=router)
    return figures_of(simulate(setup, arrivals), _ANY)


def cells(one: Round) -> str:
    """Each figure as simulated / replayed (by how much the first is off)."""
    pairs = [one.pair(name) for name in COMPARED]
    return "".join(f"{f'{sim:.3g} / {real:.3g} ({sim / real - 1:+.0%})':>26}" for sim, real in pairs)


def summary(rounds: list[Round]) -> list[str]:
    """Of each figure: the medians, how far they are apart, and the least and most of single rounds."""
    lines = []
    for name in COMPARED:
        pairs = [one.pair(name) for one in rounds]
        sim, real = (statistics.median(side) for side in zip(*pairs, strict=True))
        off = [one / other - 1 for one, other in pairs]
        replays = [other for _, other in pairs]
        lines.append(
            f"{name:<12} simulated {sim:.3g}, replayed {real:.3g}: {sim / real - 1:+.1%}; "
            f"rounds {min(off):+.0%} to {max(off):+.0%}; replays {min(replays):.3g} to {max(replays):.3g}"
        )
    return lines


async def run(asked: argparse.Namespace) -> list[Round]:
    """All rounds; prints each as it is done."""
    arrivals = scaled(read_trace(asked.trace, asked.requests), asked.rate)
    arrivals = shortened(arrivals, asked.max_prompt_tokens, asked.max_output_tokens)
    server = Asked(asked.url.rstrip("/"), asked.model, asked.vocab_size, None)
    rounds: list[Round] = []
    before = await fit_costs.run(asked)
    print(f"{'simulated / replayed':<22}" + "".join(f"{name:>26}" for name in COMPARED))
    for number in range(asked.repeat):
        replayed = await replay(arrivals, server, _ANY, 300.0)
        if replayed.refused_share > 0:
            raise SystemExit(f"{replayed.refused_share:.0%} of the requests failed: what is left is other work")
        after = await fit_costs.run(asked)
        rounds.append(Round(simulated(between(before, after), arrivals, asked.chunk_tokens), replayed))
        before = after
        print(f"{f'round {number + 1}':<22}{cells(rounds[-1])}", flush=True)
    return rounds


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    fit_costs.add_options(parser)
    parser.add_argument("--trace", type=Path, required=True)
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--rate", type=float, required=True, help="requests a second")
    parser.add_argument("--max-prompt-tokens", type=int, help="cut prompts to this many")
    parser.add_argument("--max-output-tokens", type=int, help="cut the trace's outputs to this many")
    parser.add_argument("--chunk-tokens", type=int, default=512, help="as the server was started with")
    parser.add_argument("--repeat", type=int, default=5, help="rounds of replay and fit")
    print("\n".join(summary(asyncio.run(run(parser.parse_args())))))


if __name__ == "__main__":
    main()
