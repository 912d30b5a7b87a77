"""Decode workers: take KV over from prefill workers, stream the rest."""
