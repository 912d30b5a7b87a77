"""How `sluice up` starts a process: `python -m services.cli.child PARENT_PID COMMAND...`.

The kernel tells the child when its parent is gone (PR_SET_PDEATHSIG), so that nothing is left behind when `sluice up`
is killed before it can stop anything.
"""

import ctypes
import os
import signal
import sys

from services.cli.main import main

_PR_SET_PDEATHSIG = 1
_EXIT_ORPHAN = 1


def die_with_parent(parent_pid: int) -> bool:
    """Have SIGTERM sent to this process when its parent dies; False when the parent is gone already."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    return os.getppid() == parent_pid


if __name__ == "__main__":
    if not die_with_parent(int(sys.argv[1])):
        sys.exit(_EXIT_ORPHAN)
    sys.exit(main(sys.argv[2:]))
