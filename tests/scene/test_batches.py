"""Pixels of a batch agree with its pixel transforms: resized, padded, undistorted and masked."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from page4d.choices import MaskMeaning
from page4d.geometry.distortion import Distortion, LensModel
from page4d.geometry.pixels import PixelTransform, fit_views
from page4d.scene.batches import PADDING_RGB, FrameBatch, open_batches, open_placed_batches
from page4d.scene.content import ViewContent
from page4d.scene.images import ImageFolderReader, undistortion_map
from page4d.scene.open import open_scene
from page4d.scene.records import Scene, ViewCamera, place_pictures
from page4d.scene.timeline import Timeline
from tests.scene.clip_writers import set_rotation, write_images, write_video


def blob(size: tuple[int, int], centre: tuple[float, float], sigma: float = 4.0) -> Any:
    """Draw a bright spot on gray at (x, y), the top-left pixel's centre at (0.5, 0.5)."""
    y, x = (np.arange(side) + 0.5 for side in size)
    spot = np.exp(-((x[None] - centre[0]) ** 2 + (y[:, None] - centre[1]) ** 2) / (2 * sigma**2))
    return np.repeat((40 + 180 * spot)[..., None], 3, axis=2).round().astype(np.uint8)


def centroid(image: Any, background: float = 40 / 255) -> tuple[float, float]:
    """Return the sub-pixel centroid of the spot in an image [H, W]."""
    weight = np.clip(image - background - 0.02, 0, None)
    y, x = (np.arange(side) + 0.5 for side in image.shape)
    return float((weight * x).sum() / weight.sum()), float((weight * y[:, None]).sum() / weight.sum())


def read(scene: Scene, long_side: int, multiple: int = 14) -> FrameBatch:
    with open_batches(scene, long_side=long_side, multiple=multiple) as reader:
        return reader.read(0, scene.num_times)


def first_picture(batch: FrameBatch, view: int) -> Any:
    transform = batch.pixel_transforms[view]
    return batch.images[0, 0, view, 1, transform.rows, transform.columns].numpy()


@pytest.mark.parametrize("kind", ["video", "rotated video", "images"])
@pytest.mark.parametrize("size", [(120, 160), (160, 120), (97, 131), (48, 150)])
@pytest.mark.parametrize("long_side", [56, 98, 259])
def test_a_marker_is_at_the_transformed_position(kind: str, size: tuple[int, int], long_side: int, tmp_path: Path):
    centre = (0.62 * size[1], 0.37 * size[0])
    picture = blob(size, centre, sigma=6)
    if kind == "images":
        write_images(tmp_path / "a", {"0.png": picture})
    else:
        even = not any(side % 2 for side in size)
        turned = np.rot90(picture) if kind == "rotated video" else picture
        path = write_video(tmp_path / "a.mp4", [turned], pixel_format="yuv420p" if even else "yuv444p")
        if kind == "rotated video":
            set_rotation(path, 90)
    batch = read(open_scene(tmp_path), long_side)
    transform = batch.pixel_transforms[0]
    assert transform.original_size == size
    x, y = transform.to_network(torch.tensor(centre)).tolist()
    found = centroid(first_picture(batch, 0))
    assert found[0] + transform.left == pytest.approx(x, abs=0.1)
    assert found[1] + transform.top == pytest.approx(y, abs=0.1)


def test_views_of_different_aspect_are_padded_without_cropping(tmp_path: Path):
    sizes = {"a": (60, 100), "b": (100, 60), "c": (80, 80)}
    for name, (height, width) in sizes.items():
        picture = np.full((height, width, 3), 200, np.uint8)
        picture[:6], picture[-6:], picture[:, :6], picture[:, -6:] = 10, 10, 10, 10
        write_images(tmp_path / name, {"0.png": picture})
    batch = read(open_scene(tmp_path), 56)
    assert batch.images.shape == (1, 1, 3, 3, 56, 56)
    for view, size in enumerate(sizes.values()):
        transform = batch.pixel_transforms[view]
        valid, image = batch.valid[0, 0, view], batch.images[0, 0, view]
        assert torch.equal(valid, transform.content_mask())
        assert int(valid.sum()) == transform.content_size[0] * transform.content_size[1]
        assert transform.content_size[0] / transform.content_size[1] == pytest.approx(size[0] / size[1], rel=0.02)
        torch.testing.assert_close(
            image[:, ~valid], torch.tensor(PADDING_RGB)[:, None].expand(3, int((~valid).sum()))
        )
        inner = first_picture(batch, view)
        for edge in (inner[0], inner[-1], inner[:, 0], inner[:, -1]):
            assert edge.max() < 0.1
        assert inner[8:-8, 8:-8].min() > 0.7


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(20, 4000), st.integers(20, 4000)), min_size=1, max_size=4),
    st.integers(112, 700),
    st.sampled_from([1, 14, 16]),
)
def test_every_view_fits_the_canvas_unstretched(sizes: list[tuple[int, int]], long_side: int, multiple: int):
    if any(max(size) / min(size) > long_side for size in sizes):
        return
    transforms = fit_views(sizes, long_side, multiple)
    assert len({transform.canvas_size for transform in transforms}) == 1
    assert all(side % multiple == 0 for side in transforms[0].canvas_size)
    for transform, (height, width) in zip(transforms, sizes, strict=True):
        assert max(transform.content_size) == long_side
        exact = [side * long_side / max(height, width) for side in (height, width)]
        assert np.abs(np.subtract(transform.content_size, exact)).max() <= 0.5
        corners = torch.tensor([[0.0, 0.0], [width, height]], dtype=torch.float64)
        there = transform.to_network(corners)
        assert (there > -1e-9).all()
        assert (there < corners.new_tensor(transform.canvas_size[::-1]) + 1e-9).all()
        torch.testing.assert_close(transform.to_original(there), corners, rtol=0, atol=1e-9)
        slack = torch.tensor(transform.canvas_size) - torch.tensor(transform.content_size)
        assert abs(int(slack[1]) - 2 * transform.left) <= 1
        assert abs(int(slack[0]) - 2 * transform.top) <= 1


BROWN = Distortion(model=LensModel.BROWN_CONRADY, coefficients=(-0.28, 0.09, 0.001, -0.0015, -0.01))
WIDE = Distortion(model=LensModel.FISHEYE, coefficients=(0.02, -0.01, 0.003, -0.0004))
HEIGHT, WIDTH = 240, 320


def matrix(distortion: Distortion) -> Any:
    focal = 220.0 if distortion.model is BROWN.model else 150.0
    return np.array([[focal, 0.0, 163.3], [0.0, focal * 1.01, 116.8], [0.0, 0.0, 1.0]])


def shown_by_opencv(plane: Any, distortion: Distortion) -> Any:
    """Project image-plane coordinates through the lens by OpenCV, pixel centres at 0.5."""
    points = np.concatenate([plane, np.ones((len(plane), 1))], axis=1)
    camera = matrix(distortion) - [[0, 0, 0.5], [0, 0, 0.5], [0, 0, 0]]
    still = np.zeros(3)
    if distortion.model is LensModel.FISHEYE:
        shown = cv2.fisheye.projectPoints(points[:, None], still, still, camera, np.array(distortion.coefficients))[0]
    else:
        shown = cv2.projectPoints(points, still, still, camera, np.array(distortion.coefficients))[0]
    return shown.reshape(-1, 2) + 0.5


def with_camera(scene: Scene, distortion: Distortion) -> Scene:
    camera = ViewCamera(
        world_to_camera=torch.eye(4, dtype=torch.float64),
        intrinsics=torch.from_numpy(matrix(distortion)),
        distortion=distortion,
    )
    return replace(scene, views=(replace(scene.views[0], camera=camera, content=None),))


def spots(distortion: Distortion) -> tuple[Any, Any]:
    """Return the ideal and the distorted pixels of a grid of spots."""
    x, y = np.meshgrid(np.arange(40, WIDTH - 30, 48) + 0.3, np.arange(36, HEIGHT - 30, 42) + 0.7)
    ideal = np.stack([x.ravel(), y.ravel()], axis=-1)
    inverse = np.linalg.inv(matrix(distortion))
    plane = ideal @ inverse[:2, :2].T + inverse[:2, 2]
    return ideal, shown_by_opencv(plane, distortion)


def through_lens(ideal: Any, distortion: Distortion) -> Any:
    """Render round spots at ideal pixels through the lens, with the ideal pixel of each sensor pixel from OpenCV."""
    sensor = np.stack(np.meshgrid(np.arange(WIDTH), np.arange(HEIGHT)), axis=-1).reshape(-1, 1, 2).astype(np.float64)
    camera, coefficients = (
        matrix(distortion) - [[0, 0, 0.5], [0, 0, 0.5], [0, 0, 0]],
        np.array(distortion.coefficients),
    )
    if distortion.model is LensModel.FISHEYE:
        seen = cv2.fisheye.undistortPoints(sensor, camera, coefficients, P=camera)
    else:
        exact = (cv2.TERM_CRITERIA_COUNT | cv2.TERM_CRITERIA_EPS, 100, 1e-9)
        seen = cv2.undistortImagePoints(sensor, camera, coefficients, None, exact)
    seen = seen.reshape(HEIGHT, WIDTH, 2) + 0.5
    light = sum(np.exp(-((seen - spot) ** 2).sum(axis=-1) / (2 * 3.0**2)) for spot in ideal)
    return np.repeat((40 + 180 * np.clip(light, 0, 1))[..., None], 3, axis=2).round().astype(np.uint8)


@pytest.mark.parametrize("distortion", [BROWN, WIDE], ids=["brown-conrady", "fisheye"])
@pytest.mark.parametrize("long_side", [80, 320, 640])
@pytest.mark.parametrize("kind", ["images", "video"])
def test_an_undistorted_grid_is_straight(distortion: Distortion, long_side: int, kind: str, tmp_path: Path):
    ideal, shown = spots(distortion)
    inside = ((shown > 12) & (shown < [WIDTH - 12, HEIGHT - 12])).all(axis=1)
    assert inside.sum() > 20
    assert np.abs(ideal - shown)[inside].max() > 5
    picture = through_lens(ideal[inside], distortion)
    if kind == "images":
        write_images(tmp_path / "a", {"0.png": picture})
    else:
        write_video(tmp_path / "a.mp4", [picture])
    batch = read(with_camera(open_scene(tmp_path), distortion), long_side, multiple=1)
    transform = batch.pixel_transforms[0]
    image = first_picture(batch, 0)
    expected = transform.to_network(torch.from_numpy(ideal[inside])).numpy()
    reach = max(round(9 * long_side / 320), 4)
    errors = []
    for x, y in expected:
        left, top = round(x) - reach, round(y) - reach
        found = centroid(image[top : top + 2 * reach, left : left + 2 * reach])
        errors.append((found[0] + left - x, found[1] + top - y))
    assert np.abs(errors).max() < 0.1


def test_undistortion_at_a_smaller_size_is_that_of_the_original_frame(tmp_path: Path):
    noise = np.random.default_rng(0).integers(0, 256, (HEIGHT // 4, WIDTH // 4, 3), dtype=np.uint8)
    write_images(tmp_path / "a", {"0.png": cv2.resize(noise, (WIDTH, HEIGHT), interpolation=cv2.INTER_CUBIC)})
    scene = with_camera(open_scene(tmp_path), WIDE)
    size, small = (HEIGHT, WIDTH), (HEIGHT // 4, WIDTH // 4)
    whole, source = undistortion_map(scene.views[0].camera, size), scene.views[0].source
    (original,) = ImageFolderReader(source, size).read([0])
    expected = cv2.resize(whole.remap(original), small[::-1], interpolation=cv2.INTER_AREA)
    found = first_picture(read(scene, WIDTH // 4, multiple=1), 0)
    assert np.abs(255 * found - expected[..., 1]).mean() < 3  # levels, of noise
    # Readers of the same pictures share a map; a turned camera changes none.
    camera = replace(scene.views[0].camera, world_to_camera=torch.eye(4).double())
    assert undistortion_map(camera, size) is whole
    assert undistortion_map(camera, small) is not whole


@pytest.mark.parametrize("distortion", [None, BROWN, WIDE], ids=["pinhole", "brown-conrady", "fisheye"])
@pytest.mark.parametrize("kind", ["images", "video"])
def test_the_picture_between_bars_fills_the_canvas(distortion: Distortion | None, kind: str, tmp_path: Path):
    dead = np.ones((HEIGHT, WIDTH), bool)
    dead[:, 96:232] = False
    spot = np.array([150.3, 101.6])
    picture = blob((HEIGHT, WIDTH), spot) if distortion is None else through_lens([spot], distortion)
    picture[dead] = 0
    if kind == "images":
        write_images(tmp_path / "a", {"0.png": picture})
    else:
        write_video(tmp_path / "a.mp4", [picture])
    scene = open_scene(tmp_path)
    scene = scene if distortion is None else with_camera(scene, distortion)
    (view,) = scene.views
    view = replace(view, content=ViewContent(area=cv2.resize((~dead).astype(np.uint8), (160, 120)) > 0))
    transforms = place_pictures([view], lambda sizes: fit_views(sizes, 120, 1))
    with open_placed_batches(replace(scene, views=(view,)), transforms) as reader:
        batch = reader.read(0, 1)
    shown = batch.images[0, 0, 0, 1].numpy()
    assert max(shown.shape) == 120
    assert batch.valid.float().mean() > (0.98 if distortion is None else 0.85)
    assert batch.images[0, 0, 0][:, batch.valid[0, 0, 0]].min() > 0.1
    expected = transforms[0].to_network(torch.from_numpy(spot)).numpy()
    np.testing.assert_allclose(centroid(np.where(batch.valid[0, 0, 0], shown, 40 / 255)), expected, atol=0.1)
    box, straight = view.window, view.frame_window
    assert straight is not None
    assert straight.box == (96, 0, 136, HEIGHT)
    assert box is not None
    assert (box.box == straight.box) is (distortion is None)


@pytest.mark.parametrize("distortion", [BROWN, WIDE], ids=["brown-conrady", "fisheye"])
def test_pixels_outside_the_sensor_are_invalid(distortion: Distortion, tmp_path: Path):
    pincushion = Distortion(model=distortion.model, coefficients=tuple(-value for value in distortion.coefficients))
    write_images(tmp_path / "a", {"0.png": np.full((HEIGHT, WIDTH, 3), 255, np.uint8)})
    scene = open_scene(tmp_path)
    for lens in (distortion, pincushion):
        batch = read(with_camera(scene, lens), WIDTH, multiple=1)
        y, x = np.mgrid[:HEIGHT, :WIDTH] + 0.5
        inverse = np.linalg.inv(matrix(lens))
        plane = np.stack([x.ravel(), y.ravel()], axis=-1) @ inverse[:2, :2].T + inverse[:2, 2]
        shown = shown_by_opencv(plane, lens).reshape(HEIGHT, WIDTH, 2)
        margin = np.minimum(shown, [WIDTH, HEIGHT] - shown).min(axis=-1)
        domain = lens.in_domain(torch.from_numpy(plane)).reshape(HEIGHT, WIDTH).numpy()
        valid = batch.valid[0, 0, 0].numpy()
        clear = np.abs(margin) > 1e-3
        np.testing.assert_array_equal(valid[clear], ((margin > 0) & domain)[clear])
        # No valid pixel is mixed with black from outside the white image.
        assert batch.images[0, 0, 0, :, batch.valid[0, 0, 0]].min() == 1
    assert valid.all() == (distortion is WIDE)


def test_masks_and_depth_are_undistorted_like_the_image(tmp_path: Path):
    _, shown = spots(BROWN)
    marked = np.zeros((HEIGHT, WIDTH), np.uint16)
    depth = np.zeros((HEIGHT, WIDTH), np.uint16)
    ideal, _ = spots(BROWN)
    for number, (x, y) in enumerate(shown):
        cv2.circle(marked, (int(x), int(y)), 5, 65535, -1)
        cv2.circle(depth, (int(x), int(y)), 5, 1000 + number, -1)
    write_images(tmp_path / "rig" / "a", {"0.png": np.zeros((HEIGHT, WIDTH, 3), np.uint8)})
    write_images(tmp_path / "m" / "a", {"0.png": marked})
    write_images(tmp_path / "d" / "a", {"0.png": depth})
    scene = with_camera(open_scene(tmp_path / "rig", masks=tmp_path / "m", depth=tmp_path / "d"), BROWN)
    batch = read(scene, WIDTH, multiple=1)
    for number, (x, y) in enumerate(ideal):
        assert batch.dynamic[0, 0, 0, int(y), int(x)] == 1
        assert float(batch.depth[0, 0, 0, int(y), int(x)]) == pytest.approx(1 + number / 1000)
    assert set(batch.dynamic.unique().tolist()) <= {0.0, 1.0}
    ignoring = replace(scene, mask_meaning=MaskMeaning.IGNORE)
    assert torch.equal(read(ignoring, WIDTH, multiple=1).valid, batch.valid & (batch.dynamic == 0))


def test_sixteen_bit_images_keep_their_levels_in_a_batch(tmp_path: Path):
    (tmp_path / "a").mkdir()
    level = np.arange(48 * 64, dtype=np.uint16).reshape(48, 64) * 21
    cv2.imwrite(str(tmp_path / "a" / "0.png"), np.repeat(level[..., None], 3, axis=2))
    image = read(open_scene(tmp_path), 64, multiple=1).images[0, 0, 0, 0]
    np.testing.assert_allclose(image, level / 65535, atol=1e-6)


def test_ranges_may_overlap_earlier_ones_from_their_start_on(tmp_path: Path):
    pictures = {f"{n}.png": np.full((28, 28, 3), 20 * n, np.uint8) for n in range(10)}
    write_images(tmp_path / "a", pictures)
    scene = open_scene(tmp_path)
    with open_batches(scene, long_side=28, multiple=14) as reader:
        for start, stop in ((0, 4), (0, 4), (1, 3), (2, 7), (6, 7), (8, 10)):
            batch = reader.read(start, stop)
            np.testing.assert_allclose(batch.images[0, :, 0, 0, 0, 0] * 255, 20 * np.arange(start, stop), atol=1e-3)
            np.testing.assert_array_equal(batch.times, scene.times[start:stop])


def test_a_transform_that_does_not_fit_is_refused():
    with pytest.raises(Exception, match="does not fit a canvas"):
        PixelTransform(original_size=(10, 10), content_size=(10, 10), canvas_size=(8, 8), left=1)
    assert Timeline(times=np.zeros(1), indices=((0,),)).notices == ()
