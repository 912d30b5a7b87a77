"""Random bits from the system's generator, fetched by the page: one system call serves hundreds of request ids."""

import os
import threading

_PAGE_BYTES = 4096


class Entropy:
    """Unpredictable bits; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._page = b""
        self._used = 0

    def take(self, num_bytes: int) -> bytes:
        """Bytes that were never handed out before; at most a page."""
        with self._lock:
            if self._used + num_bytes > len(self._page):
                self._page = os.urandom(_PAGE_BYTES)
                self._used = 0
            self._used += num_bytes
            return self._page[self._used - num_bytes : self._used]
