"""Gravity, floor and standing height from people, and the frame of the upright world."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from page4d.choices import Registration, UpAxis, WorldFrame
from page4d.options import RegisterSettings
from page4d.rig import upright
from page4d.rig.adjust import Observations
from page4d.rig.floor import FloorPoints, upright_frame
from page4d.rig.length import person_height
from page4d.rig.records import NUM_JOINTS, Array, FocalSource, RigCamera, Tracklet, ViewPeople, direction_angle_deg
from page4d.rig.upright import chosen_world, find_vertical, placed_rig, upright_world
from tests.rig.people_rig import PERSON_HEIGHT, Filming, PeopleRig, evidence_of, film_people

UP = np.array([0.0, -1.0, 0.0])
"""Up in the world of the filmed people; their floor is at height 0."""

NOISY = {"num_instants": 100, "noise_px": 3, "bias_px": 5, "missed": 0.05, "occluded": 0.05}


def cameras_of(rig: PeopleRig) -> list[RigCamera]:
    return [
        RigCamera(lens=lens, world_to_camera=pose) for lens, pose in zip(rig.lenses, rig.world_to_camera, strict=True)
    ]


def seen(rig: PeopleRig, change: Callable[[Array], Array]) -> list[ViewPeople]:
    """Return the keypoints, without errors, of the people after a change of their joints [T, 33, 3]."""
    joints = [change(walker.copy()) for walker in rig.joints]
    views = []
    for camera in cameras_of(rig):
        tracklets = []
        for walker in joints:
            local = walker @ camera.rotation.T + camera.world_to_camera[:3, 3]
            plane = local[..., :2] / local[..., 2:]
            pixels = plane * camera.lens.focal + camera.lens.intrinsics[:2, 2]
            visibility = np.isfinite(walker[..., 0]).astype(np.float64)
            tracklets.append(
                Tracklet(instants=np.arange(len(walker)), joints=np.nan_to_num(pixels), visibility=visibility)
            )
        views.append(tuple(tracklets))
    return views


@pytest.mark.parametrize("seed", range(4))
def test_walking_people_show_gravity_and_floor_in_any_world(seed: int):
    rig = film_people(Filming(**NOISY, num_people=1 + seed % 2, seed=seed))
    turn, scale = Rotation.random(rng=np.random.default_rng(seed)).as_matrix(), 0.3
    cameras = []
    for camera in cameras_of(rig):
        pose = camera.world_to_camera.copy()
        pose[:3, :3], pose[:3, 3] = pose[:3, :3] @ turn.T, scale * pose[:3, 3]
        cameras.append(replace(camera, world_to_camera=pose))
    found = find_vertical(cameras, rig.people, rig.num_instants)
    assert direction_angle_deg(found.up, turn @ UP) < 1.0  # 0.8 of 40 seeds
    assert abs(found.floor) < 0.02 * scale
    assert found.floor_std < 0.03 * scale
    assert 1.0 < found.std_deg < 2.0
    assert found.num_poses > 80


def bent(joints: Array) -> Array:
    """Bend trunk, arms and head forward by 70 degrees about the hips."""
    forward = np.cross(joints[:, 12] - joints[:, 11], UP)
    axis = np.cross(forward, UP) / np.linalg.norm(forward, axis=1, keepdims=True)
    hips = joints[:, [23, 24]].mean(1)
    turn = Rotation.from_rotvec(np.radians(70) * axis).as_matrix()
    joints[:, :23] = np.einsum("tij,tkj->tki", turn, joints[:, :23] - hips[:, None]) + hips[:, None]
    return joints


def seated(joints: Array) -> Array:
    """Put the knees in front of the hips, and the feet below them."""
    forward = np.cross(joints[:, 12] - joints[:, 11], UP)
    forward *= 0.43 / np.linalg.norm(forward, axis=1, keepdims=True)
    for side in (0, 1):
        old = joints[:, 27 + side].copy()
        joints[:, 25 + side] = joints[:, 23 + side] + forward
        joints[:, 27 + side] = joints[:, 25 + side] - 0.41 * UP
        joints[:, [29 + side, 31 + side]] += (joints[:, 27 + side] - old)[:, None]
    return joints


def lying(joints: Array) -> Array:
    """Turn people about the feet onto their backs."""
    return joints @ Rotation.from_euler("x", 90, degrees=True).as_matrix().T + [0.0, -0.2, 0.9]


def halved(joints: Array) -> Array:
    """Hide the legs."""
    joints[:, 25:] = np.nan
    return joints


@pytest.mark.parametrize(
    ("change", "num_instants", "reason"),
    [
        (seated, 60, "0 poses of people stand, 10 are needed"),
        (bent, 60, "0 poses of people stand, 10 are needed"),
        (lying, 60, "people lie, or most cameras do not stand upright"),
        (halved, 60, "0 poses of people from head to foot are seen in two views, 10 are needed"),
        (lambda joints: joints, 9, "9 poses of people from head to foot are seen in two views, 10 are needed"),
    ],
)
def test_people_who_do_not_stand_show_nothing(change: Callable[[Array], Array], num_instants: int, reason: str):
    rig = film_people(Filming(num_instants=num_instants, seed=5))
    assert find_vertical(cameras_of(rig), seen(rig, change), num_instants) == reason


def test_ten_poses_suffice():
    rig = film_people(Filming(num_instants=10, seed=5))
    assert find_vertical(cameras_of(rig), seen(rig, lambda joints: joints), 10).num_poses == 10


def test_seated_and_lying_people_do_not_disturb_one_who_stands():
    rig = film_people(Filming(num_instants=100, num_people=3, seed=1))
    changes = iter([seated, bent, lambda joints: joints])
    found = find_vertical(cameras_of(rig), seen(rig, lambda joints: next(changes)(joints)), 100)
    assert direction_angle_deg(found.up, UP) < 1.5


@pytest.mark.parametrize("up", [axis for axis in UpAxis if axis is not UpAxis.AUTO])
def test_the_frame_stands_on_the_floor_below_the_cameras(up: UpAxis):
    rig = film_people(Filming(num_instants=10, seed=3))
    frame = upright_frame(UP, 0.25, rig.world_to_camera, up)
    assert np.allclose(frame[:3, :3] @ UP, up.vector)
    assert np.allclose(frame[:3, :3] @ frame[:3, :3].T, np.eye(3))
    assert np.linalg.det(frame) == pytest.approx(1)
    poses = rig.world_to_camera @ np.linalg.inv(frame)
    centers = np.stack([-pose[:3, :3].T @ pose[:3, 3] for pose in poses])
    height = centers.mean(0) @ np.array(up.vector)
    assert centers.mean(0) == pytest.approx(height * np.array(up.vector), abs=1e-12)
    true_centers = np.stack([camera.center for camera in cameras_of(rig)])
    assert height == pytest.approx((true_centers @ UP).mean() - 0.25)


@pytest.mark.parametrize("pitch_deg", [-90, -60, 0, 60, 90])
def test_the_first_camera_faces_along_y_with_z_up_and_along_minus_z_with_y_up(pitch_deg: float):
    pose = np.eye(4)
    pose[:3, :3] = Rotation.from_euler("x", pitch_deg, degrees=True).as_matrix()
    for up, right in ((UpAxis.Z, [1, 0, 0]), (UpAxis.Y, [1, 0, 0])):
        moved = pose @ np.linalg.inv(upright_frame(UP, 0.0, pose[None], up))
        assert np.allclose(moved[0, :3], right)
        assert moved[2, :3] @ up.vector == pytest.approx(-pose[2, 1])
    level = np.eye(4) @ np.linalg.inv(upright_frame(UP, 0.0, np.eye(4)[None], UpAxis.Y))
    assert np.allclose(level[2, :3], [0, 0, -1])


def test_the_world_of_a_rig_is_recorded_with_its_evidence(monkeypatch: pytest.MonkeyPatch):
    rig = film_people(Filming(**NOISY))
    pixels = evidence_of(rig, Registration.PEOPLE)
    cameras = [lens.camera(pose) for lens, pose in zip(rig.lenses, rig.world_to_camera, strict=True)]
    monkeypatch.setattr(upright, "is_fetched", lambda: True)
    found = upright_world(pixels, placed_rig(pixels, [None, *cameras[1:]]), UpAxis.AUTO)
    assert (found.frame, found.up) == (WorldFrame.UPRIGHT, UpAxis.Z)
    assert np.allclose(np.array(found.transform)[:3, :3] @ found.vertical, [0, 0, 1])
    assert (
        found.text == f"upright, z is up ({found.num_poses} poses of people, +-{found.vertical_std_deg:.1f} degrees)"
    )
    assert found.model_validate_json(found.model_dump_json()) == found
    pixels.scene.up, marks = None, {}
    for name, place in {"a": [-0.6, 0, 0], "b": [0.6, 0, 0]}.items():
        local = [camera.rotation @ place + camera.world_to_camera[:3, 3] for camera in cameras_of(rig)]
        pixel = [lens.intrinsics[:2] @ (one / one[2]) for lens, one in zip(rig.lenses, local, strict=True)]
        marks[name] = {view: tuple(xy) for view, xy in zip(pixels.scene.view_names, pixel, strict=True)}
    pixels.floor = FloorPoints(label="floor.csv", marks=marks, coordinates={"a": (0, 0, 0), "b": (2.4, 0, 0)})
    surveyed = chosen_world(pixels, cameras, RegisterSettings(world=WorldFrame.UPRIGHT), is_metric=False)
    assert surveyed.metres_per_unit == pytest.approx(2, rel=1e-3)
    assert surveyed.num_poses >= found.num_poses
    assert direction_angle_deg(np.array(surveyed.vertical), UP) < 2
    monkeypatch.setattr(upright, "is_fetched", lambda: False)
    without = upright_world(pixels, placed_rig(pixels, cameras), UpAxis.AUTO)
    assert without.transform is None
    assert without.text.startswith("that of the first camera: the model of body keypoints was not fetched")


def test_people_are_seen_through_the_distortion_of_unknown_lenses(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(upright, "is_fetched", lambda: True)
    vertical = []
    for k1 in (0.0, -0.3):
        rig = film_people(Filming(num_instants=60, k1=(k1,) * 3, seed=1))
        pixels = evidence_of(rig, Registration.PEOPLE)
        pixels.lenses = tuple(replace(lens, distortion=None, focal_source=FocalSource.UNKNOWN) for lens in rig.lenses)
        cameras = [lens.camera(pose) for lens, pose in zip(rig.lenses, rig.world_to_camera, strict=True)]
        vertical.append(upright_world(pixels, placed_rig(pixels, cameras), UpAxis.AUTO).vertical)
    np.testing.assert_allclose(vertical[1], vertical[0], atol=1e-6)


def tracks_of(joints: Array) -> tuple[Array, Observations]:
    """Return the points of people [I, 33, 3], each seen by two views."""
    count = joints.shape[0] * NUM_JOINTS
    person, joint = (index.ravel() for index in np.indices(joints.shape[:2]))
    tracks = Observations(
        view=np.tile([0, 1], count),
        point=np.repeat(np.arange(count), 2),
        pixels=np.zeros((2 * count, 2)),
        weights=np.ones(2 * count),
        person=person,
        instant=person,
        joint=joint,
    )
    return joints.reshape(-1, 3), tracks


def test_height_scales_with_the_rig_and_tolerates_missing_and_wrong_joints() -> None:
    joints = film_people(Filming(num_instants=40, seed=2)).joints[0]
    points, tracks = tracks_of(joints)
    height, std = person_height(points, tracks)
    assert 0.03 < std < 0.04
    assert height == pytest.approx(PERSON_HEIGHT, rel=0.12)
    assert person_height(3 * points, tracks) == pytest.approx((3 * height, std))
    moved = joints.copy()
    moved[:8] *= 2
    legs = np.isin(tracks.joint, (13, 14, 15, 16)).repeat(2)
    fewer, _ = person_height(tracks_of(moved)[0], replace(tracks, view=tracks.view))
    assert fewer == pytest.approx(height, rel=0.03)
    kept = tracks.select(~legs)
    assert person_height(points[~np.isin(tracks.joint, (13, 14, 15, 16))], kept)[0] == pytest.approx(height, rel=0.1)


def test_height_is_unknown_without_complete_people() -> None:
    joints = film_people(Filming(num_instants=40, seed=2)).joints[0]
    points, tracks = tracks_of(joints)
    above = tracks.joint < 17
    assert person_height(points[above], tracks.select(above.repeat(2))) is None
    assert person_height(*tracks_of(joints[:5])) is None
