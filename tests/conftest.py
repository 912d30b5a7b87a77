"""What holds for every test."""

import os
from pathlib import Path

if not Path("/dev/nvidiactl").exists():
    # Read when triton is imported, which tests of several folders do: before any of them.
    os.environ.setdefault("TRITON_INTERPRET", "1")
