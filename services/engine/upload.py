"""Small tensors on their way from the host to the device."""

import torch
from torch import Tensor


def upload(values: Tensor, device: torch.device) -> Tensor:
    """Copy to the device without waiting for what it computes, which pageable memory would do."""
    if device.type == "cpu" or values.numel() == 0:
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)
