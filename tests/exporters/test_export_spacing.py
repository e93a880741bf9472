import numpy as np
import pytest

from page4d.exporters.points import point_spacing


def grid(side: int, step: float) -> np.ndarray:
    axis = np.arange(side, dtype=np.float32) * np.float32(step)
    return np.stack(np.meshgrid(axis, axis, axis, indexing="ij"), axis=-1).reshape(-1, 3)


def test_neighbours_of_a_regular_grid_are_a_step_away() -> None:
    assert point_spacing(grid(10, 0.25)) == pytest.approx(0.25)


def test_neighbours_are_those_of_the_whole_cloud_and_not_of_the_sample() -> None:
    assert point_spacing(grid(10, 0.25), sample=50) == pytest.approx(0.25)


def test_the_seventh_neighbour_inside_a_grid_is_on_the_diagonal_of_a_square() -> None:
    assert point_spacing(grid(30, 1.0), k=7) == pytest.approx(np.sqrt(2))


def test_small_clouds() -> None:
    assert point_spacing(np.empty((0, 3), dtype=np.float32)) == 0.0
    assert point_spacing(np.zeros((1, 3), dtype=np.float32)) == 0.0
    assert point_spacing(np.float32([[0, 0, 0], [0, 3, 4]])) == 5.0
