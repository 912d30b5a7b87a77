"""Sampling noise as a pure function of (seed, choice, output position, token id) (R9).

A 64-bit key is hashed from the first three (splitmix64, Steele et al., OOPSLA 2014), and a token's noise from the key
and its id by two rounds of 32-bit mixing. So a token's noise depends neither on the batch, nor on the worker, nor on
which other tokens the filters left: two engines whose logits differ a little draw the same token almost always.
"""

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.uint64]
TokenIds = NDArray[np.uint32]

_MASK = (1 << 64) - 1


def noise_key(seed: int, choice: int, position: int) -> int:
    """64 bits that name one draw."""
    return _splitmix(sequence_key(seed, choice) ^ position)


def sequence_key(seed: int, choice: int) -> int:
    """The part of `noise_key` that all draws of a sequence share."""
    return _splitmix(_splitmix(seed & _MASK) ^ choice)


def noise_keys(sequence_keys: Keys, positions: Keys) -> Keys:
    """`noise_key` of many draws, from their sequences' keys and output positions: [n] -> [n]."""
    x = (sequence_keys ^ positions) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _splitmix(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def gumbel(keys: Keys, token_ids: TokenIds) -> NDArray[np.float32]:
    """Standard Gumbel noise: keys [n], token_ids [n, k] or [k] -> [n, k].

    With u uniform in (0, 1), -log(-log(1 - u)): the small u, which make the large values that win an argmax, are the
    ones that a float resolves finely.
    """
    low = (keys & 0xFFFFFFFF).astype(np.uint32)[:, None]
    high = (keys >> np.uint64(32)).astype(np.uint32)[:, None]
    bits = _mix(_mix(token_ids * np.uint32(0x9E3779B1) ^ low) + high)
    uniform = (bits.astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-32)
    np.minimum(uniform, np.float32(1.0 - 2.0**-24), out=uniform)
    noise: NDArray[np.float32] = -np.log(-np.log1p(-uniform))
    return noise


def _mix(x: TokenIds) -> TokenIds:
    """A 32-bit finaliser with full avalanche (the lowbias32 constants of C. Wellons)."""
    x = x ^ (x >> np.uint32(16))
    x = x * np.uint32(0x7FEB352D)
    x = x ^ (x >> np.uint32(15))
    x *= np.uint32(0x846CA68B)
    x ^= x >> np.uint32(16)
    return x
