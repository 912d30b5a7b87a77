"""Triton kernels of the engine: one kernel a file, each with its wrapper; `reference` holds the same in plain torch.

Every wrapper writes into tensors its caller owns, allocates nothing and never waits for the device, so that all of
them can be captured in a CUDA graph. Under `TRITON_INTERPRET=1` they run on the CPU.
"""
