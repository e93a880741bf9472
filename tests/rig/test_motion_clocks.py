"""Clocks from motion: offsets and rates are found from moving points, and ambiguous ones are refused."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter
from scipy.spatial.transform import Rotation

import page4d
from page4d.choices import CalibrationFormat
from page4d.conventions import Scale
from page4d.errors import InputError, UsageError
from page4d.formats.calibrations import write_calibration
from page4d.formats.camera_model import CalibratedCamera, Calibration
from page4d.rig import opening
from page4d.rig.clocks import Measured, WindowClocks, fitted_clocks
from page4d.rig.motion_clocks import MovingPoints, estimate_motion_clocks, find_moving_points
from page4d.rig.records import RigCamera
from page4d.scene.open import open_scene as open_folder
from page4d.scene.records import FrameSource
from tests.cli.clips import write_video
from tests.rig.walkers import lens, ring

NUM_POINTS = 12


class Dance:
    """Points that move together and by themselves, at random or at multiples of a `rate` in Hz."""

    def __init__(self, rng: np.random.Generator, rate: float | None = None) -> None:
        waves = 3 if rate else 24
        multiples = (rate or 0) * np.arange(1, waves + 1)
        self.rates = [multiples if rate else rng.uniform(low, high, waves) for low, high in ((0.03, 0.6), (0.2, 2))]
        self.sizes = [
            rng.normal(size=(n, 3, waves)) * scale / waves**0.5 for n, scale in ((1, 1), (NUM_POINTS, 0.25))
        ]
        self.phases = [rng.uniform(0, 7, size.shape) for size in self.sizes]
        self.body = rng.normal(size=(NUM_POINTS, 3)) * [0.22, 0.22, 0.5] + [0, 0, 1]

    def at(self, times: np.ndarray) -> np.ndarray:
        """Return points [T, N, 3]."""
        moved = [
            np.stack([(size * np.sin(2 * np.pi * rate * time + phase)).sum(-1) for time in times])
            for rate, size, phase in zip(self.rates, self.sizes, self.phases, strict=True)
        ]
        return np.asarray(self.body + moved[0] * [1, 1, 0.1] + moved[1])


def seen(
    camera: RigCamera, dance: Dance, own: np.ndarray, common: np.ndarray, rng: np.random.Generator
) -> MovingPoints:
    """Return the points that a camera sees: two thirds of them at any instant, with noise, some at random."""
    local = dance.at(common) @ camera.rotation.T + camera.world_to_camera[:3, 3]
    plane = local[..., :2] / local[..., 2:]
    half = np.array(camera.lens.image_size[::-1]) / 2 / camera.lens.focal
    starts = plane[:-1] + rng.normal(size=plane[1:].shape) * 5e-4
    ends = starts + np.diff(plane, axis=0) + rng.normal(size=starts.shape) * 2e-4
    strange = rng.uniform(size=starts.shape[:2]) < 0.2
    starts[strange], ends[strange] = (rng.uniform(-half, half, (strange.sum(), 2)) for _ in range(2))
    shown = (np.abs(starts) < half).all(-1) & (local[:-1, :, 2] > 0.3) & (rng.uniform(size=strange.shape) < 0.67)
    grid = np.stack(np.meshgrid(np.linspace(-1, 1, 20), np.linspace(-1, 1, 12)), axis=-1).reshape(-1, 2)
    return MovingPoints(
        times=(own[1:] + own[:-1]) / 2,
        seconds=np.diff(own),
        frames=np.nonzero(shown)[0],
        starts=starts[shown],
        ends=ends[shown],
        field=grid * half,
    )


@dataclass(frozen=True)
class Take:
    """A recording: starts on the common clock in s, rates of clocks in ppm, and what each view shows."""

    starts: Sequence[float]
    seconds: float = 20.0
    fps: Sequence[float] = (20.0, 20.0, 20.0)
    ppm: Sequence[float] = (0.0, 0.0, 0.0)
    rate: float | None = None
    others: Sequence[int] = ()
    turn_deg: float = 0.0
    seed: int = 0

    def clocks(self) -> WindowClocks:
        rng = np.random.default_rng(self.seed)
        cameras = ring(len(self.starts), rng)
        dance = Dance(rng, self.rate)
        points = []
        for view, (camera, start) in enumerate(zip(cameras, self.starts, strict=True)):
            own = np.arange(round(self.seconds * self.fps[view])) / self.fps[view]
            common = 20 + start + (1 + 1e-6 * self.ppm[view]) * own
            points.append(seen(camera, Dance(rng, self.rate) if view in self.others else dance, own, common, rng))
        poses = [camera.world_to_camera.copy() for camera in cameras]
        poses[0][:3] = Rotation.from_rotvec([0, np.radians(self.turn_deg), 0]).as_matrix() @ poses[0][:3]
        return estimate_motion_clocks([f"cam{view}" for view in range(len(poses))], points, poses)


@pytest.mark.parametrize(
    "take",
    [
        Take([0, 0.12]),
        Take([0, 10, -6.33], seconds=25),
        Take([3, -2.5, 0.4], fps=(20, 40, 25), seed=1),
        Take([0, 1.7, 0.9], seconds=6, seed=2),
    ],
)
def test_offsets_are_found_to_a_tenth_of_a_frame(take: Take) -> None:
    found = take.clocks()
    frame = 1 / min(take.fps[: len(take.starts)])
    assert found.ahead == pytest.approx(np.subtract(take.starts[0], take.starts), abs=0.15 * frame)
    assert np.abs(found.ahead + np.subtract(take.starts, take.starts[0])).max() < 5 * found.deviations.max()
    assert not found.drifts.any()


def test_a_drift_of_50_ppm_over_5_minutes_is_found_within_20_percent() -> None:
    found = Take([0, 4.2], seconds=300, fps=(30, 30), ppm=(0, 50)).clocks()
    assert found.drifts == pytest.approx([0, -50e-6], abs=10e-6)
    assert found.drift_deviations[1] < 5e-6
    assert found.ahead[1] == pytest.approx(-4.2 - 50e-6 * (found.time - 4.2), abs=0.003)


@pytest.mark.parametrize(("noise_s", "is_determined"), [(0.002, True), (0.02, False)])
def test_deviations_include_a_drift_that_is_not_determined(noise_s: float, is_determined: bool) -> None:
    times, drift = np.linspace(0, 300, 61), 50e-6
    offsets = 0.1 + drift * (times - 150) + np.random.default_rng(0).normal(size=61) * noise_s
    measured = Measured(np.tile([0, 1], (61, 1)), times, offsets, np.ones(61), times > 150)
    found = fitted_clocks("motion", ("a", "b"), measured, 0.02, np.zeros(2))
    assert (found.drifts[1] != 0) == is_determined
    assert abs(found.drifts[1] - drift) < 2 * found.drift_deviations[1]
    assert (found.deviations[1] > drift * 300 / 12**0.5) != is_determined


@pytest.mark.parametrize(
    ("take", "views"),
    [
        (Take([0, 0.4, 1.0], others=(2,)), "cam2: "),
        (Take([0, 0.4, 1.0], others=(0,)), "cam0: "),
        (Take([0, 0.4], others=(1,)), "cam1: "),
        (Take([0, 0.4], rate=1.1), "cam1: "),
        (Take([0, 30.0]), "cam1: "),
        (Take([0, 17.5]), "cam1: "),
        (Take([0, 0.4], turn_deg=20), "cam1: "),
        (Take([0, 0.05], seconds=0.1), "cam0, cam1: fewer than 26 frames"),
    ],
    ids=["other motion", "first view", "two views", "periodic", "apart", "short overlap", "wrong camera", "brief"],
)
def test_clocks_that_motion_does_not_determine_are_named(take: Take, views: str) -> None:
    with pytest.raises(InputError, match=f"motion does not determine the clock of {views}"):
        take.clocks()


STARTS = (0.0, 0.7)
"""Seconds of a common clock at which the recordings of `videos` begin."""


@pytest.fixture
def videos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two calibrated videos of a dance, of which the second begins later, by a clock that is slow by 0.1 %."""
    rng = np.random.default_rng(5)
    rig = {f"cam{view}": camera for view, camera in enumerate(ring(2, rng))}
    dance, drift = Dance(rng), 1e-3
    for name in rig:
        write_video(tmp_path / "rig" / f"{name}.mp4", frames=640, fps=10, size=(48, 64))
    cameras = tuple(
        CalibratedCamera(
            name=name,
            image_size=(48, 64),
            intrinsics=torch.tensor([[60.0, 0, 32], [0, 60, 24], [0, 0, 1]], dtype=torch.float64),
            world_to_camera=torch.from_numpy(camera.world_to_camera),
        )
        for name, camera in rig.items()
    )
    calibration = Calibration(path=tmp_path, scale=Scale.METRIC, cameras=cameras)
    write_calibration(calibration, tmp_path / "cameras.json", CalibrationFormat.PAGE4D)

    def simulated(source: FrameSource, *_: object) -> MovingPoints:
        view = int(source.label[3])
        own = source.frame_times
        common = STARTS[view] + own * (1 + drift * view)
        return seen(rig[f"cam{view}"], dance, own, common, rng)

    monkeypatch.setattr(opening, "find_moving_points", simulated)
    return tmp_path


def test_frames_of_one_moment_are_paired(videos: Path) -> None:
    scene = page4d.open_scene(videos / "rig", sync="motion", calibration=videos / "cameras.json")
    assert (scene.synchronisation, scene.views[0].clock.std_seconds) == ("motion", 0)
    assert 0.001 < (scene.views[1].clock.std_seconds or 0) < 0.02
    assert scene.views[1].clock.offset_s == pytest.approx(STARTS[1], abs=0.01)
    assert scene.views[1].clock.rate == pytest.approx(1.001, abs=3e-4)
    assert [view.indices[0] for view in scene.views] == [7, 0]
    assert [view.indices[-1] for view in scene.views] == [639, 631]  # after 63 s the slow clock is 0.06 s behind
    (text,) = [notice.text for notice in scene.notices if "by motion" in notice.text]
    assert re.match(r"cam1 starts \+0\.\d+ s after cam0 by motion \(\+-0.0\d+ s\), with a rate of 1\.00[01]", text)


def test_motion_needs_known_static_cameras(videos: Path) -> None:
    with pytest.raises(UsageError, match="sync='motion' without calibration"):
        page4d.open_scene(videos / "rig", sync="motion")
    with pytest.raises(InputError, match="has no camera of cam1"):
        page4d.open_scene(videos / "rig", sync="motion", calibration=videos / "cameras.json", again=("cam1",))
    with pytest.raises(UsageError, match="sync='motion'"):
        open_folder(videos / "rig", sync="motion", calibration=videos / "cameras.json")


@dataclass(frozen=True)
class Pictures:
    """A source of gray pictures."""

    pictures: Sequence[np.ndarray]
    size: tuple[int, int]
    frame_times: np.ndarray = field(default_factory=lambda: np.arange(3) / 10)
    label: str = "cam1"
    codec: str = "png"

    @contextmanager
    def open(self, size: tuple[int, int] | None = None) -> Iterator["Pictures"]:
        assert size == self.size
        yield self

    def read(self, indices: Sequence[int]) -> Iterator[np.ndarray]:
        return iter([self.pictures[index] for index in indices])


def test_points_follow_what_moves_and_nothing_else() -> None:
    noise = gaussian_filter(np.random.default_rng(0).normal(size=(180, 320)), 3)
    texture = np.clip(128 + 400 * noise, 0, 255).astype(np.uint8)
    pictures = [texture.copy() for _ in range(3)]
    for number, picture in enumerate(pictures):
        picture[60:120, 120 + 3 * number : 180 + 3 * number] = texture[-60:, -60:]
    one = find_moving_points(Pictures(pictures, (180, 320)), lens(100.0), (0.0, 1.0))
    assert one.times == pytest.approx([0.05, 0.15])
    pixels = one.starts * 100 + [960, 540]
    inside = (np.abs(pixels - [153, 90]) < 20).all(-1)
    assert inside.sum() >= 2 * 30
    moved = np.median((one.ends - one.starts)[inside] * 100, axis=0)
    assert moved == pytest.approx([2.7, 0], abs=0.5)
    assert (np.abs(pixels - [153, 90]) < 50).all()
    still = find_moving_points(Pictures([texture] * 3, (180, 320)), lens(100.0), (0.0, 1.0))
    with pytest.raises(InputError, match="cam0, cam1: nothing moves"):
        estimate_motion_clocks(["cam0", "cam1"], [still, still], [np.eye(4)] * 2)
