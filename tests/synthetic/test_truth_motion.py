"""Exact motion of synthetic captures: velocities, displacements, tracks, optical flow, and their files."""

import json
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from torch import Tensor

from page4d.choices import Subject
from page4d.errors import UsageError
from page4d.formats.maps import STILL_LEVEL
from page4d.formats.tracks import Tracks, read_tracks
from page4d.geometry.camera import pixel_grid, project, world_points
from page4d.geometry.transforms import transform_points
from page4d.lab.synthetic import truth as truth_motion
from page4d.lab.synthetic.capture import SyntheticCapture
from page4d.lab.synthetic.render import render
from page4d.lab.synthetic.write import write_capture
from tests.synthetic.scenes import EXACT, SETTINGS, SIZE, TIMES, Flow, exact_flow, filmed, flow_between, single_rays

CAPTURE = SyntheticCapture(seed=4, num_views=2, num_times=5, image_size=(96, 128), subject=Subject.PEOPLE)
PEOPLE = replace(CAPTURE, seed=1, moving_cameras=True)


def true_velocity(capture: SyntheticCapture, time: int, view: int) -> Tensor:
    return truth_motion.true_velocity(capture, capture.rendered(time, view), time, view)


def true_displacement(capture: SyntheticCapture, time: int, view: int, steps: int = 1) -> Tensor:
    """Return the exact flow to `steps` frames later in double precision."""
    frame, cameras = capture.rendered(time, view), capture.cameras_of(view)
    ends, times = (cameras[[time]], cameras[[time + steps]]), torch.from_numpy(capture.times)[None]
    depth, objects = frame.depth.double()[None], frame.objects[None]
    return exact_flow(capture.world, depth, objects, ends, times[:, [time, time + steps]]).scene[0]


def true_tracks(capture: SyntheticCapture, limit: int = truth_motion.MAX_TRACKS) -> Tracks:
    """Return the tracks that `write_capture` writes."""
    places = [(time, view) for time in truth_motion.start_times(capture) for view in range(capture.num_views)]
    starts = (truth_motion.track_starts(capture, capture.rendered(*place), *place) for place in places)
    return truth_motion.followed_tracks(capture, starts, limit)


@pytest.mark.parametrize("capture", [CAPTURE, PEOPLE], ids=["static", "moving cameras"])
def test_velocity_is_exactly_0_on_static_pixels_and_not_on_moving_ones(capture: SyntheticCapture) -> None:
    for time in (0, 2, 4):
        moving = capture.rendered(time, 0).dynamic
        speed = true_velocity(capture, time, 0).norm(dim=-1)
        assert bool((speed[~moving] == 0).all())
        assert bool(moving.any())
        assert float((speed[moving] > 0).double().mean()) > 0.9
        assert float(speed.max()) < 10


@pytest.mark.parametrize("capture", [CAPTURE, PEOPLE], ids=["static", "moving cameras"])
def test_velocity_is_the_central_difference_of_the_displacements(capture: SyntheticCapture) -> None:
    after, before = (true_displacement(capture, 2, 1, steps=steps) for steps in (1, -1))
    expected = (after - before) * capture.fps / 2
    assert torch.allclose(true_velocity(capture, 2, 1), expected, atol=1e-9)
    one_sided = true_displacement(capture, 0, 1) * capture.fps
    assert torch.allclose(true_velocity(capture, 0, 1), one_sided, atol=1e-9)
    last = true_displacement(capture, 4, 1, steps=-1) * -capture.fps
    assert torch.allclose(true_velocity(capture, 4, 1), last, atol=1e-9)


@pytest.mark.parametrize("capture", [CAPTURE, PEOPLE], ids=["static", "moving cameras"])
def test_moved_points_project_where_the_optical_flow_ends(capture: SyntheticCapture) -> None:
    cameras, flow = capture.cameras_of(0), flow_between(capture, (1, 0), (2, 0))
    points = world_points(capture.rendered(1, 0).depth.double(), cameras[1]) + true_displacement(capture, 1, 0)
    pixels, depth = project(transform_points(cameras[2].world_to_camera, points), cameras[2].intrinsics)
    start = torch.stack(torch.meshgrid(torch.arange(128) + 0.5, torch.arange(96) + 0.5, indexing="xy"), dim=-1)
    visible = flow.visible[0]
    assert float((pixels - start - flow.optical[0])[visible].abs().max()) < 1e-3
    seen = capture.rendered(2, 0).depth.double()
    column, row = pixels[visible].floor().long().clamp(min=0).unbind(-1)
    near = (seen[row.clamp(max=95), column.clamp(max=127)] - depth[visible]).abs() < 0.05
    assert float(near.double().mean()) > 0.9


def test_tracks_follow_objects_exactly_and_are_visible_at_their_start() -> None:
    capture = replace(CAPTURE, num_times=14)
    tracks = true_tracks(capture)
    assert set(tracks.start.tolist()) == {0, 12}
    assert tracks.coords.shape == (14, tracks.num_tracks, 3)
    for number in range(0, tracks.num_tracks, 7):
        start = int(tracks.start[number])
        assert np.isnan(tracks.coords[:start, number]).all()
        assert np.isfinite(tracks.coords[start:, number]).all()
        assert tracks.visibs[start, number]
        assert not tracks.visibs[:start, number].any()
    assert np.array_equal(tracks.visibs, tracks.view_visibs.any(-1))
    assert tracks.view_visibs[..., 0].any()
    assert not tracks.visibs[12:].all()
    for view in range(2):
        cameras, points = capture.cameras_of(view)[13], torch.from_numpy(tracks.coords[13]).double()
        pixels, depth = project(transform_points(cameras.world_to_camera, points), cameras.intrinsics)
        seen = torch.from_numpy(tracks.view_visibs[13, :, view])
        column, row = pixels[seen].floor().long().unbind(-1)
        surface = capture.rendered(13, view).depth[row, column]
        assert float(((surface - depth[seen]).abs() < 0.1).double().mean()) > 0.9


def test_a_track_moves_by_the_displacement_of_its_pixel() -> None:
    tracks = true_tracks(CAPTURE)
    first = torch.from_numpy(tracks.coords[0]).double()
    way = tracks.coords[1] - tracks.coords[0]
    cameras, displacement = CAPTURE.cameras_of(0)[0], true_displacement(CAPTURE, 0, 0)
    points = world_points(CAPTURE.rendered(0, 0).depth.double(), cameras)
    distance = (points.reshape(-1, 1, 3) - first).norm(dim=-1).min(0)
    own = distance.values < 1e-5
    assert int(own.sum()) > 5
    expected = displacement.reshape(-1, 3)[distance.indices[own]]
    assert np.allclose(way[own.numpy()], expected, atol=1e-5)


def test_the_number_of_tracks_is_limited_reproducibly(monkeypatch: pytest.MonkeyPatch) -> None:
    every, some, again = true_tracks(CAPTURE), true_tracks(CAPTURE, 10), true_tracks(CAPTURE, 10)
    assert every.num_tracks > some.num_tracks == 10
    assert np.array_equal(some.coords, again.coords, equal_nan=True)
    assert all((every.coords[0] == own).all(-1).any() for own in some.coords[0])
    monkeypatch.setattr(truth_motion, "MAX_POSITIONS", 25)
    assert true_tracks(CAPTURE).num_tracks == 5


def test_files_have_the_exact_velocities_to_half_a_step(tmp_path: Path) -> None:
    write_capture(PEOPLE, tmp_path / "first", truth_stride=2, truth_motion=True)
    truth = tmp_path / "first" / "truth"
    for kind in ("motion", "objects"):
        names = sorted(str(path.relative_to(truth)) for path in (truth / kind).rglob("*.png"))
        assert names == [f"{kind}/{view}/{time:06d}.png" for view in ("cam01", "cam02") for time in (0, 2, 4)]
    for view, name in enumerate(PEOPLE.view_names):
        levels = cv2.imread(str(truth / "motion" / name / "000002.png"), cv2.IMREAD_UNCHANGED)[..., ::-1].astype(int)
        frame, velocity = PEOPLE.rendered(2, view), true_velocity(PEOPLE, 2, view).numpy()
        known = frame.depth.numpy() > 0
        assert (levels[~known] == 0).all()
        assert np.abs((levels[known] - STILL_LEVEL) / 1000 - velocity[known]).max() <= 0.00101
        still = known & ~frame.dynamic.numpy()
        assert (levels[still] == STILL_LEVEL).all()
    tracks = read_tracks(truth / "tracks.npz")
    assert tracks.num_tracks > 0
    assert np.array_equal(tracks.coords, true_tracks(PEOPLE).coords, equal_nan=True)
    record = json.loads((truth / "capture.json").read_text())
    assert record["command"].endswith("--moving-cameras --truth-motion --out DIR")
    assert record["options"]["truth_motion"] is True
    assert "mm/s" in record["motion"]
    assert "8 px" in record["tracks"]
    write_capture(PEOPLE, tmp_path / "second", truth_stride=2, truth_motion=True)
    for name in ("tracks.npz", "object_poses.npz"):
        assert (tmp_path / "second" / "truth" / name).read_bytes() == (truth / name).read_bytes()


def test_objects_and_their_poses_move_the_points_of_pixels_exactly(tmp_path: Path) -> None:
    write_capture(PEOPLE, tmp_path / "out", truth_motion=True)
    truth = tmp_path / "out" / "truth"
    levels = cv2.imread(str(truth / "objects" / "cam01" / "000001.png"), cv2.IMREAD_UNCHANGED).astype(int)
    frame = PEOPLE.rendered(1, 0)
    known = frame.depth.numpy() > 0
    assert np.array_equal(levels > 0, known)
    with np.load(truth / "object_poses.npz") as arrays:
        poses = torch.from_numpy(arrays["poses"])
    motion = (poses[2] @ torch.linalg.inv(poses[1]))[levels[known] - 1]
    points = world_points(frame.depth.double(), PEOPLE.cameras_of(0)[1])[known]
    moved = (motion[..., :3, :3] @ points[..., None])[..., 0] + motion[..., :3, 3]
    assert torch.allclose(moved - points, true_displacement(PEOPLE, 1, 0)[known], atol=1e-9)


def test_a_capture_without_moving_objects_has_no_tracks() -> None:
    still = replace(CAPTURE, image_size=(4, 4))
    assert true_tracks(still).num_tracks == 0


@pytest.mark.parametrize(
    ("change", "message"), [({"readout_s": 0.01}, "read out over"), ({"num_times": 1}, "one frame")]
)
def test_motion_that_is_not_defined_is_refused_before_anything_is_written(
    change: dict[str, float], message: str, tmp_path: Path
) -> None:
    capture = replace(CAPTURE, **change)
    with pytest.raises(UsageError, match=message):
        write_capture(capture, tmp_path / "out", truth_motion=True)
    assert not (tmp_path / "out").exists()


PAIRS = [((0, 0), (1, 0)), ((0, 0), (0, 1)), ((0, 0), (1, 2))]


def followed(seen, source, target) -> Flow:
    world, cameras, rendered = seen
    ends = (cameras[:, *source], cameras[:, *target])
    times = TIMES[:, [source[0], target[0]]]
    return exact_flow(world, rendered.depth[:, *source], rendered.objects[:, *source], ends, times)


@pytest.fixture(scope="module", params=SETTINGS[:3], ids=lambda setting: f"{setting.family}-{setting.seed}")
def seen(request):
    return filmed(request.param)


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_a_visible_point_is_the_closest_hit_at_its_target_pixel(seen, source, target):
    world, cameras, rendered = seen
    flow = followed(seen, source, target)
    height, width = SIZE
    pixels = pixel_grid(height, width, dtype=torch.float64)[None] + flow.optical
    inside = (pixels > 0).all(-1) & (pixels[..., 0] < width) & (pixels[..., 1] < height)
    moved = world_points(rendered.depth, cameras)[:, *source] + flow.scene
    at_target = cameras[:, *target]
    expected, depth = project(transform_points(at_target.world_to_camera, moved), at_target.intrinsics)
    candidates = (rendered.depth[:, *source] > 0) & inside & (depth > 0.05)
    assert float((expected - pixels)[candidates].abs().max()) < 1e-8
    assert bool((candidates | ~flow.visible).all())
    count = int(candidates.sum())
    rays = single_rays(at_target[torch.zeros(count, dtype=torch.int64)], pixels[candidates])
    found = render(world, rays, TIMES[:, target[0], None], dtype=torch.float64)
    nearer = depth[candidates] - found.depth[0, 0, :, 0, 0]
    visible = flow.visible[candidates]
    assert float(visible.double().mean()) > 0.2
    assert float(nearer[visible].abs().max()) < 0.01
    assert float((nearer[visible].abs() < EXACT).double().mean()) > 0.98
    same = found.objects[0, 0, :, 0, 0] == rendered.objects[:, *source][candidates]
    assert float(same[visible].double().mean()) > 0.98
    # A point that is not visible is occluded by a nearer surface.
    assert float(nearer[~visible].min()) > -EXACT if bool((~visible).any()) else True


def test_scene_flow_is_zero_on_static_objects_only(seen):
    flow, (_, _, rendered) = followed(seen, (0, 0), (1, 1)), seen
    way = flow.scene.norm(dim=-1)
    assert float(way[~rendered.dynamic[:, 0, 0]].max()) < EXACT
    moving = rendered.dynamic[:, 0, 0]
    if bool(moving.any()):
        assert float(way[moving].median()) > 1e-4


def test_the_flow_of_an_image_to_itself_is_zero(seen):
    flow, (_, _, rendered) = followed(seen, (1, 0), (1, 0)), seen
    assert float(flow.optical.abs().max()) < 1e-8
    assert torch.equal(flow.visible, rendered.depth[:, 1, 0] > 0)
    assert float(flow.scene.abs().max()) < EXACT
