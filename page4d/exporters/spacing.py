"""Distances between points, from which formats derive the size of drawn points, and exports that of voxels."""

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
    neighbour = min(k, len(xyz) - 1) + 1  # the nearest is the point itself
    return _median_distance(xyz, xyz, neighbour, sample)


def surface_distance(first: NDArray[np.float32], second: NDArray[np.float32], sample: int = 10_000) -> float:
    """Return the median distance from a point of one cloud [N, 3] to the nearest of another [M, 3].

    For two measurements of one surface it is the larger of their noise and about half the distance between points;
    0 if one has no points. `sample` is the number of points of the second cloud, at regular steps through it, from
    which the distance is measured.
    """
    return _median_distance(first, second, 1, sample) if len(first) and len(second) else 0.0


def _median_distance(xyz: NDArray[np.float32], queries: NDArray[np.float32], neighbour: int, sample: int) -> float:
    places = np.linspace(0, len(queries) - 1, min(sample, len(queries))).astype(np.int64)
    tree = cKDTree(xyz, balanced_tree=False, compact_nodes=False)  # built faster, for few queries
    distances, _ = tree.query(queries[places], k=[neighbour])
    return float(np.median(distances))
