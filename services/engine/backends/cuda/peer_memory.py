"""One block of device memory a rank, which all ranks of the host can read and write over NVLink or PCIe.

Plain allocations shared by CUDA's inter-process handles; nothing here asks for NVLink multicast. On a CPU device, where
Triton's interpreter runs the kernels for tests, a block is a file that all ranks map.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from services.engine.ranks import Ranks

_HANDLE_BYTES = 64
_LAZY_PEER_ACCESS = 1


@dataclass(frozen=True, slots=True)
class PeerMemory:
    """`own` [bytes] uint8; `addresses` [count] int64: where each rank's block begins, as this rank's device sees it."""

    own: Tensor
    addresses: Tensor


class PeerAccessError(Exception):
    """The devices of this host's ranks cannot reach each other's memory."""


def open_peer_memory(ranks: Ranks, size: int, device: torch.device) -> PeerMemory:
    """Allocate `size` zero bytes on every rank, and learn where the others' blocks lie.

    All ranks call it. Raises PeerAccessError, on all of them alike.
    """
    own, addresses = (_on_cuda if device.type == "cuda" else _on_cpu)(ranks, size, device)
    ranks.each(0)  # nobody writes into a block before it has been cleared
    return PeerMemory(own, torch.tensor(addresses, device=device))


class _Handle(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_ubyte * _HANDLE_BYTES),)


class _Allocation:
    """Memory of CUDA's runtime as torch takes it."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3}


def _on_cuda(ranks: Ranks, size: int, device: torch.device) -> tuple[Tensor, list[int]]:
    runtime = _runtime()
    torch.cuda.set_device(device)
    own = ctypes.c_void_p()
    _check("cudaMalloc", runtime.cudaMalloc(ctypes.byref(own), ctypes.c_size_t(size)))
    assert own.value is not None
    block: Tensor = torch.as_tensor(_Allocation(own.value, size), device=device)
    block.zero_()
    torch.cuda.synchronize(device)
    handle = _Handle()
    status = runtime.cudaIpcGetMemHandle(ctypes.byref(handle), own)
    handles = ranks.gather(torch.frombuffer(bytearray(handle), dtype=torch.uint8))
    addresses = []
    for rank, raw in enumerate(handles):
        there = ctypes.c_void_p(own.value)
        if rank != ranks.rank and status == 0:
            other = _Handle.from_buffer_copy(raw.numpy().tobytes())
            status = runtime.cudaIpcOpenMemHandle(ctypes.byref(there), other, ctypes.c_uint(_LAZY_PEER_ACCESS))
        addresses.append(there.value or 0)
    for rank, its_status in enumerate(ranks.each(status)):
        if its_status:
            raise PeerAccessError(f"rank {rank} cannot reach another rank's memory: CUDA error {its_status}")
    return block, addresses


def _runtime() -> ctypes.CDLL:
    """The very library that torch uses: another copy would not know its contexts."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "libcudart" in line:
            return ctypes.CDLL(line.split()[-1])
    raise PeerAccessError("CUDA's runtime library is not loaded")


def _check(what: str, status: int) -> None:
    if status:
        raise torch.OutOfMemoryError(f"{what}: CUDA error {status}")


def _on_cpu(ranks: Ranks, size: int, device: torch.device) -> tuple[Tensor, list[int]]:  # noqa: ARG001
    def mapped(rank: int) -> Tensor:
        return torch.from_file(str(ranks.folder / f"block-{rank}"), shared=True, size=size, dtype=torch.uint8)

    own = mapped(ranks.rank).zero_()
    ranks.each(0)
    blocks = [own if rank == ranks.rank else mapped(rank) for rank in range(ranks.count)]
    _MAPPED.extend(blocks)
    return own, [block.data_ptr() for block in blocks]


_MAPPED: list[Tensor] = []
"""Addresses do not keep a mapping alive."""
