"""Rate of the instants of an export or of a viewer."""

import numpy as np
from numpy.typing import NDArray


def frame_rate(seconds: NDArray[np.float64]) -> float:
    """Return the instants per second of increasing times [T], from their median step; 1 for a single instant."""
    return 1.0 / float(np.median(np.diff(seconds))) if len(seconds) > 1 else 1.0
