"""The command line of the simulator."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from bench.simulate.cost import load_costs
from bench.simulate.figures import Slo
from bench.simulate.fleet import Setup
from bench.simulate.rules import RULES
from bench.simulate.selectors import SELECTORS
from bench.simulate.trace import Arrival, lengthened, read_trace, shortened
from services.router.work import RouterConfig


def parser(description: str) -> argparse.ArgumentParser:
    """Options that are common to all comparisons."""
    one = argparse.ArgumentParser(prog="python -m bench.simulate", description=description)
    one.add_argument("compare", choices=("rules", "selectors", "ratios"), help="what differs between the runs")
    one.add_argument("--trace", type=Path, required=True, help="Azure CSV or Mooncake JSON lines")
    one.add_argument("--requests", type=int, help="only so many of its first arrivals")
    one.add_argument("--rates", type=float, nargs="+", required=True, help="requests a second")
    one.add_argument("--costs", default="h200_llama8b", help="name in bench/simulate/costs, or a JSON file")
    one.add_argument("--prefill", type=int, default=2, help="prefill workers")
    one.add_argument("--decode", type=int, default=1, help="decode workers")
    one.add_argument("--pool", type=int, help="KV slots of each worker; the cost file's where left out")
    one.add_argument("--max-running", type=int, default=1024, help="sequences of a decode worker")
    one.add_argument("--max-new-tokens", type=int, default=2048, help="what every client asks for")
    one.add_argument("--max-prompt-tokens", type=int, help="cut prompts to this many")
    one.add_argument("--max-output-tokens", type=int, help="cut the trace's outputs to this many")
    one.add_argument("--output-times", type=float, default=1.0, help="make the trace's outputs so many times as long")
    one.add_argument("--chunk-tokens", type=int, default=2048, help="prompt tokens a step computes")
    one.add_argument("--ttft", type=float, default=2.0, help="bound on the time to the first token, s")
    one.add_argument("--tpot", type=float, default=0.05, help="bound on the mean time between tokens, s")
    one.add_argument("--queue-budget", type=float, help="how long one may wait, s; --ttft where left out")
    one.add_argument("--shed", action="store_true", help="turn away early what is predicted to miss its queue budget")
    one.add_argument("--names", nargs="+", help="only these rules, selectors, or ratios such as 3:1")
    one.add_argument("--json", type=Path, help="write all figures to this file as well")
    one.add_argument("--plot", type=Path, help="write curves to this PNG")
    return one


def slo(asked: argparse.Namespace) -> Slo:
    """The bounds of goodput."""
    return Slo(asked.ttft, asked.tpot)


def arrivals(asked: argparse.Namespace) -> list[Arrival]:
    """The trace, as it was recorded but for its lengths."""
    trace = read_trace(asked.trace, asked.requests)
    return shortened(lengthened(trace, asked.output_times), asked.max_prompt_tokens, asked.max_output_tokens)


def setups(asked: argparse.Namespace) -> dict[str, Setup]:
    """What is compared, by name. Raises KeyError for an unknown name."""
    costs = load_costs(asked.costs)
    pool = asked.pool or costs.pool_slots
    chunk = asked.chunk_tokens
    router = RouterConfig(costs.pool_slots, chunk_tokens=chunk, step_budget_tokens=chunk)
    usual = Setup(
        costs=costs,
        num_prefill=asked.prefill,
        num_decode=asked.decode,
        max_new_tokens=asked.max_new_tokens,
        sheds=asked.shed,
        queue_budget_s=asked.queue_budget or asked.ttft,
        decode=replace(router, capacity_slots=pool, max_running=asked.max_running),
        prefill=router,
    )
    if asked.compare == "rules":
        return {name: replace(usual, rule=name) for name in asked.names or RULES}
    if asked.compare == "selectors":
        return {name: replace(usual, selector=name) for name in asked.names or SELECTORS}
    return {name: _of_ratio(usual, name) for name in asked.names or _ratios(asked.prefill + asked.decode)}


def _ratios(total: int) -> list[str]:
    return [f"{num}:{total - num}" for num in range(1, total)]


def _of_ratio(usual: Setup, name: str) -> Setup:
    num_prefill, num_decode = name.split(":")
    return replace(usual, num_prefill=int(num_prefill), num_decode=int(num_decode))
