"""Preview pictures: layout, notices, depth range, hidden-point removal and scale bars."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from page4d.conventions import Scale, round_down
from page4d.formats.cameras_json import CaptureCameras
from page4d.formats.maps import crop_to_content, to_bytes, to_numpy
from page4d.output.cameras import capture_cameras
from page4d.output.points import merged_cloud
from page4d.output.preview import cloud as cloud_view
from page4d.output.preview.cloud import Orthographic, cloud_views, looking_along, splat
from page4d.output.preview.contact_sheet import FrameMaps, contact_sheet, depth_range, highest_speed, read_frames
from page4d.output.reader import Output, open_output
from page4d.output.record import UNTRAINED_NOTICE
from page4d.plotting.canvas import (
    BACKGROUND,
    BANNER,
    INK,
    NO_VALUE,
    STILL,
    drawable,
    fitted_text,
    text_size,
    velocity_colors,
    with_banner,
)
from page4d.records import Predictions
from tests.output.clouds import made_cloud
from tests.output.output_scene import export, made_capture, with_velocity

UP = np.array([0.0, -1.0, 0.0])


def share(picture: np.ndarray, color: tuple[int, int, int]) -> float:
    return float((np.abs(picture.astype(int) - color).max(axis=-1) <= 2).mean())


@pytest.fixture(scope="module")
def capture() -> Predictions:
    return made_capture(2, 84)


@pytest.fixture(scope="module")
def output(capture: Predictions, tmp_path_factory: pytest.TempPathFactory) -> Output:
    """The capture, written to a folder and opened again."""
    folder = tmp_path_factory.mktemp("preview")
    export(folder, capture)
    return open_output(folder)


def images_of(capture: Predictions, time: int) -> list[np.ndarray]:
    """The images of one instant without padding, as 8-bit RGB."""
    pairs = zip(capture.images[0, time], capture.pixel_transforms, strict=True)
    return [to_bytes(to_numpy(crop_to_content(image, transform)).transpose(1, 2, 0)) for image, transform in pairs]


def test_the_sheet_grows_with_the_instants_and_shows_the_notice(output: Output) -> None:
    instants = [read_frames(output, index) for index in range(2)]
    one = contact_sheet(instants[:1], Scale.METRIC)
    two = contact_sheet(instants, Scale.METRIC)
    assert two.shape[0] * two.shape[1] > 1.7 * one.shape[0] * one.shape[1]
    assert share(one, BANNER) < 0.001
    noted = contact_sheet(instants[:1], Scale.ARBITRARY, UNTRAINED_NOTICE)
    assert noted.shape[0] > one.shape[0]
    assert share(noted[:20], BANNER) > 0.9


def test_the_sheet_shows_the_images(capture: Predictions, output: Output) -> None:
    sheet = contact_sheet([read_frames(output, 0, images_of(capture, 0))], Scale.METRIC)
    assert sheet.shape[0] > contact_sheet([read_frames(output, 0)], Scale.METRIC).shape[0]
    for color in ((0.9, 0.35, 0.2), (0.3, 0.4, 0.6)):
        assert share(sheet, tuple(round(255 * channel) for channel in color)) > 0.001


def test_the_maps_of_a_sheet_are_those_of_the_output(capture: Predictions, output: Output) -> None:
    images = images_of(capture, 1)
    for view, frame in enumerate(read_frames(output, 1, images)):
        transform = capture.pixel_transforms[view]
        depth, dynamic = (
            to_numpy(crop_to_content(maps[0, 1, view], transform)) for maps in (capture.depth, capture.dynamic)
        )
        assert (frame.view, frame.time) == (capture.view_names[view], float(capture.times[1]))
        assert np.abs(depth - frame.depth).max() < 0.001
        assert np.array_equal(dynamic > 0.5, frame.dynamic)
        assert np.array_equal(frame.image, images[view])
    assert all(frame.image is None for frame in read_frames(output, 1))


def test_a_sheet_of_a_run_with_velocities_has_them_in_the_axes_of_each_camera(
    capture: Predictions, output: Output, tmp_path: Path
) -> None:
    export(tmp_path, with_velocity(capture, (10.5, 0.0, 0.0)))
    frames = read_frames(open_output(tmp_path), 1)
    for view, frame in enumerate(frames):
        known = np.isfinite(frame.velocity).all(axis=-1)
        assert np.array_equal(known, np.isfinite(frame.velocity).any(axis=-1))
        assert 0.8 < known.mean() <= (0.95 if view < 2 else 1.0)  # padding hides the border of portrait views
        rotation = capture.cameras.world_to_camera[0, 1, view, :3, :3].numpy()
        moving = frame.velocity[known & frame.dynamic]
        np.testing.assert_allclose(moving, np.tile(10.5 * rotation[:, 0], (len(moving), 1)), atol=2e-3)
        assert not frame.velocity[known & ~frame.dynamic].any()
    assert highest_speed(frames) == pytest.approx(10.5, rel=1e-3)
    without = contact_sheet([read_frames(output, 1)], Scale.METRIC)
    sheet = contact_sheet([frames], Scale.METRIC)
    assert sheet.shape[0] > without.shape[0] + 100
    assert share(sheet, STILL) > 0.05 > share(without, STILL)
    assert highest_speed(read_frames(output, 1)) is None
    still = [replace(frame, velocity=np.zeros_like(frame.velocity)) for frame in frames]
    assert contact_sheet([still], Scale.METRIC).shape == sheet.shape
    assert contact_sheet([[frames[0], replace(frames[1], velocity=None)]], Scale.ARBITRARY).ndim == 3


def test_colours_of_velocities_are_directions_in_the_picture_and_speeds() -> None:
    directions = np.array([[1, 0, 0], [0, 1, 0], [-1, 0, 0], [0, -1, 0], [0, 0, 1]], np.float64)
    right, down, left, up, ahead = velocity_colors(directions, 1.0).astype(int)
    assert right.argmax() == 0
    assert down.argmax() == 1
    assert left.argmin() == 0
    assert up.argmax() == 2
    assert ahead.min() > max(color.min() for color in (right, down, left, up))  # pale
    slower = velocity_colors(directions * 0.5, 1.0).astype(int)
    assert (slower.max(axis=1) < [right.max(), down.max(), left.max(), up.max(), ahead.max()]).all()
    np.testing.assert_array_equal(velocity_colors(directions * 7, 1.0), velocity_colors(directions, 1.0))
    edges = velocity_colors(np.array([[0, 0, 0], [np.nan, 0, 0]]), 1.0)
    assert edges.tolist() == [list(STILL), list(NO_VALUE)]


def test_frames_with_missing_maps_are_drawn() -> None:
    unknown = FrameMaps(view="日本", time=0.0, depth=np.zeros((10, 400), dtype=np.float32))
    flat = FrameMaps(view="x" * 300, time=0.0, depth=np.full((400, 10), 2.0, dtype=np.float32))
    masked = replace(flat, dynamic=flat.depth > 1)
    assert contact_sheet([[unknown, flat, masked]], Scale.ARBITRARY).ndim == 3
    assert share(contact_sheet([[flat]], Scale.ARBITRARY, UNTRAINED_NOTICE * 2)[:10], BANNER) > 0.3
    assert depth_range([unknown]) == (0.0, 1.0)
    assert depth_range([flat]) == pytest.approx((1.8, 2.2))


@pytest.mark.parametrize(("views", "area"), [(4, 220 * 165), (16, 220 * 165), (64, 110 * 82), (100, 110 * 82)])
def test_a_sheet_of_many_views_has_rows(views: int, area: int) -> None:
    """No row of the sheet is a strip that no screen shows, and every view has its tiles."""
    frames = [FrameMaps(view=f"v{view}", time=0.0, depth=np.zeros((3, 4), np.float32)) for view in range(views)]
    sheet = contact_sheet([frames], Scale.METRIC)
    assert views < 9 or 1.2 < sheet.shape[1] / sheet.shape[0] < 3
    assert max(sheet.shape) < 3200
    tiles = (sheet == np.array(NO_VALUE)).all(axis=-1).sum()
    assert tiles / (views * area) == pytest.approx(1, abs=0.02)


def test_nearer_points_occlude_farther_ones_in_any_order() -> None:
    axes = looking_along(np.array([0.0, 0.0, 1.0]), np.array([0.0, -1.0, 0.0]))
    assert np.allclose(axes, np.eye(3))
    camera = Orthographic(axes=axes, center=np.zeros(3), size=(20, 20), pixels_per_unit=5.0)
    points = np.array([[0.02, 0.02, 1.0], [0.02, 0.02, 3.0]])
    colors = np.array([[200, 0, 0], [0, 200, 0]], dtype=np.uint8)
    for order in ([0, 1], [1, 0]):
        picture = splat(camera, points[order], colors[order], 2)
        assert picture[10, 10, 0] > 150
        assert picture[10, 10, 1] < 60
        assert tuple(picture[0, 0]) == BACKGROUND


def test_points_are_projected_orthographically() -> None:
    axes = looking_along(np.array([1.0, 0.2, 0.3]), np.array([0.0, -1.0, 0.0]))
    assert np.allclose(axes @ axes.T, np.eye(3))
    assert np.linalg.det(axes) == pytest.approx(1)
    camera = Orthographic(axes=axes, center=np.array([1.0, 2.0, 3.0]), size=(40, 30), pixels_per_unit=4.0)
    assert np.allclose(camera.to_canvas(np.array([[1.0, 2.0, 3.0]])), [[20, 15, 0]])
    assert np.allclose(camera.to_canvas(np.array([1.0, 2.0, 3.0]) + axes), [[24, 15, 0], [20, 19, 0], [20, 15, 1]])


def test_both_views_have_the_same_scale_bar(capture: Predictions) -> None:
    cloud = merged_cloud(capture.at_times(0, 1))
    long = replace(cloud, xyz=cloud.xyz * np.array([1, 1, 9], dtype=np.float32))
    picture = cloud_views(long, capture_cameras(capture), 0, UP)
    left, right = (picture[-60:-24, x : x + 260] for x in (24, 24 + 760 + 16))
    assert share(left, INK) > 0.02
    assert np.array_equal(left == INK, right == INK)


def test_both_views_show_cloud_and_cameras(capture: Predictions) -> None:
    cameras = capture_cameras(capture)
    cloud = merged_cloud(capture.at_times(0, 1))
    picture = cloud_views(cloud, cameras, 0, UP)
    width = picture.shape[1] // 2
    for half in (picture[:, :width], picture[:, width:]):
        assert share(half, (92, 128, 107)) < 0.5
        assert share(half, BACKGROUND) < 0.9
        assert share(half, (214, 69, 65)) > 0.0002
        assert share(half, (38, 110, 190)) > 0.0002
    assert cloud_views(cloud, cameras, 0, UP, UNTRAINED_NOTICE).shape[0] > picture.shape[0]
    assert np.array_equal(picture, cloud_views(cloud, cameras, 0, UP))


def odd_rig(rotations: torch.Tensor) -> CaptureCameras:
    poses = torch.eye(4, dtype=torch.float64).repeat(1, len(rotations), 1, 1)
    poses[0, :, :3, :3] = rotations
    size = (100, 100)
    matrix = torch.tensor([[100.0, 0, 50], [0, 100, 50], [0, 0, 1]], dtype=torch.float64)
    return CaptureCameras(
        times=torch.zeros(1, dtype=torch.float64),
        view_names=tuple(f"view {index}" for index in range(len(rotations))),
        image_sizes=(size,) * len(rotations),
        world_to_camera=poses,
        intrinsics=matrix.repeat(1, len(rotations), 1, 1),
        scale=Scale.ARBITRARY,
    )


@pytest.mark.parametrize("case", ["straight down", "no points"])
def test_odd_rigs_and_empty_clouds_are_drawn(case: str) -> None:
    identity = torch.eye(3, dtype=torch.float64)
    down = torch.tensor([[1.0, 0, 0], [0, 0, -1], [0, 1, 0]], dtype=torch.float64)
    cameras = odd_rig(torch.stack([down, *[identity] * 12] if case == "straight down" else [identity]))
    number = 0 if case == "no points" else 500
    cloud = replace(made_cloud(number), rgb=np.full((number, 3), 40, dtype=np.uint8))
    picture = cloud_views(cloud, cameras, 0, UP)
    assert (float((picture.max(axis=-1) < 60)[60:500].mean()) > 0.0005) == (number > 0)


def test_a_large_cloud_is_thinned_before_drawing(monkeypatch: pytest.MonkeyPatch, capture: Predictions) -> None:
    cloud, cameras = merged_cloud(capture.at_times(0, 1)), capture_cameras(capture)
    whole = cloud_views(cloud, cameras, 0, UP)
    monkeypatch.setattr(cloud_view, "_MAX_POINTS", 500)
    assert share(cloud_views(cloud, cameras, 0, UP), BACKGROUND) > share(whole, BACKGROUND) + 0.02


@pytest.mark.parametrize(("longest", "expected"), [(1.0, 1.0), (0.99, 0.5), (4.9, 2.0), (70.0, 50.0), (3e-7, 2e-7)])
def test_scale_bars_have_round_lengths(longest: float, expected: float) -> None:
    assert round_down(longest) == pytest.approx(expected)


def test_long_names_are_shortened_in_the_middle() -> None:
    assert fitted_text("cam01", 13, 100) == "cam01"
    cut = fitted_text("a very long name of a camera", 13, 80)
    assert cut.startswith("a")
    assert "..." in cut
    assert text_size(cut, 13)[0] <= 80
    assert drawable("Kamera ü Κάμερα 左1") == "Kamera ü Κάμερα 1"
    assert drawable("日本") == "U+65E5 U+672C"
    assert drawable("\n") == "U+000A"


@pytest.mark.parametrize("width", [300, 640, 2000])
def test_the_text_of_a_banner_is_inside(width: int) -> None:
    picture = np.asarray(
        with_banner(Image.new("RGB", (width, 10)), " ".join(["depth and masks are probably wrong"] * 4))
    )
    banner = picture[: len(picture) - 10].astype(int)
    text = (np.abs(banner - BANNER).max(axis=-1) > 30).nonzero()
    for places, length in zip(text, banner.shape, strict=False):
        assert places.min() > 2
        assert places.max() < length - 3
    assert len(text[0]) > 500
