"""One of a gateway's several processes: `python -m services.pd_master.process PARENT_PID NUMBER FOLDER OPTIONS...`."""

import dataclasses
import sys
from pathlib import Path

from services.common.config import GatewayConfig
from services.common.options import EXIT_USAGE, ConfigError, read
from services.common.parent import EXIT_ORPHAN, die_with_parent
from services.pd_master.main import Share, run


def main(parent_pid: str, number: str, folder: str, *options: str) -> int:
    """Run it; the status tells the parent whether another start makes sense."""
    if not die_with_parent(int(parent_pid)):
        return EXIT_ORPHAN
    config = read(GatewayConfig, options, {})
    mine = dataclasses.replace(config, max_queue=-(-config.max_queue // config.processes))
    try:
        return run(mine, Share(int(number), Path(folder)))
    except ConfigError as error:
        sys.stderr.write(f"sluice pd-master: {error}\n")
        return EXIT_USAGE


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
