"""Videos are shown as their display matrix states: turned and mirrored; other matrices are reported."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from page4d.errors import Level
from page4d.scene.image_file import Orientation, orientation_of
from page4d.scene.probe import probe_video
from page4d.scene.video import VideoSource
from tests.scene.clip_writers import set_display_matrix, write_video

Matrix = tuple[float, float, float, float]

STRAIGHT = [(a, 0, 0, d) for a, d in product((1, -1), repeat=2)]
TURNED = [(0, b, c, 0) for b, c in product((1, -1), repeat=2)]
NOTICES = {
    (1, 0, 0, 1): None,
    (-1, 0, 0, -1): "rotated 180 degrees clockwise",
    (0, 1, -1, 0): "rotated 90 degrees clockwise",
    (0, -1, 1, 0): "rotated 270 degrees clockwise",
    (-1, 0, 0, 1): "mirrored left to right, as",
    (1, 0, 0, -1): "mirrored left to right and rotated 180 degrees clockwise, as",
    (0, 1, 1, 0): "mirrored left to right and rotated 270 degrees clockwise, as",
    (0, -1, -1, 0): "mirrored left to right and rotated 90 degrees clockwise, as",
}


def stored(size: tuple[int, int]) -> Any:
    """Return an image in which every quadrant differs."""
    height, width = size
    x, y = np.linspace(20, 220, width), np.linspace(30, 200, height)
    return np.stack(np.broadcast_arrays(x[None], y[:, None], 90.0), axis=-1).astype(np.uint8)


def shown(image: Any, matrix: Matrix) -> Any:
    """Move every pixel to the place given by the matrix, with the least coordinates at 0."""
    a, b, c, d = np.sign(matrix)
    y, x = np.mgrid[: image.shape[0], : image.shape[1]]
    right, down = (a * x + c * y).astype(int), (b * x + d * y).astype(int)
    right, down = right - right.min(), down - down.min()
    result = np.zeros((down.max() + 1, right.max() + 1, 3), dtype=np.uint8)
    result[down, right] = image
    return result


def clip(path: Path, matrix: Matrix, size: tuple[int, int] = (48, 64)) -> VideoSource:
    layout = "yuv420p" if size[0] % 2 == 0 else "yuv444p"
    write_video(path, [stored(size)] * 2, pixel_format=layout)
    set_display_matrix(path, matrix)
    return probe_video(path, max_megapixels=64)


def first_image(source: VideoSource, size: tuple[int, int] | None = None) -> Any:
    with source.open(size) as reader:
        return next(iter(reader.read([0]))).astype(int)


@pytest.mark.parametrize("size", [(48, 64), (47, 63)])
@pytest.mark.parametrize("matrix", STRAIGHT + TURNED)
def test_all_eight_orientations_are_shown_as_stated(matrix: Matrix, size: tuple[int, int], tmp_path: Path) -> None:
    source = clip(tmp_path / "phone.mp4", matrix, size)
    expected = shown(stored(size), matrix)
    assert source.size == expected.shape[:2]
    assert np.abs(first_image(source) - expected).max() <= 12
    half = (source.size[0] // 2, source.size[1] // 2)
    assert first_image(source, half).shape == (*half, 3)
    text = NOTICES[matrix]
    assert len(source.notices) == (text is not None)
    if text is not None:
        assert source.notices[0].text.startswith(f"phone: {text}")
        assert source.notices[0].level is (Level.WARNING if "mirrored" in text else Level.INFO)


@pytest.mark.parametrize("scale", [0.5, 2.0, 3000.0])
def test_the_scale_of_a_matrix_is_ignored(scale: float, tmp_path: Path) -> None:
    source = clip(tmp_path / "phone.mp4", (0, scale, -scale, 0))
    assert np.abs(first_image(source) - shown(stored((48, 64)), (0, 1, -1, 0))).max() <= 12


@pytest.mark.parametrize(
    ("matrix", "text"),
    [
        ((0.7071, 0.7071, -0.7071, 0.7071), "a rotation of 45 degrees"),
        ((-0.7071, 0.7071, -0.7071, -0.7071), "a rotation of 135 degrees"),
        ((0.5, -0.866, 0.866, 0.5), "a rotation of -60 degrees"),
        ((1, 0.5, 0, 1), "its display matrix"),
        ((0, 0, 0, 0), "its display matrix"),
        ((1, 0, 0, 0), "its display matrix"),
        ((1, 1, 1, 1), "its display matrix"),
        ((-32768, 32767, 1e-4, -32768), "its display matrix"),
    ],
)
def test_other_matrices_are_reported_and_not_applied(matrix: Matrix, text: str, tmp_path: Path) -> None:
    source = clip(tmp_path / "phone.mp4", matrix)
    assert source.size == (48, 64)
    assert np.abs(first_image(source) - stored((48, 64))).max() <= 12
    assert [n.text for n in source.notices] == [f"phone: {text} is not applied (not a multiple of 90 degrees)"]


def test_a_rotation_within_a_degree_is_a_quarter_turn() -> None:
    assert orientation_of((600, 65536, -65536, -600)) == Orientation(is_transposed=True, flips_columns=True)
    assert orientation_of((3000, 65536, -65536, -3000)) is None
