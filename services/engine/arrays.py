"""Array types on the host."""

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]
"""Token ids, slots, positions, lengths: as devices take them."""
Indexes = NDArray[np.intp]
"""Of rows of arrays on the host: others are turned into these each time they pick something."""
Bools = NDArray[np.bool_]
