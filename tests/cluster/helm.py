"""The Helm engine in a process of its own: `python -m tests.cluster.helm` takes a call as JSON on stdin.

The engine's threads keep the network that the process began in, and a test's process began outside of the node's.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.cluster.kube import FOLDER
from tools.check_chart import CHART, ROOT


def helm(action: str, **options: Any) -> dict[str, Any]:
    """Run install, upgrade, rollback, test or uninstall; the release is `sluice` unless `name` says otherwise."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.cluster.helm"],
        input=json.dumps({"action": action, "options": options}),
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, f"helm {action}: {done.stderr.strip().splitlines()[-1:]}"
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _call(action: str, options: dict[str, Any], kubeconfig: Path) -> dict[str, Any]:
    import helm_python

    namespace, name = options.pop("namespace"), options.pop("name", "sluice")
    with helm_python.Config(kubeconfig_path=kubeconfig, namespace=namespace) as config:
        words = (CHART, name) if action in {"install", "upgrade"} else (name,)
        return getattr(config, action)(*words, **options) or {}


if __name__ == "__main__":
    call = json.load(sys.stdin)
    sys.stdout.write(json.dumps(_call(call["action"], call["options"], FOLDER / "admin.kubeconfig")))
