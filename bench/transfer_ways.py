"""Ways for payloads to go, to compare."""

from __future__ import annotations

WAYS = {"mapped": True, "ucx": False}
"""Whether the receiver may map the sender's pages (`TransferConfig.may_map`); else UCX moves payloads everywhere."""
