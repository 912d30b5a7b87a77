"""All that an engine launches compiles for the card it is meant for, which this machine need not have.

The interpreter, under which the other tests of this folder run without a card, compiles nothing.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from triton import knobs

from tests.engine.process import ROOT
from tests.kernels.compiling import GENERIC, MODELS, Case, Compiled

FEW = (
    Case("llama-8b", "bfloat16", 2, 1),
    Case("qwen3-30b-a3b", "float16", 4, 0),
    Case("llama-biased", "bfloat16"),
    Case("tiny", "float32", 2, 0),
    Case("phi3-mini", "bfloat16"),
)
"""Together they launch every kernel."""
ALL = (
    *FEW,
    *(Case(model, "bfloat16", count, count - 1) for model, shape in MODELS.items()
      for count in (1, 2, 4, 8) if shape["num_key_value_heads"] % count == 0),
    *(Case(model, dtype, count, 0) for model in ("tiny", "llama-8b", "qwen3-30b-a3b")
      for dtype in ("float16", "float32") for count in (1, 2)),
    *(Case(model, dtype) for model in GENERIC for dtype in ("bfloat16", "float32")),
    *(Case("llama-8b", "bfloat16", 8, rank) for rank in range(7)),
    *(Case("llama-8b", "bfloat16", max_running_requests=rows) for rows in (1, 5, 64, 1000)),
    *(Case("llama-8b", "bfloat16", count, arch=80) for count in (1, 2)),
)  # fmt: skip
CASES = tuple(dict.fromkeys(ALL)) if os.environ.get("ALL_SHAPES") else FEW
SHARED_BYTES = {80: 163 << 10, 90: 227 << 10}
"""Of shared memory that a program may have, by compute capability."""
STACK_BYTES = 64
"""Of a thread, which are memory: a few of a function's own do no harm, values that did not fit into registers do."""
TIMEOUT_S = 240.0

Outcome = tuple[list[Compiled], str]
"""What was compiled, and why no more was."""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Case, Future[Outcome]]]:
    """A process a case, as many at a time as there are cores; nothing is found in the cache of a run before."""
    cache = tmp_path_factory.mktemp("triton")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield {case: pool.submit(_compiled, case, cache) for case in CASES}
        pool.shutdown(cancel_futures=True)


def _compiled(case: Case, cache: Path) -> Outcome:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    ended = subprocess.run(
        [sys.executable, "-m", "tests.kernels.compiling", msgspec.json.encode(case).decode()],
        cwd=ROOT, text=True, capture_output=True, timeout=TIMEOUT_S, check=False,
        env=inherited | {"TRITON_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    compiled = [msgspec.json.decode(line, type=Compiled) for line in ended.stdout.splitlines()]
    return compiled, ended.stderr[-4000:] if ended.returncode else ""


def _name(case: Case) -> str:
    return f"{case.model}-{case.dtype}-{case.rank}of{case.num_ranks}"


@pytest.fixture(params=CASES, ids=_name)
def outcome(request: pytest.FixtureRequest, outcomes: dict[Case, Future[Outcome]]) -> Outcome:
    return outcomes[request.param].result()


def test_an_engine_compiles_and_no_request_waits_for_it(outcome: Outcome) -> None:
    compiled, error = outcome
    if error:
        pytest.fail(error, pytrace=False)
    assert compiled
    assert [each for each in compiled if each.shared_bytes > SHARED_BYTES[each.arch]] == []
    assert [each for each in compiled if each.phase != "start"] == [], "not run beforehand"


def test_what_a_kernel_works_on_stays_in_registers(outcome: Outcome) -> None:
    """But for exact products of float32, which are there to compare with."""
    fast = [each for each in outcome[0] if "ieee" not in each.constexprs]
    stacks = {f"{each.kernel}{each.constexprs}": _stack_bytes(Path(each.files["cubin"])) for each in fast}
    assert {name: size for name, size in stacks.items() if size > STACK_BYTES} == {}


def test_words_for_other_ranks_are_stored_whole_and_looked_at_again_until_they_come(outcome: Outcome) -> None:
    for each in outcome[0]:
        ptx = Path(each.files["ptx"]).read_text()
        looked = re.findall(r"ld\.volatile\.global\.(\S+)", ptx)
        if not looked and each.kernel not in {"_rank_sum", "_rank_pick"}:
            continue
        stored = re.findall(r"st\.global\.(b64|v2\.b64)\b", ptx)
        name = f"{each.kernel}{each.constexprs}"
        assert set(looked) <= {"b64", "v2.b64"}, f"{name}: of 8 bytes each"
        assert 0 < 2 * _words(stored) == _words(looked), f"{name}: at each word before the loop, and in it"


def test_short_products_of_a_split_model_add_up_by_themselves(outcomes: dict[Case, Future[Outcome]]) -> None:
    """A launch behind each would be right as well, and slower."""
    compiled, _ = outcomes[FEW[0]].result()
    waiting = {each.kernel for each in compiled if "ld.volatile.global" in Path(each.files["ptx"]).read_text()}
    assert waiting >= {"_streamed_gemm", "_rank_sum", "_rank_pick"}


def _stack_bytes(cubin: Path) -> int:
    """Of its one kernel's threads, by CUDA's own tool, which Triton brings."""
    tool = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", str(cubin)]
    said = subprocess.run(tool, text=True, capture_output=True, check=True).stdout
    (stack,) = re.findall(r"REG:\d+ STACK:(\d+)", said)
    return int(stack)


def _words(kinds: list[str]) -> int:
    """Words of 8 bytes that accesses of such kinds move."""
    return sum(2 if kind == "v2.b64" else 1 for kind in kinds)


def test_every_kernel_is_launched_by_an_engine(outcomes: dict[Case, Future[Outcome]]) -> None:
    texts = [path.read_text() for path in (ROOT / "kernels").glob("*.py")]
    defined = {name for text in texts for name in re.findall(r"(?m)^@\w+\.jit\b.*\ndef (\w+)", text)}
    kernels = {name for name in defined if any(re.search(rf"\b{name}\[", text) for text in texts)}
    launched = {each.kernel for future in outcomes.values() for each in future.result()[0]}
    assert len(kernels) > 15
    assert launched == kernels
