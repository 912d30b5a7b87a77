"""Fetches what a master needs of a model from a worker: tokenizer, chat template, generation defaults (R13)."""

import asyncio
import logging
import re
from pathlib import Path

import grpc.aio

from services.common.errors import SluiceError
from sluice.v1 import worker_pb2 as pb
from sluice.v1 import worker_pb2_grpc

log = logging.getLogger(__name__)

FETCH_TIMEOUT_S = 60.0
MAX_BYTES = 256 * 2**20
"""All files together; the largest tokenizers have some 20 MB."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}")


class TokenizerFetchError(SluiceError):
    """The worker sent something that is no set of tokenizer files."""


async def fetch(channel: grpc.aio.Channel, folder: Path) -> None:
    """Write the files into an existing folder. Raises TokenizerFetchError, TimeoutError, grpc.aio.AioRpcError."""
    num_bytes = 0
    files: dict[str, bytearray] = {}
    async with asyncio.timeout(FETCH_TIMEOUT_S):
        call = worker_pb2_grpc.WorkerServiceStub(channel).GetTokenizer(pb.GetTokenizerRequest())
        async for part in call:
            if not _NAME.fullmatch(part.name):  # it becomes a path here
                raise TokenizerFetchError(f"a worker sent a file named {part.name!r}")
            num_bytes += len(part.chunk)
            if num_bytes > MAX_BYTES:
                raise TokenizerFetchError(f"a worker sent more than {MAX_BYTES} bytes of tokenizer")
            files.setdefault(part.name, bytearray()).extend(part.chunk)
    if "tokenizer.json" not in files:
        raise TokenizerFetchError(f"a worker sent no tokenizer.json, only {sorted(files)}")
    await asyncio.to_thread(_write, folder, files)
    log.info("tokenizer fetched: %d files, %d bytes", len(files), num_bytes)


def _write(folder: Path, files: dict[str, bytearray]) -> None:
    for name, content in files.items():
        (folder / name).write_bytes(content)
