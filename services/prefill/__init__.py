"""Prefill workers: compute prompts, hand their KV over to decode workers."""
