"""Pictures of exports: changed intrinsics are those of a camera that takes the warped picture; sRGB is decoded."""

import numpy as np
import pytest

from page4d.choices import Pinhole
from page4d.errors import UsageError
from page4d.exporters.pictures import PictureGeometry, linear_from_srgb, plan_pictures

SIZES = ((120, 160), (120, 160), (120, 160), (90, 160))
FOCALS = ((150.0, 152.0), (120.0, 118.0), (200.0, 205.0), (130.0, 131.0))
CENTERS = ((83.0, 57.0), (70.0, 66.0), (80.0, 60.0), (88.5, 41.25))
LENSES = "give 1.6 to 16000, or leave it out"


def intrinsics(num_times: int = 2) -> np.ndarray:
    matrices = np.tile(np.eye(3), (num_times, len(SIZES), 1, 1))
    for view, ((fx, fy), (cx, cy)) in enumerate(zip(FOCALS, CENTERS, strict=True)):
        matrices[:, view, 0, 0], matrices[:, view, 1, 1] = fx, fy
        matrices[:, view, 0, 2], matrices[:, view, 1, 2] = cx, cy
    return matrices


def seen(size: tuple[int, int], matrix: np.ndarray) -> np.ndarray:
    """Return what a camera sees of a smooth pattern on the plane z = 1, and where its rays hit the plane."""
    rows, columns = np.mgrid[: size[0], : size[1]] + 0.5
    x, y = (columns - matrix[0, 2]) / matrix[0, 0], (rows - matrix[1, 2]) / matrix[1, 1]
    channels = [np.sin(11 * x + 3 * y), np.cos(7 * y - 5 * x), np.sin(6 * x * y + 9 * x)]
    return np.rint(127.5 + 120 * np.stack(channels, axis=-1)).astype(np.uint8)


@pytest.mark.parametrize("pinhole", list(Pinhole))
@pytest.mark.parametrize("long_side", [None, 200, 96, 40])
def test_a_warped_picture_is_what_the_new_camera_sees(pinhole: Pinhole, long_side: int | None) -> None:
    matrices = intrinsics()
    for view, geometry in enumerate(plan_pictures(SIZES, matrices, pinhole, long_side=long_side)):
        picture = geometry.picture(seen(SIZES[view], matrices[1, view]), 1)
        assert picture.shape == (*geometry.size, 3)
        error = np.abs(picture.astype(float) - seen(geometry.size, geometry.intrinsics[1]))[3:-3, 3:-3]
        assert error.mean() < (0.7 if long_side != 40 else 2.0), view
        wrong = np.roll(seen(geometry.size, geometry.intrinsics[1]), 1, axis=1)  # the test sees an offset of a pixel
        assert np.abs(picture.astype(float) - wrong)[3:-3, 3:-3].mean() > 1.5


def test_kept_pictures_of_the_same_size_keep_their_bits() -> None:
    matrices = intrinsics()
    geometry = plan_pictures(SIZES, matrices, Pinhole.KEEP)[0]
    pixels = seen(SIZES[0], matrices[0, 0])
    assert geometry.picture(pixels, 0) is pixels
    assert np.array_equal(geometry.intrinsics, matrices[:, 0])


def test_a_common_pinhole_is_the_same_for_all_views_and_leaves_no_empty_border() -> None:
    matrices = intrinsics()
    planned = plan_pictures(SIZES, matrices, Pinhole.COMMON)
    assert {geometry.size for geometry in planned} == {(120, 160)}
    first = planned[0].intrinsics[0]
    assert all(np.array_equal(geometry.intrinsics[place], first) for geometry in planned for place in (0, 1))
    assert first[0, 0] == first[1, 1]
    assert first[:2, 2].tolist() == [80.0, 60.0]
    white = [geometry.picture(np.full((*geometry.source_size, 3), 255, np.uint8), 0) for geometry in planned]
    assert all((picture[2:-2, 2:-2] == 255).all() for picture in white)
    assert max(geometry.empty for geometry in planned) == 0
    smaller = plan_pictures(SIZES, matrices, Pinhole.COMMON, focal=0.97 * first[0, 0])
    assert max(geometry.empty for geometry in smaller) > 0


def test_shares_that_are_cropped_and_empty_are_those_of_the_pixels() -> None:
    matrices = intrinsics()
    for view, geometry in enumerate(plan_pictures(SIZES, matrices, Pinhole.COMMON, focal=110.0)):
        warped = geometry.picture(np.full((*SIZES[view], 3), 255, np.uint8), 0)
        assert geometry.empty == pytest.approx((warped[..., 0] < 128).mean(), abs=0.02)
        back = PictureGeometry(
            source_size=geometry.size,
            source_intrinsics=geometry.intrinsics,
            size=SIZES[view],
            intrinsics=matrices[:, view],
        ).picture(np.full((*geometry.size, 3), 255, np.uint8), 0)
        assert geometry.cropped == pytest.approx((back[..., 0] < 128).mean(), abs=0.02)


def test_the_principal_point_of_a_centered_picture_is_its_middle() -> None:
    matrices = intrinsics()
    for view, geometry in enumerate(plan_pictures(SIZES, matrices, Pinhole.CENTERED)):
        height, width = geometry.size
        assert geometry.intrinsics[0, :2, 2].tolist() == [width / 2, height / 2]
        assert geometry.intrinsics[0, 0, 0] == matrices[0, view, 0, 0]
        assert geometry.empty == 0


def test_a_map_of_another_resolution_is_warped_to_its_own_pixels() -> None:
    matrices = intrinsics()
    geometry = plan_pictures(SIZES, matrices, Pinhole.COMMON)[1]
    half = matrices[0, 1].copy()
    half[:2] *= 0.5
    columns = np.broadcast_to((np.arange(80) + 0.5 - half[0, 2]) / half[0, 0], (60, 80)).astype(np.float32)
    warped = geometry.mapped(columns, 0)
    assert warped.shape == (60, 80)
    expected = (np.arange(80) + 0.5 - 40) / (geometry.intrinsics[0, 0, 0] / 2)
    assert np.abs(warped[30] - expected).max() <= 0.5 / half[0, 0] + 1e-6  # the nearest pixel


def test_a_map_keeps_its_resolution_when_pictures_are_reduced() -> None:
    matrices = intrinsics()
    values = np.random.default_rng(0).uniform(1, 2, (30, 40)).astype(np.float32)
    (geometry, *_) = plan_pictures(SIZES, matrices, Pinhole.KEEP, long_side=80)
    assert np.array_equal(geometry.mapped(values, 0), values)
    (geometry, *_) = plan_pictures(SIZES, matrices, Pinhole.KEEP, long_side=20)
    assert geometry.mapped(values, 0).shape == geometry.size  # no more pixels than the picture


def test_a_mask_is_warped_in_one_step_to_the_size_of_the_picture() -> None:
    matrices = intrinsics()
    mask = (np.random.default_rng(0).uniform(size=(30, 40)) > 0.5).astype(np.uint8)
    geometry = plan_pictures(SIZES, matrices, Pinhole.COMMON, long_side=100)[0]
    warped = geometry.mapped(mask, 0, geometry.size)
    rows, columns = np.mgrid[: geometry.size[0], : geometry.size[1]] + 0.5
    (fx, fy), (cx, cy), new = FOCALS[0], CENTERS[0], geometry.intrinsics[0]
    across = ((columns - new[0, 2]) / new[0, 0] * fx + cx) / 4
    down = ((rows - new[1, 2]) / new[1, 1] * fy + cy) / 4
    assert (warped == mask[down.astype(int), across.astype(int)]).mean() > 0.999


@pytest.mark.parametrize(
    ("sizes", "center_x", "options", "message", "hint"),
    [
        (SIZES, -5.0, {"pinhole": Pinhole.COMMON}, "outside its picture", ""),
        (((2, 4000),), 83.0, {"pinhole": Pinhole.KEEP, "long_side": 8}, "no pixels left", ""),
        *(
            (SIZES, 83.0, {"pinhole": Pinhole.COMMON, "focal": focal}, "does not suit pictures of 160x120 px", LENSES)
            for focal in (1e-9, 1.5, 20000.0, 1e300)
        ),
    ],
)
def test_pictures_of_no_camera_are_refused(sizes, center_x: float, options, message: str, hint: str) -> None:
    matrices = intrinsics()[:, : len(sizes)]
    matrices[:, 0, 0, 2] = center_x
    with pytest.raises(UsageError, match=message) as caught:
        plan_pictures(sizes, matrices, **options)
    assert str(caught.value.hint).startswith(hint)


def test_every_srgb_value_is_decoded() -> None:
    values = np.arange(256, dtype=np.uint8)
    linear = linear_from_srgb(values)
    assert linear.dtype == np.float32
    encoded = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear.astype(np.float64) ** (1 / 2.4) - 0.055)
    np.testing.assert_array_equal(np.rint(encoded * 255), values)
    # 18 % grey is 118, and 50 % light is 188.
    np.testing.assert_allclose(linear[[0, 118, 188, 255]], [0.0, 0.1812, 0.5029, 1.0], atol=5e-5)
