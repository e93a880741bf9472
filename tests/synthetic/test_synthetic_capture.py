"""A synthetic capture is a real scene with true predictions."""

import cv2
import numpy as np
import pytest
import torch

from page4d.conventions import Scale
from page4d.errors import UsageError
from page4d.geometry.pixels import fit_views
from page4d.geometry.rigid import transform_points
from page4d.predictions import join_times
from page4d.scene.records import FrameSource, Scene
from page4d.synthetic.capture import SyntheticCapture


@pytest.fixture(scope="module")
def capture():
    return SyntheticCapture(seed=0, num_views=3, num_times=4, image_size=(48, 64))


@pytest.fixture(scope="module")
def truth(capture):
    return capture.predictions()


def test_the_scene_obeys_its_protocols(capture):
    scene = capture.scene()
    assert isinstance(scene, Scene)
    assert (scene.num_views, scene.num_times, scene.scale) == (3, 4, Scale.METRIC)
    assert scene.view_names == ("cam01", "cam02", "cam03")
    assert np.array_equal(scene.times, np.arange(4) / 12)
    for view in scene.views:
        assert isinstance(view.source, FrameSource)
        assert view.source.size == (48, 64)
        assert view.source.codec == "rendered"
        assert view.name in view.source.label
        assert view.indices == (0, 1, 2, 3)
        assert np.array_equal(view.clock.to_common(view.source.frame_times), scene.times)
        assert view.camera.world_to_camera.shape == (4, 4)
        with view.source.open() as reader:
            frames = list(reader.read([1, 3]))
        assert [(frame.shape, frame.dtype) for frame in frames] == [((48, 64, 3), np.uint8)] * 2
        assert not np.array_equal(frames[0], frames[1])


def test_frames_are_the_images_of_the_predictions(capture, truth):
    for index, view in enumerate(capture.scene().views):
        with view.source.open() as reader:
            frames = np.stack(list(reader.read(range(4))))
        expected = torch.from_numpy(frames).movedim(-1, 1).float() / 255
        assert torch.equal(expected, truth.images[0, :, index])


def test_a_resized_frame_is_the_area_mean(capture):
    source = capture.scene().views[1].source
    with source.open() as full, source.open((24, 32)) as small:
        frame, resized = next(full.read([2])), next(small.read([2]))
    assert resized.shape == (24, 32, 3)
    assert np.array_equal(resized, cv2.resize(frame, (32, 24), interpolation=cv2.INTER_AREA))
    means = frame.reshape(24, 2, 32, 2, 3).mean(axis=(1, 3))
    assert np.abs(resized - means).max() <= 0.5


def test_predictions_are_complete_metric_and_certain(truth):
    assert truth.depth.shape == (1, 4, 3, 48, 64)
    assert truth.depth.dtype == truth.images.dtype == truth.dynamic.dtype == torch.float32
    assert truth.scale is Scale.METRIC
    assert bool(truth.valid.all())
    assert torch.equal(truth.depth_confidence, torch.ones_like(truth.depth))
    assert truth.times.tolist() == pytest.approx([0, 1 / 12, 2 / 12, 3 / 12])
    assert set(truth.dynamic.unique().tolist()) == {0.0, 1.0}
    for transform in truth.pixel_transforms:
        assert transform.scale == (1.0, 1.0)
        assert (transform.left, transform.top, transform.canvas_size) == (0, 0, (48, 64))


def test_predictions_of_a_range_are_a_cut_of_all(capture, truth):
    parts = [capture.predictions(0, 1), capture.predictions(1, 4)]
    joined = join_times(parts)
    for name in ("times", "images", "depth", "dynamic"):
        assert torch.equal(getattr(joined, name), getattr(truth, name))
    assert torch.equal(joined.cameras.world_to_camera, truth.cameras.world_to_camera)


def test_static_points_of_all_views_and_instants_lie_on_the_room(capture, truth):
    """The floor, in the world that the docstring promises: metres, y down, floor at 0."""
    points = truth.world_points()
    half = capture.world.half_sizes[0]
    assert float(points[..., 1].max()) == pytest.approx(0.0, abs=1e-4)
    assert float(points[..., 0].abs().max()) == pytest.approx(float(half[0]), abs=2.0)
    assert bool((points[..., [0, 2]].abs() <= half[[0, 2]].float() + 1e-4).all())
    on_floor = points[..., 1].abs() < 1e-4
    assert 0.1 < float(on_floor.float().mean()) < 0.8


def test_a_network_size_is_rendered_exactly_at_its_own_pixels(capture):
    size, multiple = 42, 14
    truth = capture.predictions(2, 3, size, multiple)
    transforms = fit_views([(48, 64)] * 3, size, multiple)
    assert truth.pixel_transforms == transforms
    height, width = transforms[0].canvas_size
    assert (height % multiple, width % multiple) == (0, 0)
    assert truth.depth.shape == (1, 1, 3, height, width)
    assert truth.cameras.image_size == (height, width)
    expected = transforms[0].intrinsics_to_network(capture.cameras.intrinsics[2])
    assert float((truth.cameras.intrinsics[0, 0] - expected).abs().max()) < 1e-5
    points = truth.world_points()[0, 0]
    numbers = [capture.rendered(2, view, transforms[view]).objects for view in range(3)]
    pose = capture.world.object_to_world(float(capture.times[2]))[0]
    room = torch.stack(numbers) == 0
    local = transform_points(torch.linalg.inv(pose), points[room].double())
    gap = (capture.world.half_sizes[0] - local.abs()).amin(-1)
    assert float(gap.abs().max()) < 1e-4


def test_moving_cameras_have_a_pose_an_instant():
    capture = SyntheticCapture(seed=2, num_views=2, num_times=3, image_size=(24, 32), moving_cameras=True)
    truth = capture.predictions()
    for index, view in enumerate(capture.scene().views):
        assert view.camera.world_to_camera.shape == (3, 4, 4)
        difference = view.camera.world_to_camera - truth.cameras.world_to_camera[0, :, index]
        assert float(difference.abs().max()) < 1e-6
    assert float(truth.cameras.centers[0].diff(dim=0).norm(dim=-1).min()) > 1e-4


def test_portrait_frames_are_possible():
    truth = SyntheticCapture(seed=1, num_views=1, num_times=1, image_size=(40, 24)).predictions()
    assert truth.images.shape == (1, 1, 1, 3, 40, 24)


def test_the_seed_decides_every_pixel(capture):
    same = SyntheticCapture(seed=0, num_views=3, num_times=4, image_size=(48, 64))
    other = SyntheticCapture(seed=1, num_views=3, num_times=4, image_size=(48, 64))
    assert capture.frame(1, 2).tobytes() == same.frame(1, 2).tobytes()
    assert capture.frame(1, 2).tobytes() != other.frame(1, 2).tobytes()


def test_more_frames_continue_the_same_capture(capture):
    longer = SyntheticCapture(seed=0, num_views=3, num_times=9, image_size=(48, 64))
    assert np.array_equal(capture.frame(3, 0), longer.frame(3, 0))


@pytest.mark.parametrize(
    "wrong", [{"num_views": 0}, {"num_times": 0}, {"fps": 0.0}, {"image_size": (0, 4)}, {"seed": -1}]
)
def test_captures_of_nothing_are_refused(wrong):
    with pytest.raises(UsageError, match="synthetic capture"):
        SyntheticCapture(**wrong)


@pytest.mark.parametrize("bounds", [(-1, 2), (2, 2), (1, 5)])
def test_instants_outside_the_capture_are_refused(capture, bounds):
    with pytest.raises(UsageError, match=f"instants {bounds[0]} to {bounds[1]} of 4"):
        capture.predictions(*bounds)
