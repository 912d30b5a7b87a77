"""Pages on a CUDA device, for transfers by cuda_ipc or GPUDirect RDMA."""

import os
import zlib
from typing import cast

import torch

from services.engine.transfer import device_mapping
from services.engine.transfer.page_memory import Buffer, Mapping, pattern

_TRIED_BYTES = 16


class DeviceMemory:
    """torch CUDA pages: one plain allocation, which cuda_ipc maps once for each peer."""

    on_device = True

    def __init__(self, device: str) -> None:
        """`device`: e.g. "cuda:0".

        Raises ValueError for anything but a CUDA device, and where torch is set to expandable segments: cuda_ipc cannot
        map those, and UCX silently copies through the host instead, some hundred times slower.
        """
        self._device = torch.device(device)
        if self._device.type != "cuda":
            raise ValueError(f"device pages need a CUDA device, got {device!r}")
        for variable in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
            if "expandable_segments:true" in os.environ.get(variable, "").lower().replace(" ", ""):
                raise ValueError(f"{variable} asks for expandable segments, which cuda_ipc cannot share: take it out")

    def allocate(self, num_bytes: int) -> Buffer:
        """See PageMemory. Waits for the device, so that no kernel still writes the block."""
        block = torch.zeros(num_bytes, dtype=torch.uint8, device=self._device)
        torch.cuda.synchronize(self._device)
        return block

    def bind_thread(self) -> None:
        """UCX looks for CUDA in the context current on its thread."""
        torch.cuda.set_device(self._device)
        torch.zeros(1, device=self._device)

    def fill(self, buffer: Buffer, seed: int) -> None:
        """See PageMemory. Handshake only: it waits for the device."""
        buffer.copy_(torch.from_numpy(pattern(len(buffer), seed)))
        torch.cuda.synchronize(self._device)

    def checksum(self, buffer: Buffer) -> int:
        """See PageMemory. Copies the page to the host first: for the handshake and for debugging."""
        on_host: Buffer = cast("torch.Tensor", buffer).cpu().numpy()
        return zlib.crc32(memoryview(on_host))

    def share(self, block: Buffer) -> bytes:
        """See PageMemory: a handle of CUDA's, of use on this host alone."""
        return device_mapping.share(block.data_ptr(), len(block))

    def map(self, share: bytes) -> Mapping:
        """See PageMemory."""
        mapping = device_mapping.DeviceMapping(share)
        mapping.try_out(torch.empty(_TRIED_BYTES, dtype=torch.uint8, device=self._device))
        return mapping
