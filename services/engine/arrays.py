"""The array type of token ids, slots, rows and positions on the host."""

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]
