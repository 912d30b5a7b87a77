"""What holds for every test."""

import os
from importlib.metadata import version
from pathlib import Path

if not Path("/dev/nvidiactl").exists() or version("torch").endswith("+cpu"):
    # Read when triton is imported, which tests of several folders do: before any of them. Asking torch would import it.
    os.environ.setdefault("TRITON_INTERPRET", "1")
