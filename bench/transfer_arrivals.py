"""A process that receives KV pages and scatters them into a pool as a decode engine does, with no engine around it."""

from __future__ import annotations

import select
import sys
from multiprocessing.connection import Connection
from typing import NamedTuple

import numpy as np
import torch

from bench.transfer_pair import SWITCH_S, memory
from services.engine.arrays import Ints
from services.engine.runner import Copy
from services.engine.transfer.config import TransferConfig
from services.engine.transfer.events import Received
from services.engine.transfer.heads import HeadRange
from services.engine.transfer.layout import PageLayout, scatter
from services.engine.transfer.pages import Page, PagePool
from services.engine.transfer.receiver import KvReceiver


class Source(NamedTuple):
    """What the prefill engine sends."""

    group: str
    heads: HeadRange
    page_bytes: int
    num_pages: int
    pool_shape: tuple[int, ...]
    """[num_layers, num_slots, 2 * num_kv_heads, head_dim]"""
    dtype: torch.dtype


class _Scatter:
    """The decode engine's scatter, on a pool of its own."""

    def __init__(self, source: Source, device: str) -> None:
        self._pool = torch.zeros(source.pool_shape, dtype=source.dtype, device=device)
        self._layout = PageLayout.of(self._pool)

    def start(self, event: Received) -> Copy:
        """Launch the copy of a page into the slots of its tokens' numbers."""
        page = self._layout.view(event.page.buffer, event.num_tokens)
        slots = np.arange(event.token_start, event.token_start + event.num_tokens, dtype=np.int32)
        return self._on_host(page, slots) if self._pool.device.type == "cpu" else self._on_device(page, slots)

    def _on_host(self, page: torch.Tensor, slots: Ints) -> Copy:
        scatter(page, torch.from_numpy(slots), self._pool)
        return _Done()

    def _on_device(self, page: torch.Tensor, slots: Ints) -> Copy:
        from kernels.pages import scatter_page
        from services.engine.backends.cuda.clock import Mark, upload

        scatter_page(page, upload(torch.from_numpy(slots), self._pool.device), self._pool)
        return Mark(self._pool.device)


class _Done:
    def done(self) -> bool:
        return True


def receive(pipe: Connection, device: str, source: Source) -> None:
    """Say the port on `pipe`, then expect the attempts that come over it, confirming each, until None comes."""
    sys.setswitchinterval(SWITCH_S)
    pool = PagePool(memory(device), source.num_pages, source.page_bytes)
    receiver = KvReceiver(TransferConfig("decode", "d", source.group, heads=source.heads), pool)
    copies = _Scatter(source, device)
    pipe.send(receiver.port)
    scattering: list[tuple[Page, Copy]] = []
    while True:
        if not scattering:
            select.select([receiver.wake_fd, pipe.fileno()], [], [])
        if pipe.poll():
            key = pipe.recv()
            if key is None:
                break
            receiver.expect(key)
            pipe.send("expected")
        scattering += [(event.page, copies.start(event)) for event in receiver.poll() if isinstance(event, Received)]
        scattering = [(page, copy) for page, copy in scattering if not _released(page, copy)]
    receiver.close()


def _released(page: Page, copy: Copy) -> bool:
    if copy.done():
        page.release()
        return True
    return False
