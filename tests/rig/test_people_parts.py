"""Parts of the detection of people: anchors, regions, landmarks, tracklets, the cache, and the choice of instants."""

import os
import sys
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from page4d.geometry.distortion import Distortion, LensModel
from page4d.rig.evidence import RUN_LENGTH, choose_instants
from page4d.rig.people import keypoints, model
from page4d.rig.people.keypoints import (
    MAX_PEOPLE,
    MIN_LENGTH,
    REGION_SCALE,
    BodyPose,
    Pyramid,
    Region,
    anchors,
    decode,
    join_poses,
    load_poses,
    read_pose,
    refine_landmarks,
    region_of,
    save_poses,
    undistorted_tracklet,
    without_duplicates,
)
from page4d.rig.people.model import RawLandmarks
from page4d.rig.records import Lens, Tracklet
from page4d.scene.content import ViewContent
from page4d.scene.open import open_scene
from page4d.scene.records import Clock, View
from tests.scene.clip_writers import write_images


def pose_at(x: float, y: float = 0.0, scale: float = 100.0) -> BodyPose:
    joints = np.random.default_rng(0).uniform(-scale, scale, (33, 2)) + np.array([x, y])
    return BodyPose(joints, np.full(33, 0.9), 0.9, Region((x, y), REGION_SCALE * scale, 0.0))


def test_loading_the_pose_model_prints_nothing(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    class Interpreter:
        def __init__(self, **_: object) -> None:
            """Take what the model is."""

        def allocate_tensors(self) -> None:
            os.write(2, b"INFO: Created TensorFlow Lite XNNPACK delegate for CPU.\n")

    monkeypatch.setattr(model, "is_fetched", lambda: True)
    monkeypatch.setitem(sys.modules, "ai_edge_litert", ModuleType("ai_edge_litert"))
    monkeypatch.setitem(sys.modules, "ai_edge_litert.interpreter", SimpleNamespace(Interpreter=Interpreter))
    assert model.pose_model() is not None
    os.write(2, b"ours\n")
    assert capfd.readouterr() == ("", "ours\n")


def test_anchors_are_the_centres_of_all_cells():
    found = anchors()
    assert found.shape == (2254, 2)
    assert np.allclose(found.mean(axis=0), 0.5)
    assert np.allclose(found[:3], [[4 / 224, 4 / 224]] * 2 + [[12 / 224, 4 / 224]])
    assert np.allclose(found[-1], 1 - 16 / 224)


def test_the_best_box_of_each_place_is_decoded():
    raw, logits = np.zeros((2254, 12)), np.full(2254, -9.0)
    raw[:, 2:4] = 30
    raw[:, 6] = 22.4
    for index, logit in ((0, 1.0), (1, 2.0), (1500, 3.0)):
        logits[index] = logit
    found = decode(raw, logits)
    assert len(found) == 2
    assert np.allclose(found[0][0], anchors()[1500])
    assert np.allclose(found[1][1] - found[1][0], [0.1, 0])
    assert len(decode(raw / 1e6, np.ones(2254))) == MAX_PEOPLE
    assert decode(raw, np.full(2254, -9.0)) == []


def test_a_region_points_from_the_hips_up():
    hips, top = np.array([50.0, 40.0]), np.array([80.0, 40.0])
    region = region_of(hips, top)
    assert region.side == pytest.approx(75)
    assert np.allclose(region.to_image(np.array([[0.5, 0.5], [0.5, 0.5 - 1 / REGION_SCALE]])), [hips, top])


@pytest.mark.parametrize("angle", [0.0, 0.7, -2.0])
def test_a_crop_shows_its_region(angle: float):
    y, x = np.mgrid[:300, :200]
    image = np.stack([x, y * 0.8, x * 0], axis=-1).astype(np.uint8)
    region = Region((100.0, 150.0), 120.0, angle)
    for side in (100, 24):
        crop = Pyramid(image).crop(region, side) * 255
        centres = (np.stack(np.meshgrid(np.arange(side), np.arange(side)), axis=-1) + 0.5) / side
        expected = region.to_image(centres) - 0.5
        assert np.abs(crop[..., 0] - expected[..., 0]).max() < 2
        assert np.abs(crop[..., 1] - 0.8 * expected[..., 1]).max() < 2


def test_landmarks_move_to_the_centroid_of_a_high_heatmap_only():
    heatmaps = np.full((64, 64, 39), -50.0)
    heatmaps[20, 31, 0] = heatmaps[20, 32, 0] = 5.0
    heatmaps[20, 31, 1] = -3.0
    unit = np.full((39, 2), 0.5) * (1, 0.625)
    refined = refine_landmarks(unit, heatmaps)
    assert np.allclose(refined[0], [31.5 / 64, 20 / 64])
    assert np.array_equal(refined[1:], unit[1:])


def test_a_mirrored_crop_gives_the_landmarks_of_the_other_side():
    points = np.random.default_rng(1).uniform(60, 200, (39, 5)).astype(np.float32)
    heatmaps = np.full((64, 64, 39), -50, dtype=np.float32)
    region = Region((300.0, 200.0), 256.0, 0.0)
    pose = read_pose(RawLandmarks(points, 0.9, heatmaps), region)
    mirrored = read_pose(RawLandmarks(points, 0.9, heatmaps), region, is_mirrored=True)
    for left, right in ((11, 12), (27, 28), (2, 5), (0, 0)):
        assert np.allclose(mirrored.joints[left], [600, 0] + [-1, 1] * pose.joints[right])
    assert read_pose(RawLandmarks(points, 0.4, heatmaps), region) is None
    assert read_pose(RawLandmarks(points * np.float32(np.nan), 0.9, heatmaps), region) is None


def test_duplicates_are_dropped_and_neighbours_kept():
    assert len(without_duplicates([pose_at(0), pose_at(10), pose_at(90)])) == 2


class TestTracklets:
    def test_two_people_that_walk_past_each_other_are_two_tracklets(self):
        poses = [[pose_at(20 * t, 0), pose_at(400 - 20 * t, 60)][:: 1 if t % 2 else -1] for t in range(20)]
        found = join_poses(poses)
        assert [len(tracklet.instants) for tracklet in found] == [20, 20]
        for tracklet in found:
            assert np.ptp(np.diff(tracklet.joints[:, 0, 0])) < 1e-9

    def test_gaps_are_bridged_but_not_breaks(self):
        poses = [[pose_at(0)] if t < 8 or t > 12 else [] for t in range(20)]
        assert [len(tracklet.instants) for tracklet in join_poses(poses)] == [15]
        assert [len(tracklet.instants) for tracklet in join_poses(poses, [10])] == [8, 7]

    def test_short_ones_are_dropped(self):
        assert join_poses([[pose_at(0)]] * (MIN_LENGTH - 1)) == ()
        assert join_poses([]) == ()

    def test_or_kept_one_pose_of_any_person_per_instant(self):
        poses = [
            [pose_at(0), *([pose_at(900 * t + 300)] if t % 2 else []), pose_at(-900 * t - 300)] for t in range(6)
        ]
        found = join_poses(poses, keeps_short=True)
        assert [tracklet.instants.tolist() for tracklet in found] == [
            [0, 1, 2, 3, 4, 5],
            [0, 1, 2, 3, 4, 5],
            [1, 3, 5],
        ]
        assert sum(len(tracklet.instants) for tracklet in found) == sum(map(len, poses))


def test_undistorted_joints_are_those_of_an_ideal_lens():
    distortion = Distortion(model=LensModel.BROWN_CONRADY, coefficients=(-0.1, 0.02, 0.0, 0.0))
    intrinsics = np.array([[500.0, 0, 320], [0, 500, 240], [0, 0, 1]])
    lens = Lens(intrinsics=intrinsics, image_size=(480, 640), distortion=distortion)
    joints = np.random.default_rng(0).uniform(0, 480, (3, 33, 2))
    tracklet = Tracklet(instants=np.arange(3), joints=joints, visibility=np.ones((3, 33)))
    found = undistorted_tracklet(tracklet, lens)
    import torch

    plane = torch.from_numpy((found.joints - (320, 240)) / 500)
    assert np.allclose(distortion.distort(plane).numpy() * 500 + (320, 240), joints, atol=1e-6)


@dataclass
class _Source:
    path: Path
    size: tuple[int, int] = (10, 20)


@pytest.mark.parametrize("bars", [0, 700])
def test_bars_do_not_make_people_smaller(bars: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    picture = np.full((1400, 600 + 2 * bars, 3), 90, np.uint8)
    picture[:, :bars] = picture[:, bars + 600 :] = 0
    picture[400:500, bars + 200 : bars + 300] = 250
    write_images(tmp_path / "cam", {"0.png": picture})
    (view,) = open_scene(tmp_path).views
    area = np.zeros((140, 60 + bars // 5), bool)
    area[:, bars // 10 : bars // 10 + 60] = True
    seen = []

    def at_the_light(_: object, image: Pyramid, *__: object) -> list[BodyPose]:
        shown = image._level(0)[..., 0]
        seen.append(shown.shape)
        y, x = (np.flatnonzero((shown > 200).any(axis)).mean() + 0.5 for axis in (1, 0))
        return [BodyPose(np.full((33, 2), [x, y]), np.ones(33), 0.9, Region((x, y), 100.0, 0.0))]

    for name, replaced in (("find_poses", at_the_light), ("detect_regions", lambda *_: []), ("pose_model", object)):
        monkeypatch.setattr(keypoints, name, replaced)
    shown = replace(view, content=ViewContent(area=area) if bars else None)
    (poses,) = keypoints._poses_of(shown, [0], lambda: None)
    assert seen == [(1280, 547 if bars else 549)]  # no mixed column
    np.testing.assert_allclose(poses[0].joints[0], [bars + 250, 450], atol=1.5)
    assert load_poses(shown, [0]) is not None
    assert (load_poses(view, [0]) is None) is (bars > 0)


def _view(file: Path) -> View:
    return View(name="cam", source=_Source(file), clock=Clock(), indices=())


class TestCache:
    @pytest.fixture(autouse=True)
    def _folder(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def test_poses_are_found_again_until_the_file_changes(self, tmp_path: Path):
        file = tmp_path / "clip.mp4"
        file.write_bytes(b"one")
        poses = [[pose_at(1), pose_at(500)], [], [pose_at(3)]]
        assert load_poses(_view(file), [0, 2, 4]) is None
        save_poses(_view(file), [0, 2, 4], poses)
        found = load_poses(_view(file), [0, 2, 4])
        assert [len(each) for each in found] == [2, 0, 1]
        assert np.array_equal(found[0][1].joints, poses[0][1].joints)
        assert found[2][0].next_region == poses[2][0].next_region
        assert load_poses(_view(file), [0, 2, 5]) is None
        file.write_bytes(b"two")
        assert load_poses(_view(file), [0, 2, 4]) is None

    def test_damage_and_a_cache_that_cannot_be_written_are_ignored(self, tmp_path: Path):
        file = tmp_path / "clip.mp4"
        file.write_bytes(b"one")
        save_poses(_view(file), [0], [[pose_at(1)]])
        (stored,) = (tmp_path / "cache" / "page4d" / "keypoints").iterdir()
        for damaged in (b"", stored.read_bytes()[:200], b"x" * 300):
            stored.write_bytes(damaged)
            assert load_poses(_view(file), [0]) is None
        stored.unlink()
        stored.parent.rmdir()
        stored.parent.write_bytes(b"in the way")
        save_poses(_view(file), [0], [[pose_at(1)]])
        assert load_poses(_view(file), [0]) is None


class TestInstants:
    def test_short_captures(self):
        assert choose_instants(np.array([])) == ()
        assert choose_instants(np.array([3.0])) == (0,)
        assert choose_instants(np.arange(12) / 5) == tuple(range(12))

    @pytest.mark.parametrize(("rate", "step"), [(25, 1), (30, 1), (59.94, 2), (60, 2), (120, 4), (240, 8)])
    def test_high_rates_are_thinned(self, rate: float, step: int):
        assert choose_instants(np.arange(100) / rate) == tuple(range(0, 100, step))

    def test_an_hour_is_sampled_in_runs_from_start_to_end(self):
        times = np.arange(3600 * 60) / 60
        chosen = choose_instants(times)
        assert len(chosen) == 100
        steps = np.diff(chosen)
        assert (steps == 2).sum() == 100 - 100 // RUN_LENGTH
        assert chosen[0] == 0
        assert times[chosen[-1]] > 3599


def test_stderr_remains_after_two_threads_silenced_it_at_once():
    """Each thread that detects people loads the model; errors are printed to stderr afterwards."""
    inside, left, before = threading.Event(), threading.Event(), os.fstat(2)

    def hold() -> None:
        with model._silent_stderr():
            inside.set()
            left.wait()

    other = threading.Thread(target=hold)
    with model._silent_stderr():
        other.start()
        inside.wait(0.1)
    left.set()
    other.join()
    assert os.path.samestat(os.fstat(2), before)
