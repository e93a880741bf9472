"""The video of the 4D cloud: it plays all instants, the viewpoint moves, and any player decodes it."""

from dataclasses import replace
from types import SimpleNamespace

import av
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from page4d.choices import UpAxis
from page4d.options import PointOptions
from page4d.output.preview import cloud as orbit
from page4d.output.preview.cloud import FPS, SIZE, draw, orbit_video, shown_instants
from page4d.output.reader import Output, open_output
from page4d.output.upward import upward_of
from page4d.plotting.canvas import BACKGROUND
from tests.output.clouds import made_cloud
from tests.output.output_scene import export, made_capture

NUM_FRAMES = 75
"""Frames of the video; those of the tests are fewer."""


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Output:
    folder = tmp_path_factory.mktemp("orbit")
    export(folder, made_capture(2, 84))
    return open_output(folder)


@pytest.fixture(scope="module")
def frames(output: Output, tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    path = tmp_path_factory.mktemp("video") / "orbit.mp4"
    path.write_bytes(orbit_video(output))
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert stream.codec_context.name in ("h264", "mpeg4")
        assert (stream.pix_fmt, stream.average_rate) == ("yuv420p", FPS)
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


def test_the_video_has_its_length_and_shows_the_cloud(frames: np.ndarray) -> None:
    assert frames.shape == (orbit.NUM_FRAMES, SIZE[1], SIZE[0], 3)
    shown = np.abs(frames.astype(int) - BACKGROUND).max(axis=-1) > 30
    assert (shown.mean(axis=(1, 2)) > 0.15).all()
    border = shown[:, [0, -1]].mean()
    assert border < 0.5


def test_the_viewpoint_moves_smoothly_and_the_instants_alternate(output: Output, frames: np.ndarray) -> None:
    views = orbit._viewpoints(output, [0] * NUM_FRAMES)
    positions = np.stack([view.position for view in views])
    steps = np.linalg.norm(np.diff(np.concatenate([positions, positions[:1]]), axis=0), axis=1)
    assert steps.min() > 0
    assert steps.max() < 0.1 * views[0].distance
    for view in views:
        assert np.allclose(view.axes @ view.axes.T, np.eye(3))
        assert np.allclose(view.project(view.target[None])[0, :2], np.array(SIZE) / 2)
    changes = np.abs(np.diff(frames.astype(int), axis=0)).mean(axis=(1, 2, 3))
    assert (changes > 0.1).all()


@given(st.integers(1, 200), st.floats(0.005, 2.0))
def test_all_instants_are_shown_in_order(number: int, period: float) -> None:
    times = np.arange(number) * period + 3
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(orbit, "NUM_FRAMES", NUM_FRAMES)
        shown = np.array(shown_instants(times))
    assert (len(shown), shown[0]) == (NUM_FRAMES, 0)
    steps = np.diff(shown)
    ascending = steps[steps >= 0]
    assert (ascending <= max(1, np.ceil(number / NUM_FRAMES), np.ceil(1 / FPS / period + 1e-6))).all()
    if number * period >= NUM_FRAMES / FPS:
        assert (steps >= 0).all()
        assert shown[-1] >= number - 1 - np.ceil(number / NUM_FRAMES)


@pytest.mark.parametrize("axis", ["z", "-x"])
def test_previews_stand_on_the_up_axis_of_an_upright_world(output: Output, axis: str) -> None:
    output = replace(output, cameras=replace(output.cameras, up=UpAxis(axis)))
    views = [view.axes for view in orbit._viewpoints(output, [0] * NUM_FRAMES)]
    views += orbit._view_axes(output.cameras.world_to_camera[0].numpy(), upward_of(output).vector)
    for right, down, _ in views:
        assert right @ np.array(UpAxis(axis).vector) == pytest.approx(0, abs=1e-9)
        assert down @ np.array(UpAxis(axis).vector) < -0.8


@pytest.mark.parametrize("axes", [(0, 1, 2), (0, 2, 1)], ids=["level", "straight down"])
def test_a_camera_without_points_below_or_ahead_has_a_preview(output: Output, axes: tuple[int, ...]) -> None:
    poses = torch.zeros_like(output.cameras.world_to_camera)
    poses[..., range(4), (*axes, 3)] = 1
    cameras = replace(output.cameras, world_to_camera=poses, up=UpAxis.MINUS_Y)
    seen = SimpleNamespace(points=lambda _: made_cloud(0), cameras=cameras, run=output.run)
    for view in orbit._viewpoints(seen, [0] * NUM_FRAMES):
        np.testing.assert_allclose(view.axes @ view.axes.T, np.eye(3), atol=1e-9)
        assert view.axes[1, 1] > 0.8


def viewpoints(output: Output, near: np.ndarray, others: np.ndarray) -> tuple[list[orbit.Viewpoint], np.ndarray]:
    """Return the viewpoints of a cloud of points in the first camera, of which the near ones move, and its points."""
    pose = output.cameras.world_to_camera[0].numpy()[0]
    xyz = ((np.concatenate([near, others]) - pose[:3, 3]) @ pose[:3, :3]).astype(np.float32)
    dynamic = (np.arange(len(xyz)) < len(near)).astype(np.uint8)
    cloud = replace(made_cloud(len(xyz)), xyz=xyz, dynamic=dynamic)
    seen = SimpleNamespace(points=lambda _: cloud, cameras=output.cameras, run=output.run)
    return orbit._viewpoints(seen, [0] * NUM_FRAMES), xyz


def test_the_cloud_is_in_the_middle_of_the_picture_wherever_its_points_are_dense(output: Output) -> None:
    rng = np.random.default_rng(0)
    person = rng.uniform([0.7, 0.2, 2.0], [1.0, 0.8, 2.2], (400, 3))
    views, xyz = viewpoints(output, person, rng.uniform([-2.0, -1.0, 2.0], [1.2, 1.0, 3.5], (600, 3)))
    shown = np.stack([view.project(xyz)[:, :2] / SIZE for view in views])
    assert ((shown > 0) & (shown < 1)).all(axis=-1).mean(axis=1).min() > 0.9
    low, high = np.quantile(shown, [0.03, 0.97], axis=1)
    assert np.abs((low + high) / 2 - 0.5).max() < 0.15
    assert (high - low).max(axis=1).min() > 0.5


def test_few_moving_points_far_from_the_others_are_in_the_picture(output: Output) -> None:
    rng = np.random.default_rng(0)
    room = rng.uniform([-2.0, -1.0, 2.0], [0.0, 1.0, 3.5], (1000, 3))
    views, xyz = viewpoints(output, rng.uniform([2.6, -0.8, 2.0], [2.9, 0.8, 2.3], (30, 3)), room)
    shown = np.stack([view.project(xyz[:30])[:, :2] / SIZE for view in views])
    assert ((shown > 0) & (shown < 1)).all(axis=-1).mean(axis=1).min() > 0.85


def test_the_nearest_point_is_drawn_in_front(output: Output) -> None:
    view = orbit._viewpoints(output, [0])[0]
    near, far = view.position + 0.5 * (view.target - view.position), view.target
    for order in ((near, far), (far, near)):
        xyz = np.stack(order).astype(np.float32)
        rgb = np.array([[255, 0, 0] if point is near else [0, 0, 255] for point in order], dtype=np.uint8)
        picture = draw(view, replace(made_cloud(2), xyz=xyz, rgb=rgb))
        red, _, blue = picture[SIZE[1] // 2, SIZE[0] // 2]
        assert red > 200
        assert blue < 50


def test_empty_clouds_give_a_video(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("empty")
    export(folder, made_capture(1, 28), points=PointOptions(min_confidence=1.0))
    assert open_output(folder).points(0).num_points == 0
    assert len(orbit_video(open_output(folder))) > 1000
