"""A synthetic capture is a real scene with true predictions."""

import dataclasses

import cv2
import numpy as np
import pytest
import torch

import page4d
from page4d.choices import SceneFamily, Subject
from page4d.conventions import Scale
from page4d.errors import UsageError
from page4d.geometry.pixels import fit_views
from page4d.geometry.time_axis import join_times
from page4d.lab.synthetic.capture import SyntheticCapture
from page4d.scene.records import FrameSource
from tests.synthetic.scenes import distance_to_surface, frames_together, maps_on, predictions_of


@pytest.fixture(scope="module")
def capture():
    return SyntheticCapture(seed=0, num_views=3, num_times=4, image_size=(48, 64))


@pytest.fixture(scope="module")
def truth(capture):
    return predictions_of(capture)


def test_the_scene_implements_the_protocols_of_scenes_and_sources(capture):
    scene = capture.scene()
    assert (scene.num_views, scene.num_times, scene.scale) == (3, 4, Scale.METRIC)
    assert scene.view_names == ("cam01", "cam02", "cam03")
    assert np.array_equal(scene.times, np.arange(4) / 12)
    for view in scene.views:
        assert isinstance(view.source, FrameSource)
        assert (view.source.size, view.source.codec) == ((48, 64), "rendered")
        assert view.name in view.source.label
        assert view.indices == (0, 1, 2, 3)
        assert np.array_equal(view.clock.to_common(view.source.frame_times), scene.times)
        assert view.camera.world_to_camera.shape == (4, 4)
        with view.source.open() as reader:
            frames = list(reader.read([1, 3]))
        assert [(frame.shape, frame.dtype) for frame in frames] == [((48, 64, 3), np.uint8)] * 2
        assert not np.array_equal(frames[0], frames[1])


def test_frames_equal_the_images_of_the_predictions(capture, truth):
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


def test_predictions_of_ranges_join_to_those_of_the_capture(capture, truth):
    joined = join_times([predictions_of(capture, 0, 1), predictions_of(capture, 1, 4)])
    for name in ("times", "images", "depth", "dynamic"):
        assert torch.equal(getattr(joined, name), getattr(truth, name))
    assert torch.equal(joined.cameras.world_to_camera, truth.cameras.world_to_camera)


def test_points_of_all_views_and_instants_lie_in_the_room(capture, truth):
    """The world frame is the documented one: metres, y down, floor at 0."""
    points = truth.world_points()
    assert float(points[..., 1].max()) == pytest.approx(0.0, abs=1e-4)
    center = capture.world.motion.center[0, 0].float()
    assert bool(((points - center).abs() <= capture.world.half_size[0, 0].float() + 1e-4).all())
    on_floor = points[..., 1].abs() < 1e-4
    assert 0.02 < float(on_floor.float().mean()) < 0.9


def test_a_network_size_is_rendered_exactly_at_its_own_pixels(capture):
    size, multiple = 42, 14
    truth = predictions_of(capture, 2, 3, size, multiple)
    transforms = fit_views([(48, 64)] * 3, size, multiple)
    assert truth.pixel_transforms == transforms
    height, width = transforms[0].canvas_size
    assert (height % multiple, width % multiple) == (0, 0)
    assert truth.depth.shape == (1, 1, 3, height, width)
    assert truth.cameras.image_size == (height, width)
    expected = transforms[0].intrinsics_to_network(capture.cameras.intrinsics[2])
    assert float((truth.cameras.intrinsics[0, 0] - expected).abs().max()) < 1e-5
    points = truth.world_points()[0, 0]
    objects = torch.stack([maps_on(capture, 2, view, transforms[view])["objects"] for view in range(3)])
    gap = distance_to_surface(capture.world, points.double(), objects, torch.tensor(capture.times[2]))
    assert float(gap.abs().max()) < 1e-4


def test_views_may_differ_in_size():
    """With upright and smaller images in one rig, cameras, frames and network canvas agree for each view."""
    mixed = SyntheticCapture(seed=2, num_views=5, num_times=2, image_size=(24, 32), mixed_sizes=True, supersample=2)
    assert mixed.view_sizes[0] == (24, 32)
    assert {(24, 32), (32, 24)} < set(mixed.view_sizes)
    for view in mixed.scene().views:
        with view.source.open() as reader:
            assert next(reader.read([1])).shape[:2] == view.source.size
        assert float(view.camera.intrinsics[0, 2]) == view.source.size[1] / 2
    with pytest.raises(UsageError, match="sizes"):
        _ = mixed.cameras
    truth = predictions_of(mixed, 1, 2, 28, 14)
    points = truth.world_points()[0, 0]
    objects = torch.stack([maps_on(mixed, 1, view, truth.pixel_transforms[view])["objects"] for view in range(5)])
    gap = distance_to_surface(mixed.world, points.double(), objects, torch.tensor(mixed.times[1]))
    assert float(gap.abs().max()) < 1e-4


def test_outdoors_the_sky_is_not_valid():
    truth = predictions_of(
        SyntheticCapture(
            seed=1, family=SceneFamily.RING, num_views=2, num_times=1, image_size=(24, 32), outdoors=True
        )
    )
    sky = truth.depth == 0
    assert 0.05 < float(sky.double().mean()) < 0.8
    assert torch.equal(truth.valid, ~sky)


def test_photometric_variation_changes_frames_but_not_depth(capture):
    varied = dataclasses.replace(capture, photometric=True)
    assert torch.equal(varied.rendered(1, 1).depth, capture.rendered(1, 1).depth)
    assert not np.array_equal(varied.frame(1, 1), capture.frame(1, 1))
    assert np.array_equal(varied.frame(1, 1), varied.frame(1, 1))


def test_a_rolling_shutter_distorts_images_of_moving_cameras():
    still = SyntheticCapture(seed=1, num_views=1, num_times=2, image_size=(24, 32), moving_cameras=True)
    rolled = dataclasses.replace(still, readout_s=0.3)
    assert not torch.equal(still.rendered(1, 0).objects, rolled.rendered(1, 0).objects)
    assert torch.equal(still.cameras.world_to_camera, rolled.cameras.world_to_camera)


def test_moving_cameras_have_one_pose_per_instant():
    capture = SyntheticCapture(seed=2, num_views=2, num_times=3, image_size=(24, 32), moving_cameras=True)
    truth = predictions_of(capture)
    for index, view in enumerate(capture.scene().views):
        assert view.camera.world_to_camera.shape == (3, 4, 4)
        difference = view.camera.world_to_camera - truth.cameras.world_to_camera[0, :, index]
        assert float(difference.abs().max()) < 1e-6
    assert float(truth.cameras.centers[0].diff(dim=0).norm(dim=-1).min()) > 1e-4


def test_the_seed_determines_every_pixel(capture):
    same = SyntheticCapture(seed=0, num_views=3, num_times=4, image_size=(48, 64))
    other = SyntheticCapture(seed=1, num_views=3, num_times=4, image_size=(48, 64))
    assert capture.frame(1, 2).tobytes() == same.frame(1, 2).tobytes()
    assert capture.frame(1, 2).tobytes() != other.frame(1, 2).tobytes()


def test_more_frames_continue_the_same_capture(capture):
    longer = SyntheticCapture(seed=0, num_views=3, num_times=9, image_size=(48, 64))
    assert np.array_equal(capture.frame(3, 0), longer.frame(3, 0))


@pytest.mark.parametrize(
    "wrong",
    [{"num_views": 0}, {"num_times": 0}, {"fps": 0.0}, {"image_size": (0, 4)}, {"seed": -1}, {"readout_s": -0.1}],
)
def test_parameters_out_of_range_are_refused(wrong):
    with pytest.raises(UsageError, match="synthetic capture"):
        SyntheticCapture(**wrong)


def test_frames_rendered_together_are_those_rendered_alone():
    capture = SyntheticCapture(seed=5, num_views=2, num_times=3, image_size=(24, 32), subject=Subject.PEOPLE)
    for (time, view), frame in frames_together(capture).items():
        for name, value in vars(capture.rendered(time, view)).items():
            assert torch.equal(getattr(frame, name), value)


def test_a_single_camera_rig_has_one_view():
    assert SyntheticCapture(family=SceneFamily.SINGLE, num_views=1).view_names == ("cam01",)
    with pytest.raises(UsageError, match="4 views of the family 'single'"):
        SyntheticCapture(family=SceneFamily.SINGLE)


def test_a_board_calibrates_the_rig_that_films_it() -> None:
    """Focal lengths and distance within 0.3 %; 40 frames of 640x480 give 0.02 %, and centres within 0.3 mm at 3 m."""
    capture = SyntheticCapture(
        seed=3,
        num_views=2,
        num_times=9,
        image_size=(360, 480),
        spacing_deg=25,
        subject=Subject.PEOPLE,
        board="charuco:5x4,250mm,190mm,4x4_50",
    )
    found = page4d.calibrate(capture.scene(), board=str(capture.board), observer=None)
    assert found.record.num_placed == 2
    cameras = [capture.cameras_of(view)[0] for view in range(2)]
    for camera, own in zip(cameras, found.calibration.cameras, strict=True):
        assert float(own.intrinsics[0, 0] / camera.intrinsics[0, 0]) == pytest.approx(1, abs=3e-3)
    apart = (cameras[0].centers - cameras[1].centers).norm()
    measured = found.calibration.cameras[1].world_to_camera[:3, 3].norm()
    assert float(measured / apart) == pytest.approx(1, abs=3e-3)
    with pytest.raises(UsageError, match="board with readout"):
        SyntheticCapture(board="chessboard:9x6,25mm", readout_s=0.01)
    with pytest.raises(UsageError, match=r"1\.50 m across, and 0\.49 m fit"):
        SyntheticCapture(board="chessboard:9x6,100mm", subject="table")
