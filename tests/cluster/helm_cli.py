"""`helm` as documents use it, on the Helm engine: `python -m tests.cluster.helm_cli install sluice ./helm/sluice ...`.

What the file in SLUICE_HELM_VALUES holds is added to an install's values: images and models of this machine.
"""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import helm_python

Values = dict[str, Any]
_TIMEOUT_S = 300
_CHART = "helm/sluice"


def merged(below: Values, above: Values) -> Values:
    """Maps key by key; anything else is replaced."""
    both = {key: merged(below[key], above[key]) for key in below.keys() & above.keys() if isinstance(above[key], dict)}
    return below | above | both


def given_values(options: argparse.Namespace) -> Values:
    """Those of -f and --set, in Helm's order."""
    values: Values = {}
    for path in options.values:
        values = merged(values, helm_python.values_from_yaml(Path(path).read_text()))
    for expression in options.set:
        values = merged(values, helm_python.parse_set_string(expression))
    return values


def run(options: argparse.Namespace, config: helm_python.Config) -> str:
    """Do it; what to print."""
    name = options.name
    match options.action:
        case "install":
            extra = json.loads(Path(os.environ["SLUICE_HELM_VALUES"]).read_text())
            values = merged(given_values(options), extra)
            config.install(options.chart, name, values, create_namespace=options.create_namespace)
        case "upgrade":
            kept = config.get_values(name) if options.reset_then_reuse_values else {}
            config.upgrade(options.chart, name, merged(dict(kept), given_values(options)))
        case "rollback":
            config.rollback(name)
        case "history":
            return json.dumps(config.history(name))
        case "get":  # helm get notes RELEASE
            with helm_python.Chart.load(_CHART) as chart:
                files = chart.render(config.get_values(options.chart), name=options.chart, namespace=options.namespace)
            return files["sluice/templates/NOTES.txt"]
        case "test":
            config.test(name, timeout=_TIMEOUT_S)
        case "uninstall":
            config.uninstall(name, wait="watcher", timeout=_TIMEOUT_S)
    return f"{options.action}: done"


def main(argv: list[str]) -> None:
    """One command."""
    parser = argparse.ArgumentParser(prog="helm")
    parser.add_argument("action", choices=["install", "upgrade", "rollback", "history", "get", "test", "uninstall"])
    parser.add_argument("name")
    parser.add_argument("chart", nargs="?")
    parser.add_argument("--namespace", required=True)
    parser.add_argument("--create-namespace", action="store_true")
    parser.add_argument("--reset-then-reuse-values", action="store_true")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("-f", "--values", action="append", default=[])
    options = parser.parse_args(argv)
    with helm_python.Config(kubeconfig_path=os.environ["KUBECONFIG"], namespace=options.namespace) as config:
        print(run(options, config))  # noqa: T201 - a command's output


if __name__ == "__main__":
    main(sys.argv[1:])
