"""Names of one start of one process, and which workers may be paired."""

import hashlib
import secrets


def new_incarnation() -> str:
    """A random name for one start of one process."""
    return secrets.token_hex(8)


def group_name(model_fingerprint: str, layout: str, transfer_protocol: int) -> str:
    """Equal for workers that may exchange KV (R13); both the engine and its control process can derive it."""
    text = "\0".join([model_fingerprint, layout, str(transfer_protocol)])
    return hashlib.sha256(text.encode()).hexdigest()[:16]
