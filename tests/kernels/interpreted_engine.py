"""An engine process whose cuda backend runs under Triton's interpreter, where there is no card: `services.engine.main`
with small prefill graphs, since interpreted padding costs time."""

import sys

from services.engine import load
from services.engine.backends.cuda import prefill_graphs
from services.engine.backends.cuda.padded_chunks import PaddedShape
from services.engine.backends.cuda.runner import CudaRunner
from services.engine.process import run_process
from tests.kernels import conftest  # noqa: F401 - switches the interpreter on before kernels are imported

if __name__ == "__main__":
    setattr(load, "make_runner", CudaRunner)  # noqa: B010 - not its own to set
    setattr(prefill_graphs, "SHAPES", (PaddedShape(8, 3), PaddedShape(24, 8)))  # noqa: B010
    sys.exit(run_process(sys.argv[1:]))
