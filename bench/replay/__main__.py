"""Play a trace against a server that speaks the OpenAI API, open loop: a request is sent when its time has come,
whatever became of those before it.

    python -m bench.replay --url http://127.0.0.1:8000 --model smollm2 --trace azure_2023_conv.csv --rate 2

Prompts are random token ids; blocks that a Mooncake trace names alike are alike. Outputs are made as long as in the
trace (`ignore_eos`), or end by themselves below `--max-new-tokens`. Gaps between tokens are those between events of the
stream, of which one may carry several tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from pathlib import Path

from bench.replay.client import Asked
from bench.replay.players import play_all, stories_of
from bench.simulate import table
from bench.simulate.figures import Figures, Slo
from bench.simulate.measure import summary
from bench.simulate.sweep import Line
from bench.simulate.trace import Arrival, read_trace, scaled, shortened


async def replay(arrivals: list[Arrival], asked: Asked, slo: Slo, timeout_s: float) -> Figures:
    """Play all arrivals and wait for the last."""
    stories = stories_of(arrivals, asked)
    gaps = await play_all(stories, asked, timeout_s, time.perf_counter())
    for why in sorted({story.refused for story in stories if story.refused})[:5]:
        print(f"refused: {why}")
    return summary(stories, gaps, slo)


def main() -> None:
    """Replay, print the figures, write JSON when asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--trace", type=Path, required=True)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--rate", type=float, required=True, help="requests a second")
    parser.add_argument("--vocab-size", type=int, default=32_000)
    parser.add_argument("--max-prompt-tokens", type=int, help="cut prompts to this many")
    parser.add_argument("--max-output-tokens", type=int, help="cut the trace's outputs to this many")
    parser.add_argument("--max-new-tokens", type=int, help="let outputs end by themselves below this")
    parser.add_argument("--ttft", type=float, default=2.0, help="bound on the time to the first token, s")
    parser.add_argument("--tpot", type=float, default=0.05, help="bound on the mean time between tokens, s")
    parser.add_argument("--timeout", type=float, default=300.0, help="longest silence of a stream, s")
    parser.add_argument("--json", type=Path, help="write the figures to this file as well")
    asked = parser.parse_args()
    arrivals = scaled(read_trace(asked.trace, asked.requests), asked.rate)
    arrivals = shortened(arrivals, asked.max_prompt_tokens, asked.max_output_tokens)
    server = Asked(asked.url.rstrip("/"), asked.model, asked.vocab_size, asked.max_new_tokens)
    figures = asyncio.run(replay(arrivals, server, Slo(asked.ttft, asked.tpot), asked.timeout))
    line = Line("replay", figures)
    print(f"{table.head()}\n{table.row(line)}")
    if asked.json:
        asked.json.write_text(json.dumps(line.as_json(), indent=2))


if __name__ == "__main__":
    main()
