"""Compare admission rules, selectors or P:D ratios on the same arrivals, in simulated time.

python -m bench.simulate rules --trace azure_2023_conv.csv --requests 6000 --pool 100000 --rates 20 30 40 50
python -m bench.simulate selectors --trace mooncake_conversation_trace.jsonl --prefill 8 --decode 4 --rates 20
python -m bench.simulate ratios --trace azure_2023_conv.csv --prefill 4 --decode 4 --rates 40 80 120
"""

from __future__ import annotations

import json

from bench.simulate import options, table
from bench.simulate.sweep import sweep


def main() -> None:
    """Run all, print each as it is done, then the knees; write JSON and plot when asked."""
    asked = options.parser((__doc__ or "").split("\n", 1)[0]).parse_args()
    print(table.head())
    lines = []
    for line in sweep(options.setups(asked), asked.rates, options.arrivals(asked), options.slo(asked)):
        print(table.row(line), flush=True)
        lines.append(line)
    print("\n" + "\n".join(table.knees(lines)))
    if asked.json:
        asked.json.write_text(json.dumps([line.as_json() for line in lines], indent=2))
    if asked.plot:
        from bench.simulate.plots import plot_load  # drawing is left out of what most runs need

        plot_load(lines, f"{asked.compare} on {asked.trace.stem}", asked.plot)


if __name__ == "__main__":
    main()
