"""Triton kernels, one a file, each with a wrapper and a plain torch reference beside it."""
