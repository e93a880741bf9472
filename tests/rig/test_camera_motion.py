"""Static or moving, per view, from pixels: noise, flicker, people, rolling shutter, overlays, bumps, black frames."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import cv2
import numpy as np
import pytest

from page4d.errors import InputError
from page4d.lab.synthetic.capture import SyntheticCapture
from page4d.rig.camera_motion import ViewMotion, calibrated_motion_notices, measure_camera_motion, measure_motion
from page4d.rig.samples import MAX_DECODED, ViewSample, choose_pictures, sample_views
from page4d.rig.samples import judged as judged_samples
from page4d.scene.image_file import Orientation
from page4d.scene.open import open_scene
from page4d.scene.records import Clock, Scene, View
from page4d.scene.video import VideoSource

SIZE = (90, 160)
SCENES = Path(__file__).resolve().parents[2].parent / "shared" / "scenes"


@cache
def background() -> np.ndarray:
    """A textured picture, larger than those of the camera."""
    rng = np.random.default_rng(5)
    fine = cv2.GaussianBlur(rng.normal(size=(200, 300)), (0, 0), 1.5)
    coarse = cv2.GaussianBlur(rng.normal(size=(200, 300)), (0, 0), 6.0)
    texture = fine / fine.std() + coarse / coarse.std()
    return np.clip(128 + 35 * texture, 0, 255).astype(np.float32)


def filmed(path: np.ndarray, *, shear: float = 0.0) -> list[np.ndarray]:
    """Film the background along a path of shifts [T, 2]; `shear` is the rolling shutter in pixels per picture."""
    pictures = []
    for x, y in path:
        at = np.float32([[1, shear / SIZE[0], -60 - x - shear / 2], [0, 1, -50 - y]])
        pictures.append(cv2.warpAffine(background(), at, SIZE[::-1]))
    return pictures


def still(count: int = 12) -> list[np.ndarray]:
    return filmed(np.zeros((count, 2)))


def sway(size: float) -> np.ndarray:
    return np.cumsum(np.random.default_rng(2).normal(size=(12, 2)), axis=0) * size


def spoiled(pictures: list[np.ndarray], seed: int = 0) -> list[np.ndarray]:
    """Add noise, flicker of exposure and a band of light that wanders."""
    rng = np.random.default_rng(seed)
    rows = np.arange(SIZE[0])[:, None] / SIZE[0]
    return [
        picture * (1 + 0.3 * np.sin(2.3 * time)) * (1 + 0.1 * np.sin(9 * rows + time)) + rng.normal(0, 4, SIZE)
        for time, picture in enumerate(pictures)
    ]


def crossed(pictures: list[np.ndarray], share: float) -> list[np.ndarray]:
    """Cover a share of the picture by a textured area that moves on its own."""
    width, walk = round(share * SIZE[1]), np.linspace(0, (1 - share) * SIZE[1], len(pictures)).astype(int)
    crossing = []
    for time, (picture, left) in enumerate(zip(pictures, walk, strict=True)):
        covered = picture.copy()
        top = 20 + 3 * time
        covered[:, left : left + width] = background()[top : top + SIZE[0], 2 * time : 2 * time + width]
        crossing.append(covered)
    return crossing


def judged(pictures: list[np.ndarray]) -> ViewMotion:
    gray = [np.clip(np.rint(picture), 0, 255).astype(np.uint8) for picture in pictures]
    (sample,) = judged_samples([ViewSample(view="cam01", instants=tuple(range(len(gray))), pictures=tuple(gray))])
    return measure_motion(sample, np.arange(len(gray)) / 2.0)


def test_a_static_camera_is_static_under_noise_flicker_people_and_wind() -> None:
    wind = np.random.default_rng(1).normal(0, 0.1, (12, 2))
    for pictures in (crossed(still(), 0.5), spoiled(crossed(still(), 0.4)), filmed(wind)):
        motion = judged(pictures)
        assert motion.is_static, motion
        assert motion.share > 0.15
        assert motion.displacement_px < 0.3


@pytest.mark.parametrize("size", [0.7, 8.0])
def test_a_moving_camera_moves_under_noise_flicker_people_and_rolling_shutter(size: float) -> None:
    path = sway(size)[:8]
    for pictures in (crossed(filmed(path), 0.4), spoiled(filmed(path, shear=size))):
        motion = judged(pictures)
        assert motion.is_static is False, motion


def test_the_displacement_of_a_moving_camera_is_measured() -> None:
    pan = np.linspace(0, 6, 12)[:, None] * np.array([1.0, 0.0])
    motion = judged(filmed(pan))
    assert motion.displacement_px == pytest.approx(3, abs=1.5)
    assert motion.share < 0.1


def test_a_logo_a_time_stamp_and_black_bars_do_not_make_a_camera_static() -> None:
    stamp = background()[40:52, 100:170]
    for path in (sway(3.0),):
        pictures = filmed(path)
        for picture in pictures:
            picture[:14], picture[-14:] = 0, 0
            picture[-28:-16, 5:75], picture[16:28, 120:150] = stamp, stamp[:, :30]
        assert judged(pictures).is_static is False


def test_a_camera_that_is_moved_once_is_moving_and_the_moment_is_named() -> None:
    path = np.zeros((12, 2))
    path[7:] = (5, 3)
    motion = judged(filmed(path))
    assert motion.is_static is False
    assert "moved at 3.5 s" in motion.reason


def test_one_spoiled_picture_does_not_make_a_camera_moving() -> None:
    for spoil in (0, 11):
        pictures = still()
        pictures[spoil] = filmed(np.array([[20.0, 9.0]]))[0]
        motion = judged(pictures)
        assert motion.is_static, (spoil, motion)
        pictures[spoil] = np.zeros(SIZE)
        assert judged(pictures).is_static


def test_pictures_without_corners_determine_nothing() -> None:
    black, flat = [np.zeros(SIZE)] * 12, [np.full(SIZE, 90.0)] * 12
    ramp = [np.tile(np.linspace(60, 90, SIZE[1]), (SIZE[0], 1))] * 12
    cases = [(black, "its pictures are black"), (flat, "its pictures are without contrast"), (still(1), "1 instant")]
    cases += [(ramp, "too few corners"), (still()[:3] + ramp[:9], "too few corners are found again")]
    for pictures, reason in cases:
        motion = judged(pictures)
        assert motion.is_static is None
        assert motion.reason == reason


def test_two_and_three_instants_are_judged() -> None:
    for count in (2, 3):
        assert judged(still(count)).is_static
        assert judged(filmed(sway(5.0)[1 : count + 1])).is_static is False


def test_a_picture_full_of_people_does_not_make_a_camera_moving() -> None:
    rng = np.random.default_rng(4)
    pictures = still(8)
    for time, picture in enumerate(pictures):
        for place in range(14):
            x, y = int(130 * rng.random()), int(60 * rng.random())
            picture[y : y + 30, x : x + 30] = background()[place * 9 : place * 9 + 30, 20 * time : 20 * time + 30]
    assert judged(pictures).is_static is not False


def test_a_camera_that_shows_another_place_in_each_picture_moves_and_one_turned_once_too() -> None:
    elsewhere = [filmed(np.array([[20.0 * x, 25.0 * y]]))[0] for x, y in ((-2, -1), (2, -1), (-2, 1), (2, 1))]
    assert judged([np.flip(picture, axis) for axis in (0, 1) for picture in elsewhere]).is_static is False
    turned = [*still(4), *(np.flip(picture, 1) for picture in still(4))]
    assert judged(turned).is_static is False


@dataclass(frozen=True)
class Frames:
    """Frames in memory as the source of a view."""

    frames: tuple[np.ndarray, ...]
    label: str = "frames"
    codec: str = "raw"
    size: tuple[int, int] = SIZE

    @property
    def frame_times(self) -> np.ndarray:
        return np.arange(len(self.frames)) / 10.0

    @contextmanager
    def open(self, size: tuple[int, int] | None = None) -> Iterator["Frames"]:
        assert size in (None, self.size)
        yield self

    def read(self, indices: Sequence[int]) -> Iterator[np.ndarray]:
        for index in indices:
            if self.label == "damaged":
                raise InputError("damaged", "convert it")
            gray = np.clip(self.frames[index], 0, 255).astype(np.uint8)
            yield np.repeat(gray[..., None], 3, axis=-1)


def rig(*sources: Frames) -> Scene:
    views = [
        View(name=f"cam{place:02}", source=source, clock=Clock(), indices=tuple(range(len(source.frames))))
        for place, source in enumerate(sources, 1)
    ]
    return Scene(name="rig", views=tuple(views), times=sources[0].frame_times)


def test_each_view_of_a_rig_is_judged_by_itself() -> None:
    scene = rig(Frames(tuple(still(30))), Frames(tuple(filmed(np.repeat(sway(4.0), 3, axis=0)[:30]))))
    damaged = replace(scene.views[0], name="cam03", source=Frames(tuple(still(30)), label="damaged"))
    done: list[tuple[int, int]] = []
    scene = replace(scene, views=(*scene.views, damaged))
    motions = measure_camera_motion(scene, sample_views(scene, lambda *at: done.append(at)))
    assert [motion.is_static for motion in motions] == [True, False, None]
    assert [motion.view for motion in motions] == ["cam01", "cam02", "cam03"]
    assert motions[2].reason == "damaged"
    assert done == [(1, 3), (2, 3), (3, 3)]
    assert motions == measure_camera_motion(scene, sample_views(scene))


def test_a_view_that_moves_with_a_calibration_of_one_pose_is_named() -> None:
    scene = SyntheticCapture(seed=1, num_views=3, num_times=2).scene()
    motions = [
        ViewMotion(view=name, is_static=verdict)
        for name, verdict in zip(scene.view_names, (True, False, None), strict=True)
    ]
    (notice,) = calibrated_motion_notices(scene, motions)
    assert notice.text.startswith(f"{scene.view_names[1]} moves, but its calibration has one pose")
    plain = replace(scene, views=tuple(replace(view, camera=None) for view in scene.views))
    assert not calibrated_motion_notices(plain, motions)


def video(num_frames: int, every: int | None, suffix: str = ".mp4") -> View:
    """A view of a long video with a key frame at every so many frames; None for only the first."""
    pts = np.arange(num_frames)
    source = VideoSource(
        path=Path(f"long{suffix}"),
        label=f"long{suffix}",
        codec="h264",
        size=(2160, 3840),
        frame_times=pts / 30,
        pts=pts,
        positions=pts,
        decoded=pts,
        key_pts=pts[:: every or num_frames],
        is_timed=True,
        orientation=Orientation(),
        bit_depth=8,
        has_audio=False,
        timecode=None,
    )
    return View(name="cam01", source=source, clock=Clock(), indices=tuple(range(num_frames)))


def test_the_number_of_decoded_frames_is_bounded_for_hours_of_video() -> None:
    hour = 30 * 3600
    spread = choose_pictures(video(hour, 250))
    assert len(spread) == 12
    assert spread[-1] > 0.99 * hour
    assert all(instant % 250 == 0 for instant in spread[:-1]), "key frames are decoded alone"
    for view in (video(hour, None), video(hour, 250, ".ts")):
        beginning = choose_pictures(view)
        assert len(beginning) == 12
        assert MAX_DECODED / 2 <= beginning[-1] <= MAX_DECODED


@pytest.mark.slow
@pytest.mark.parametrize(("name", "is_static"), [("treadmill", True), ("tabletop", True), ("house", False)])
def test_real_captures(name: str, is_static: bool) -> None:
    if not (SCENES / name).is_dir():
        pytest.skip("the shared captures are not here")
    scene = open_scene(SCENES / name)
    motions = measure_camera_motion(scene, sample_views(scene))
    assert [motion.is_static for motion in motions] == [is_static] * len(motions)
