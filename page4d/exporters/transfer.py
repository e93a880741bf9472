"""The transfer function of sRGB: from 8-bit colours to linear light, which glTF and USD expect."""

import numpy as np
from numpy.typing import NDArray


def _table() -> NDArray[np.float32]:
    """Return linear light of the 256 values of a channel.

    Source: IEC 61966-2-1:1999, section 5.2 (equations 5 and 6).
    """
    encoded = np.arange(256) / 255.0
    linear = np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)
    return linear.astype(np.float32)


_LINEAR = _table()


def linear_from_srgb(rgb: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return linear light in [0, 1] of sRGB colours, in an array of the same shape."""
    linear: NDArray[np.float32] = _LINEAR[rgb]
    return linear
