"""Distance between the points of a cloud, from which formats derive the size at which points are drawn."""

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree


def point_spacing(xyz: NDArray[np.float32], k: int = 3, sample: int = 10_000) -> float:
    """Return the median distance from a point to its k-th neighbour, in the unit of the points.

    Args:
        xyz: points [N, 3].
        k: which neighbour, from 1; in a cloud of k points or fewer the farthest.
        sample: number of points, at regular steps through the cloud, from which the distance is measured.

    Returns:
        The distance; 0 for fewer than two points.
    """
    if len(xyz) < 2:
        return 0.0
    places = np.linspace(0, len(xyz) - 1, min(sample, len(xyz))).astype(np.int64)
    neighbour = min(k, len(xyz) - 1) + 1  # the nearest is the point itself
    tree = cKDTree(xyz, balanced_tree=False, compact_nodes=False)  # built faster, for few queries
    distances, _ = tree.query(xyz[places], k=[neighbour])
    return float(np.median(distances))
