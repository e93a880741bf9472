"""Network input sizes: parity with the code of the public networks, and invertible pixel transforms."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from page4d.choices import Preprocess
from page4d.errors import UsageError
from page4d.geometry.camera import project
from page4d.geometry.pixels import PixelTransform, Window, fit_views
from page4d.networks.preprocess import VGGT_SIDE, budget_size, da3_input_sizes, omega_size, place_views
from tests.geometry.geometry_samples import DTYPES, close, intrinsics, normal

GOLDEN = Path(__file__).parents[1] / "golden"
SIZES = json.loads((GOLDEN / "preprocess_sizes.json").read_text())["table"]
DA3_OMEGA = json.loads((GOLDEN / "preprocess_da3_omega.json").read_text())
PUBLISHED = (Preprocess.VGGT_CROP, Preprocess.VGGT_PAD, Preprocess.PI3)
COLUMNS = dict(zip(PUBLISHED, ("vggt_crop_hw", "vggt_pad_hw", "pi3_hw"), strict=True))
MAX_PIXELS = dict(zip(PUBLISHED, (VGGT_SIDE**2, VGGT_SIDE**2, 255_000), strict=True))


@pytest.mark.parametrize("row", SIZES, ids=lambda row: "x".join(map(str, row["input_wh"])))
def test_sizes_equal_the_reference(row: dict):
    original = tuple(reversed(row["input_wh"]))
    for preprocess, column in COLUMNS.items():
        (placed,) = place_views(preprocess, [original], 0, 14)
        assert list(placed.canvas_size) == row[column]
    assert list(budget_size(original, 100_000)) == row["pi3_hw_limit100000"]


@pytest.mark.parametrize("row", DA3_OMEGA["da3"], ids=lambda row: "x".join(map(str, row["input_wh"])))
def test_sizes_and_intrinsics_of_da3_equal_the_reference(row: dict):
    width, height = row["input_wh"]
    (placed,) = place_views(Preprocess.DA3, [(height, width)], 0, 14)
    assert list(placed.canvas_size) == row["hw"]
    assert list(da3_input_sizes((height, width), 280)[1]) == row["hw_280"]
    rows = [[0.9 * width, 0, 0.52 * width], [0, 0.95 * width, 0.47 * height], [0, 0, 1]]
    lens = placed.intrinsics_to_network(torch.tensor(rows, dtype=torch.float64))
    assert [lens[0, 0], lens[1, 1], lens[0, 2], lens[1, 2]] == pytest.approx(row["K"], abs=2e-4)


@pytest.mark.parametrize("row", DA3_OMEGA["vggt-omega"], ids=lambda row: "x".join(map(str, row["input_wh"])))
def test_sizes_of_vggt_omega_equal_the_reference(row: dict):
    original = tuple(reversed(row["input_wh"]))
    (placed,) = place_views(Preprocess.VGGT_OMEGA, [original], 0, 16)
    assert list(placed.canvas_size) == row["hw"]
    assert list(omega_size(original, 256)[1]) == row["hw_256"]


def test_da3_crops_mixed_views_and_vggt_omega_pads_them():
    rig = [(150, 200), (200, 120)]
    wide, tall = place_views(Preprocess.DA3, rig, 0, 14)
    assert (wide.content_size, tall.content_size) == ((378, 504), (504, 308))
    assert wide.canvas_size == tall.canvas_size == (378, 308)
    assert (wide.left, wide.top, tall.left, tall.top) == (-98, 0, 0, -63)
    wide, tall = place_views(Preprocess.VGGT_OMEGA, [(120, 160), (160, 120)], 0, 16)
    assert wide.canvas_size == tall.canvas_size == (592, 592)
    assert (wide.left, wide.top, tall.left, tall.top) == (0, 72, 72, 0)


def test_vggt_omega_crops_long_images_before_it_resizes_them():
    (view,) = place_views(Preprocess.VGGT_OMEGA, [(90, 301)], 0, 16)
    assert view.window == Window(top=0, left=60, height=90, width=180)
    assert view.content_size == view.canvas_size == (368, 720)
    assert view.share_cut == pytest.approx(1 - 180 / 301)
    assert view.map_size == (368, 1204)
    corners = torch.tensor([[60.0, 0.0], [240.0, 90.0]], dtype=torch.float64)
    close(view.to_network(corners), torch.tensor([[0.0, 0.0], [720.0, 368.0]], dtype=torch.float64))


def test_native_preprocessing_uses_the_requested_size():
    rig = [(1080, 1920), (1920, 1080)]
    assert place_views(Preprocess.NATIVE, rig, 300, 14) == fit_views(rig, 300, 14)


RIGS = st.lists(st.tuples(st.integers(60, 4000), st.integers(60, 4000)), min_size=1, max_size=4)


@settings(max_examples=25, deadline=None, derandomize=True, database=None)
@given(sizes=RIGS, preprocess=st.sampled_from(PUBLISHED))
def test_views_share_a_canvas_and_pixel_transforms_invert(sizes: list[tuple[int, int]], preprocess: Preprocess):
    try:
        placed = place_views(preprocess, sizes, 0, 14)
    except UsageError:
        assert preprocess is not Preprocess.PI3
        assert max(max(size) / min(size) for size in sizes) > 50
        return
    height, width = placed[0].canvas_size
    assert {view.canvas_size for view in placed} == {(height, width)}
    assert height % 14 == width % 14 == 0
    assert height * width <= MAX_PIXELS[preprocess]
    for size, view in zip(sizes, placed, strict=True):
        assert view.original_size == size
        shown = torch.zeros(view.content_size, dtype=torch.bool)
        shown[view.content_rows, view.content_columns] = True
        assert shown.sum() == view.content_mask().sum()
        assert view.share_cut == pytest.approx(1 - float(shown.float().mean()))
        if preprocess is not Preprocess.VGGT_CROP:
            assert view.share_cut == 0
        corners = torch.tensor([[0, 0], [size[1], size[0]]], dtype=torch.float64)
        rows = torch.tensor([[view.left, view.top]], dtype=torch.float64)
        ends = rows + torch.tensor([[0, 0], view.content_size[::-1]], dtype=torch.float64)
        close(view.to_network(corners), ends, factor=1000)
        close(view.to_original(view.to_network(corners)), corners, factor=4000)


def test_tall_images_are_cropped_to_their_middle():
    (view,) = place_views(Preprocess.VGGT_CROP, [(1920, 1080)], 0, 14)
    assert view.content_size == (924, 518)
    assert (view.left, view.top) == (0, -203)
    assert (view.rows, view.columns) == (slice(0, 518), slice(0, 518))
    assert (view.content_rows, view.content_columns) == (slice(203, 721), slice(0, 518))
    assert view.share_cut == pytest.approx(406 / 924)
    assert bool(view.content_mask().all())


def test_views_of_different_size_are_padded_to_the_largest_cropped_size():
    tall, wide, square = place_views(Preprocess.VGGT_CROP, [(1600, 1000), (500, 1000), (777, 800)], 0, 14)
    assert tall.canvas_size == (518, 518)
    assert (tall.top, wide.top, square.top) == (-154, 133, 7)
    assert (wide.rows, wide.content_rows) == (slice(133, 385), slice(0, 252))
    odd = place_views(Preprocess.VGGT_CROP, [(375, 500), (350, 500)], 0, 14)
    assert [(view.content_size[0], view.top) for view in odd] == [(392, 0), (364, 14)]


def test_the_first_view_determines_the_pi3_size():
    first, second = place_views(Preprocess.PI3, [(480, 640), (640, 480)], 0, 14)
    assert first.canvas_size == second.canvas_size == second.content_size == (434, 574)
    assert second.scale == (574 / 480, 434 / 640)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("preprocess", Preprocess)
def test_intrinsics_are_converted_consistently_with_pixels(preprocess: Preprocess, dtype: torch.dtype):
    patch = 16 if preprocess is Preprocess.VGGT_OMEGA else 14
    for view in place_views(preprocess, [(1920, 1080), (720, 1280), (480, 641), (500, 1301)], 518, patch):
        lens = intrinsics(2, seed=1, dtype=dtype) * 30
        lens[..., 2, 2] = 1
        points = normal(2, 20, 3, seed=2, dtype=dtype)
        points = torch.cat([points[..., :2], points[..., 2:].abs() + 2], dim=-1)
        shown = project(points, view.intrinsics_to_network(lens))[0]
        close(shown, view.to_network(project(points, lens)[0]), factor=20)
        close(view.intrinsics_to_original(view.intrinsics_to_network(lens)), lens, factor=100)
        assert shown.dtype == dtype


@pytest.mark.parametrize("preprocess", [Preprocess.VGGT_CROP, Preprocess.VGGT_PAD])
def test_images_without_remaining_pixels_are_refused(preprocess: Preprocess):
    with pytest.raises(UsageError, match="5000x50 px has no pixels left at 518 px"):
        place_views(preprocess, [(50, 5000)], 0, 14)


def test_da3_refuses_images_without_a_whole_patch():
    assert da3_input_sizes((7, 504)) == ((7, 504), (14, 504))
    for size in ((6, 504), (20, 2000), (1, 5000)):
        with pytest.raises(UsageError, match=f"{size[1]}x{size[0]} px has no patch left at 504 px"):
            place_views(Preprocess.DA3, [size], 0, 14)


def test_sizes_that_are_not_whole_patches_are_refused():
    with pytest.raises(UsageError, match="518x392 px, but patches are 16 px"):
        place_views(Preprocess.VGGT_CROP, [(480, 640)], 0, 16)


def test_content_that_is_neither_padded_nor_cropped_is_refused():
    for place in ({"left": 1}, {"top": -3}):
        with pytest.raises(UsageError, match="does not fit a canvas of 8x8"):
            PixelTransform(original_size=(10, 10), content_size=(10, 10), canvas_size=(8, 8), **place)
    covering = PixelTransform(original_size=(10, 10), content_size=(10, 10), canvas_size=(8, 12), top=-2, left=2)
    assert (covering.content_rows, covering.columns) == (slice(2, 10), slice(2, 12))
