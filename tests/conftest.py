"""What holds for every test."""

import os
from importlib.metadata import version
from pathlib import Path

from hypothesis import HealthCheck, settings

if not Path("/dev/nvidiactl").exists() or version("torch").endswith("+cpu"):
    # Read when triton is imported, which tests of several folders do: before any of them. Asking torch would import it.
    os.environ.setdefault("TRITON_INTERPRET", "1")

# No test of properties fails for the machine's pace, nor for what it happened to draw: the same examples come each
# time. `make test ARGS="--hypothesis-profile explore ..."` draws others.
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("steady", settings.get_profile("explore"), derandomize=True)
settings.load_profile("steady")
