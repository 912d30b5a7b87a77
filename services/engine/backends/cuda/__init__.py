"""The cuda backend: Triton kernels, cuBLAS and CUDA graphs on one device."""
