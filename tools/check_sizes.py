"""Hold files and functions to the sizes the project keeps: `python -m tools.check_sizes`.

| | half | nine in ten | all |
|---|---|---|---|
| lines of a file | under 100 | under 250 | at most 400 |
| lines of a function | under 10 | under 25 | at most 50 |

A function counts its lines from `def` to the end without its docstring, which may be as long as it is useful. A file
or function beyond "all" passes with a comment `# size: <reason>` in its first lines: a reason worth reading. Code and
tests are each held to the shares by themselves, so that many small tests excuse no large module.
"""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GROUPS = {"code": ("services", "kernels", "tools", "bench"), "tests": ("tests",)}
EXCUSE = "# size: "
EXCUSE_WITHIN_LINES = 40


@dataclass(frozen=True, slots=True)
class Aim:
    """What a kind of thing should measure, in lines."""

    kind: str
    half_under: int
    nine_in_ten_under: int
    at_most: int


@dataclass(frozen=True, slots=True)
class Measured:
    """One file or function: where it stands, its lines, and whether a comment excuses its size."""

    where: str
    num_lines: int
    excused: bool


FILES = Aim("files", 100, 250, 400)
FUNCTIONS = Aim("functions", 10, 25, 50)


def measure_file(where: str, source: str) -> tuple[Measured, list[Measured]]:
    """Measure one Python file and each function in it, nested ones and methods included."""
    lines = source.splitlines()
    functions = [
        _measure_function(where, node, lines)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return Measured(where, len(lines), _is_excused(lines, only_column_0=True)), functions


def _measure_function(where: str, node: ast.FunctionDef | ast.AsyncFunctionDef, lines: list[str]) -> Measured:
    end = node.end_lineno or node.lineno
    num_lines = end - node.lineno + 1
    first = node.body[0]
    if ast.get_docstring(node) is not None:
        num_lines -= (first.end_lineno or first.lineno) - first.lineno + 1
    return Measured(f"{where}:{node.lineno} {node.name}", num_lines, _is_excused(lines[node.lineno - 1 : end]))


def _is_excused(lines: list[str], *, only_column_0: bool = False) -> bool:
    head = lines[:EXCUSE_WITHIN_LINES]
    return any((line if only_column_0 else line.lstrip()).startswith(EXCUSE) for line in head)


def faults(group: str, aim: Aim, measured: list[Measured]) -> Iterator[str]:
    """Yield one sentence for each way in which the measured miss the aim."""
    for one in measured:
        if one.num_lines > aim.at_most and not one.excused:
            yield f"{one.where}: {one.num_lines} lines, at most {aim.at_most}"
    for share, under in ((0.5, aim.half_under), (0.9, aim.nine_in_ten_under)):
        num_under = sum(one.num_lines < under for one in measured)
        if num_under < share * len(measured):
            longest = ", ".join(
                f"{one.where} {one.num_lines}"
                for one in sorted(measured, key=lambda one: -one.num_lines)
                if one.num_lines >= under
            )
            yield (
                f"{group}: {num_under} of {len(measured)} {aim.kind} are under {under} lines, "
                f"{share:.0%} should be: {longest[:2000]}"
            )


def summary(group: str, aim: Aim, measured: list[Measured]) -> str:
    """Return one line with the number, the median, the 90th percentile and the largest."""
    ordered = sorted(one.num_lines for one in measured)
    median, ninth, largest = ordered[len(ordered) // 2], ordered[len(ordered) * 9 // 10], ordered[-1]
    return f"{group:6} {len(ordered):5} {aim.kind:10} median {median:4}  90% {ninth:4}  largest {largest:4}"


def measure_group(folders: tuple[str, ...]) -> tuple[list[Measured], list[Measured]]:
    """Measure every Python file below the folders; those that do not exist are left out."""
    files: list[Measured] = []
    functions: list[Measured] = []
    for path in sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py")):
        source = path.read_text()
        if source.strip():
            file, inside = measure_file(str(path.relative_to(ROOT)), source)
            files.append(file)
            functions.extend(inside)
    return files, functions


def main() -> int:
    """Print the distribution and every fault; return 1 when there is one."""
    found: list[str] = []
    for group, folders in GROUPS.items():
        for aim, measured in zip((FILES, FUNCTIONS), measure_group(folders), strict=True):
            if measured:
                print(summary(group, aim, measured))
                found.extend(faults(group, aim, measured))
    for fault in found:
        print(f"size: {fault}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
