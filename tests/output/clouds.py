"""Random point clouds, and their comparison."""

import numpy as np

from page4d.formats.ply import PointCloud


def made_cloud(number: int, seed: int = 0, *, normals: bool = False, velocity: bool = False) -> PointCloud:
    draw = np.random.default_rng(seed)
    return PointCloud(
        xyz=draw.normal(size=(number, 3)).astype(np.float32),
        rgb=draw.integers(0, 256, (number, 3)).astype(np.uint8),
        confidence=draw.random(number, dtype=np.float32),
        view=draw.integers(0, 4, number).astype(np.uint8),
        dynamic=draw.integers(0, 2, number).astype(np.uint8),
        normals=draw.normal(size=(number, 3)).astype(np.float32) if normals else None,
        velocity=draw.normal(size=(number, 3)).astype(np.float32) if velocity else None,
        velocity_sigma=draw.random(number, dtype=np.float32) if velocity else None,
    )


def same(first: PointCloud, second: PointCloud) -> bool:
    fields = ("xyz", "rgb", "confidence", "view", "dynamic", "normals", "velocity", "velocity_sigma")
    return all(np.array_equal(getattr(first, name), getattr(second, name)) for name in fields)
