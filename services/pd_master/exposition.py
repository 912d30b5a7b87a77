"""The metrics of a gateway of several processes on one page, whichever of them is asked.

Each process shows its own page on a socket in a folder that they share. Who is asked reads all of them and puts them
together: every series keeps its value and gets a label `process`. So each counter rises as long as its process lives,
and starts again from 0 by itself, which `rate` understands; a sum that a restarted process had dropped out of would
look like a restart of all. Sums, maxima and quantiles over the label are the reader's, as over pods.
"""

import asyncio
import contextlib
import os
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeAlias

Exposition: TypeAlias = Callable[[], Awaitable[bytes]]

_PATIENCE_S = 2.0
"""For one process's page; one that does not answer is left out."""
_SAMPLE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+.*)$")


async def show_page(folder: Path, name: str, render: Callable[[], bytes]) -> asyncio.Server:
    """Show a process's own page to the others, for as long as the server is referred to. What an earlier start left is
    replaced."""

    async def write(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(ConnectionError):
            writer.write(render())
            await writer.drain()

    path = folder / name
    path.unlink(missing_ok=True)
    return await asyncio.start_unix_server(write, path)


async def read_pages(folder: Path) -> dict[str, str]:
    """The pages of all processes that answer, by their names."""
    names = sorted(os.listdir(folder))  # noqa: PTH208 - a folder of a few sockets in memory
    pages = await asyncio.gather(*(_read(folder / name) for name in names))
    return {name: page for name, page in zip(names, pages, strict=True) if page}


async def _read(path: Path) -> str:
    try:
        async with asyncio.timeout(_PATIENCE_S):
            reader, writer = await asyncio.open_unix_connection(path)
            with contextlib.closing(writer):
                return (await reader.read()).decode()
    except (OSError, TimeoutError):
        return ""


def merge_pages(pages: dict[str, str]) -> str:
    """One page: each family once, with the samples of all."""
    families: dict[str, list[str]] = {}
    for name, page in pages.items():
        for part in re.split(r"^(?=# HELP )", page, flags=re.MULTILINE):
            head = [line for line in part.splitlines() if line.startswith("#")]
            samples = [_labelled(line, name) for line in part.splitlines() if line and not line.startswith("#")]
            families.setdefault("\n".join(head), []).extend(samples)
    return "".join("\n".join([head, *samples, ""]) for head, samples in families.items() if head)


def _labelled(sample: str, process: str) -> str:
    found = _SAMPLE.match(sample)
    assert found is not None, f"no sample: {sample}"
    name, labels, value = found.groups()
    return f'{name}{{{labels + "," if labels else ""}process="{process}"}} {value}'
