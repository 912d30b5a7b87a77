"""docs/operations.md and docs/runbooks.md as a new user follows them: each shell block and each kubectl command in them
is run as it stands there, in a namespace of its own, and so is what the chart's notes say. Images and the model are
this machine's. Left out are `docker build`, for the images' own test builds the same file, and what needs cards;
tests/chart looks at those.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.conftest import values
from tests.cluster.kube import FOLDER, Kube
from tools.check_chart import ROOT

pytestmark = pytest.mark.slow
NAMESPACE = "newcomer"
MODEL = "Qwen/Qwen3-8B"
COMPONENTS = ("pd-master", "prefill", "decode")
OPERATIONS, RUNBOOKS = (ROOT / "docs" / f"{page}.md" for page in ("operations", "runbooks"))
NEEDS_HARDWARE = ("infiniband", "nvidia-smi", "libuct_ib_mlx5")
SAYS_NOTHING = ("ls /opt/ucx/lib/ucx",)
"""In an image without RDMA."""
NEEDS_A_CRASH = ("--previous",)
CHANGES_SOMETHING = ("create", "delete", "scale")
LEFT_OUT = ("docker build", "qwen3-8b-tp2.yaml", "CUDA_VISIBLE_DEVICES")
UNTIL_FORWARDED = "until (exec 3<>/dev/tcp/127.0.0.1/8000) 2>/dev/null; do sleep 0.2; done"


def shell_blocks(page: Path) -> list[str]:
    """The commands of each block that is marked as shell."""
    return re.findall(r"^```sh\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def kubectl_commands(page: Path) -> list[str]:
    """Those in the text and in blocks, without their comments."""
    text = page.read_text()
    inline = re.findall(r"`(kubectl [^`]+)`", text)
    return inline + [line.partition("  #")[0] for block in shell_blocks(page) for line in block.splitlines()]


class Terminal:
    """bash with `helm` and `kubectl` on its path."""

    def __init__(self, folder: Path, model_dir: Path) -> None:
        helm = folder / "helm"
        helm.write_text(f'#!/bin/sh\nexec {sys.executable} -m tests.cluster.helm_cli "$@"\n')
        helm.chmod(0o755)
        of_test = values(model_dir)
        of_test["image"]["registry"] = ""
        of_test["model"]["servedName"] = MODEL
        (folder / "values.json").write_text(json.dumps(of_test))
        self._env = os.environ | {
            "PATH": f"{folder}:{FOLDER / 'bin'}:{os.environ['PATH']}",
            "KUBECONFIG": str(FOLDER / "admin.kubeconfig"),
            "SLUICE_HELM_VALUES": str(folder / "values.json"),
        }

    def run(self, commands: str) -> subprocess.CompletedProcess[str]:
        """Run lines as typed; a port that is forwarded in the background is waited for, as a person does."""
        typed = re.sub(r" &$", f" &\n{UNTIL_FORWARDED}", commands, flags=re.MULTILINE)
        script = f"set -euo pipefail\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n{typed}"
        return subprocess.run(
            ["bash", "-c", script], cwd=ROOT, env=self._env, capture_output=True, text=True, timeout=600, check=False
        )

    def succeed(self, commands: str) -> str:
        """Its output."""
        done = self.run(commands.replace("serving", NAMESPACE))
        assert done.returncode == 0, f"{commands}\n{done.stdout}\n{done.stderr}"
        return done.stdout


@pytest.fixture(scope="module")
def terminal(kube: Kube, model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    """A new user's."""
    assert kube
    made = Terminal(tmp_path_factory.mktemp("terminal"), model_dir)
    yield made
    made.run(f"helm uninstall sluice --namespace {NAMESPACE}")


def test_operations_page_works_block_by_block(kube: Kube, terminal: Terminal) -> None:
    assert kube
    blocks = shell_blocks(OPERATIONS)
    tried = [block for block in blocks if not any(word in block for word in LEFT_OUT)]
    assert len(blocks) - len(tried) == len(LEFT_OUT)
    installed, asked, keys, encrypted, upgraded = [terminal.succeed(block) for block in tried]
    assert "test: done" in installed
    assert MODEL in asked
    assert "data: [DONE]" in asked
    assert "test: done" in keys
    assert "test: done" in encrypted
    assert len(json.loads(upgraded.splitlines()[1])) == 4


def test_notes_of_the_chart_tell_how_to_send_a_request(kube: Kube, terminal: Terminal) -> None:
    """Its API keys are in a Secret by now."""
    there = Kube(NAMESPACE)
    kube.wait("rolled back", lambda: all(there.settled(name, 1) for name in COMPONENTS), 240)
    notes = terminal.succeed("helm get notes sluice --namespace serving")
    assert "Authorization" in notes
    said = terminal.succeed("\n".join(re.findall(r"^     (.+)$", notes, re.MULTILINE)))
    assert '"delta"' in said
    assert "data: [DONE]" in said
    assert "test: done" in said


def test_kubectl_commands_of_both_pages_work(kube: Kube, terminal: Terminal) -> None:
    there = Kube(NAMESPACE)
    kube.wait("rolled back", lambda: all(there.settled(name, 1) for name in COMPONENTS), 240)
    named = {"POD": there.ready_pods("decode")[0], "NODE": "testnode", "NS": NAMESPACE}
    commands = dict.fromkeys(kubectl_commands(OPERATIONS) + kubectl_commands(RUNBOOKS))
    tried = [one for one in commands if one.startswith("kubectl ") and "serving" not in one]
    tried = [one for one in tried if not set(shlex.split(one)) & set(CHANGES_SOMETHING)]
    assert len(tried) > 10
    for command in tried:
        done = terminal.run(re.sub(r"\b(POD|NODE|NS)\b", lambda match: named[match[0]], command))
        if any(word in command for word in NEEDS_HARDWARE):
            assert "exit code" in done.stderr or "executable file not found" in done.stderr, done.stderr
        elif any(word in command for word in NEEDS_A_CRASH):
            assert "previous terminated container" in done.stderr, done.stderr
        else:
            assert done.returncode == 0, f"{command}\n{done.stderr}"
            assert bool(done.stdout) != any(word in command for word in SAYS_NOTHING), command
