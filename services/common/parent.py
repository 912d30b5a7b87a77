"""A process that is of no use without the one that started it."""

import ctypes
import os
import signal

EXIT_ORPHAN = 1
_PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int) -> bool:
    """Have SIGTERM sent to this process when its parent dies; False when the parent is gone already."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    return os.getppid() == parent_pid
