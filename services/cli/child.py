"""How `sluice up` starts a process: `python -m services.cli.child PARENT_PID COMMAND...`.

The kernel tells the child when its parent is gone (PR_SET_PDEATHSIG), so that nothing is left behind when `sluice up`
is killed before it can stop anything.
"""

import sys

from services.cli.main import main
from services.common.parent import EXIT_ORPHAN, die_with_parent

if __name__ == "__main__":
    if not die_with_parent(int(sys.argv[1])):
        sys.exit(EXIT_ORPHAN)
    sys.exit(main(sys.argv[2:]))
