"""Quantization of depth, confidence and motion maps, and PNG files."""

import math
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from page4d.conventions import METRIC_DEPTH_SCALE, Scale
from page4d.errors import InputError, OutputError
from page4d.formats.maps import (
    choose_depth_scale,
    quantize_confidence,
    quantize_depth,
    quantize_dynamic,
    read_png,
    to_bytes,
    to_numpy,
    write_png,
)

ALL = torch.ones(1, 1, dtype=torch.bool)


def quantized(*values: float, depth_scale: float = 1000.0) -> tuple[list[int], int]:
    depth = torch.tensor([values], dtype=torch.float64)
    levels, clipped = quantize_depth(depth, torch.ones_like(depth, dtype=torch.bool), depth_scale)
    return levels[0].tolist(), clipped


def test_depth_outside_the_levels_is_0_and_counted():
    assert quantized(0.0, -1.0, math.nan, math.inf, -math.inf) == ([0, 0, 0, 0, 0], 0)
    assert quantized(65.535, 65.536, 70.0, 1e30) == ([65535, 0, 0, 0], 3)
    assert quantized(0.0006, 0.0004, 1e-12) == ([1, 0, 0], 2)
    assert quantized(1.2344, 1.2346) == ([1234, 1235], 0)


def test_invalid_pixels_are_zero_in_every_map():
    valid = torch.tensor([[True, False]])
    values = torch.tensor([[0.8, 0.8]])
    assert quantize_depth(values, valid, 1000.0)[0].tolist() == [[800, 0]]
    assert quantize_confidence(values, valid).tolist() == [[204, 0]]
    assert quantize_dynamic(values, valid).tolist() == [[255, 0]]


def test_confidence_and_motion_are_rounded_as_documented():
    values = torch.tensor([[0.0, 0.5, 0.4999, 1.0, 2.0, -1.0, math.nan]])
    valid = torch.ones_like(values, dtype=torch.bool)
    assert quantize_confidence(values, valid).tolist() == [[0, 128, 127, 255, 255, 0, 0]]
    assert quantize_dynamic(values, valid).tolist() == [[0, 0, 0, 255, 255, 0, 0]]


@given(st.floats(1e-6, 1e6))
def test_the_depth_scale_is_a_round_number_with_headroom(deepest: float):
    depth = torch.full((1, 4, 4), deepest, dtype=torch.float64)
    scale = choose_depth_scale(depth, torch.ones_like(depth, dtype=torch.bool))
    mantissa = scale / 10.0 ** math.floor(math.log10(scale) + 1e-9)
    assert min(abs(mantissa - round_one) for round_one in (1, 2, 5)) < 1e-6
    assert 65535 / 10.01 <= 4 * deepest * scale <= 65535 * (1 + 1e-9)


def test_the_depth_scale_ignores_invalid_depth():
    depth = torch.tensor([[1.0, 1.0, math.inf, math.nan, -5.0, 1e9]])
    valid = torch.tensor([[True, True, True, True, True, False]])
    assert choose_depth_scale(depth, valid) == 10000.0
    assert choose_depth_scale(depth, valid, Scale.METRIC) == METRIC_DEPTH_SCALE
    assert choose_depth_scale(depth, torch.zeros_like(valid)) == METRIC_DEPTH_SCALE


@pytest.mark.parametrize(
    ("depths", "levels"),
    [
        ([0.6, 2.0, 16.0], 1000.0),  # a room: millimetres
        ([0.6, 2.0, 17.0], 500.0),  # no room for later chunks that are four times as deep
        ([0.1, 0.3, 0.5], 20000.0),  # millimetres would be 0.3 % of the median
        ([0.1, 0.3, 20.0], 500.0),
        ([0.01, 0.02, 0.05], 200000.0),
        ([42.0, 90.0, 212.0], 50.0),
        ([40.0, 400.0, 1000.0], 10.0),
    ],
)
def test_levels_of_metric_depth_follow_the_data_and_are_millimetres_in_rooms(depths: list[float], levels: float):
    depth = torch.tensor(depths, dtype=torch.float64)[None]
    assert choose_depth_scale(depth, torch.ones_like(depth, dtype=torch.bool), Scale.METRIC) == levels


@pytest.mark.parametrize("scale", Scale)
def test_few_far_pixels_fit_the_levels_unless_the_median_would_be_coarse(scale: Scale):
    depth = torch.full((100, 100), 2.0)
    for far, levels in ((100.0, 500.0), (1e6, 1000.0 if scale is Scale.METRIC else 5000.0)):
        depth[0, 0] = far
        assert choose_depth_scale(depth, torch.ones_like(depth, dtype=torch.bool), scale) == levels


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_tensors_of_every_float_type_are_converted_to_numpy(dtype: torch.dtype):
    tensor = torch.tensor([[0.5, 2.0]], dtype=dtype, requires_grad=True)
    assert to_numpy(tensor).tolist() == [[0.5, 2.0]]
    assert quantize_depth(tensor, torch.ones(1, 2, dtype=torch.bool), 100.0)[0].tolist() == [[50, 200]]
    assert to_numpy(ALL.T).flags.c_contiguous
    assert to_bytes(np.array([0.5, 1.5])).tolist() == [128, 255]


@pytest.mark.parametrize("kind", [np.uint16, np.uint8])
def test_grey_pngs_are_read_back_exactly_by_pillow_and_opencv(tmp_path: Path, kind: type[np.generic]):
    image = np.random.default_rng(0).integers(0, np.iinfo(kind).max, (13, 17), endpoint=True).astype(kind)
    path = write_png(tmp_path / "x.png", image).path
    assert (np.asarray(Image.open(path)) == image).all()
    assert (cv2.imread(str(path), cv2.IMREAD_UNCHANGED) == image).all()
    assert (read_png(path, kind, (13, 17)) == image).all()


def test_colour_pngs_are_rgb(tmp_path: Path):
    image = np.zeros((2, 3, 3), dtype=np.uint8)
    image[..., 0] = 200
    path = write_png(tmp_path / "x.png", image).path
    assert (np.asarray(Image.open(path)) == image).all()


def test_an_image_that_cannot_be_encoded_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cv2, "imencode", lambda *_: (False, None))
    with pytest.raises(OutputError, match="cannot encode"):
        write_png(tmp_path / "x.png", np.zeros((2, 2), dtype=np.uint8))


def test_missing_damaged_or_other_images_are_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    path = tmp_path / "x.png"
    with pytest.raises(InputError, match=r"x\.png' is missing"):
        read_png(path, np.uint16, (2, 2))
    for content in (b"", b"\x89PNG\r\n\x1a\n", b"\x89PNG\r\n\x1a\n" + bytes(100)):
        path.write_bytes(content)
        with pytest.raises(InputError, match="is damaged"):
            read_png(path, np.uint16, (2, 2))
    assert capfd.readouterr() == ("", ""), "OpenCV prints its own errors"
    write_png(path, np.zeros((2, 3), dtype=np.uint8))
    with pytest.raises(InputError, match=r"is uint8 \(2, 3\), not uint16 \(2, 3\)"):
        read_png(path, np.uint16, (2, 3))
    with pytest.raises(InputError, match="cannot be read"):
        read_png(tmp_path, np.uint16, (2, 3))
