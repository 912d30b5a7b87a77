"""Sluice on this machine's CPU, through its gateway, beside `transformers` `generate`: `python -m bench.end_to_end`.

One run measures both with the same model folder, dtype and number of threads, in turns, so that a machine whose speed
drifts slows both. A stream is one prompt of --prompt-tokens and --output-tokens greedy tokens, EOS ignored.
"""

import argparse
import asyncio
import json
import statistics
import sys
import time
from pathlib import Path

import httpx
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from bench.serving import serving
from services.cli.demo_model import fetch_demo_model

TEXT = Path(__file__).parent.parent / "docs"


class Transformers:
    """`generate` in this process."""

    def __init__(self, model: Path, dtype: str, threads: int) -> None:
        torch.set_num_threads(threads)
        self._model = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype)).eval()

    def seconds(self, prompt: list[int], output_tokens: int) -> float:
        """Wall time of one stream."""
        ids = torch.tensor([prompt])
        began = time.perf_counter()
        with torch.inference_mode():
            self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                min_new_tokens=output_tokens,
                max_new_tokens=output_tokens,
                do_sample=False,
                pad_token_id=0,
            )
        return time.perf_counter() - began


class Sluice:
    """`sluice up` in processes of its own."""

    def __init__(self, url: str) -> None:
        self._url = url

    def seconds(self, prompts: list[list[int]], output_tokens: int) -> float:
        """Wall time of all prompts at once, each a stream read to its end."""
        return asyncio.run(self._all(prompts, output_tokens))

    async def _all(self, prompts: list[list[int]], output_tokens: int) -> float:
        async with httpx.AsyncClient(base_url=self._url, timeout=600) as client:
            began = time.perf_counter()
            await asyncio.gather(*(self._one(client, prompt, output_tokens) for prompt in prompts))
            return time.perf_counter() - began

    async def _one(self, client: httpx.AsyncClient, prompt: list[int], output_tokens: int) -> None:
        parameters = {"max_new_tokens": output_tokens, "do_sample": False, "ignore_eos": True}
        body = {"inputs": prompt, "parameters": parameters}
        async with client.stream("POST", "/generate_stream", json=body) as response:
            events = [json.loads(line[5:]) async for line in response.aiter_lines() if line.startswith("data:")]
        if len(events) != output_tokens or events[-1].get("finish_reason") != "length":
            raise RuntimeError(f"a stream brought {len(events)} of {output_tokens} tokens: {events[-1:]}")


def prompts_for(model: Path, count: int, length: int) -> list[list[int]]:
    """`count` different prompts of `length` tokens, cut out of this project's own documents."""
    text = "\n".join(path.read_text() for path in sorted(TEXT.glob("*.md")))
    ids = AutoTokenizer.from_pretrained(model)(text)["input_ids"]
    if len(ids) < count * length:
        raise SystemExit(f"--prompt-tokens: {length} is too long; docs/ has {len(ids)} tokens for {count} prompts")
    return [ids[i * length : (i + 1) * length] for i in range(count)]


def main() -> None:
    """Measure, print a table, and JSON on request."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")
    args = parser.parse_args()
    report = measure(args)
    if args.json:
        print(json.dumps(report, indent=2))
        return
    print_table(args, report)


def print_table(args: argparse.Namespace, report: dict[str, dict[str, float]]) -> None:
    """Rows, then the two ratios that count."""
    print(f"{args.dtype}, {args.threads} threads, {args.prompt_tokens} + {args.output_tokens} tokens a stream")
    for name, row in report.items():
        spread = f"{row['min']:.2f} / {row['median']:.2f} / {row['max']:.2f}"
        print(f"{name:<26} {row['tokens_per_s']:>8.1f} tok/s   seconds min / median / max {spread}")
    theirs, one, many = report.values()
    print(f"one stream: {theirs['median'] / one['median']:.2f} times as fast as transformers")
    print(
        f"{args.streams} streams: {many['tokens_per_s'] / one['tokens_per_s']:.2f} times the throughput of one by one"
    )


def measure(args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Rounds of transformers, one stream, all streams; the first round only warms up."""
    model = fetch_demo_model()
    prompts = prompts_for(model, args.streams, args.prompt_tokens)
    theirs: list[float] = []
    one: list[float] = []
    many: list[float] = []
    reference = Transformers(model, args.dtype, args.threads)
    # Every prompt is computed, by the prefill worker.
    options = ["--model", str(model), "--dtype", args.dtype, "--threads", str(args.threads), "--no-prefix-cache"]
    options += ["--local-prefill-tokens", "0"]
    with serving([*options, "--log-level", "warning"]) as url:
        sluice = Sluice(url)
        for number in range(args.rounds + 1):
            prompt = prompts[number % len(prompts)]
            theirs.append(reference.seconds(prompt, args.output_tokens))
            one.append(sluice.seconds([prompt], args.output_tokens))
            many.append(sluice.seconds(prompts, args.output_tokens))
            print(f"round {number} of {args.rounds} done", file=sys.stderr)
    return {
        "transformers, 1 stream": _row(theirs[1:], args.output_tokens),
        "sluice, 1 stream": _row(one[1:], args.output_tokens),
        f"sluice, {args.streams} streams": _row(many[1:], args.output_tokens * args.streams),
    }


def _row(seconds: list[float], tokens: int) -> dict[str, float]:
    median = statistics.median(seconds)
    return {"min": min(seconds), "median": median, "max": max(seconds), "tokens_per_s": tokens / median}


if __name__ == "__main__":
    main()
