"""Qwen2 and Qwen2.5 (arXiv 2407.10671, 2412.15115): Llama with a bias on q, k and v, which its config implies."""

from services.engine.models.llama import build

__all__ = ["build"]
