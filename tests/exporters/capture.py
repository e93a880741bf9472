"""A small capture with known geometry, as a scene folder and a finished run, and the colour test of exports.

Colours vary slowly over the surfaces, so that a right export reproduces them, and a wrong one does not.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from page4d.conventions import Scale
from page4d.formats.tracks import Tracks
from page4d.geometry.camera import Cameras, camera_rays
from page4d.geometry.pixels import fit_views
from page4d.output.reader import Output, open_output
from page4d.records import Predictions
from page4d.scene.open import open_scene
from tests.output.output_scene import export, look_at, trace, with_velocity

NAMES = ("cam01", "cam02", "cam03", "cam04")
SIZE = (120, 160)
IMAGE_FPS = 12.0
REGULAR = (0, 1, 2, 3)
UNEVEN = (0, 1, 3, 4)
"""Frame numbers of the instants."""

STEP, DRIFT = (0.42, 0.0, 0.0), (0.42, -0.06, 0.09)
"""Motion of the ball per frame, and that of a ball with velocities."""

NUM_TRACKS = 40

THRESHOLD = 0.03
"""Largest colour error of a right export; wrong cameras give 0.08 to 0.3, a wrong order 0.28."""

EXACT_THRESHOLD = 0.006
"""The same for exports that keep the pictures; the wrong pixel centre gives 0.011 to 0.015."""

_FOCALS = ((150.0, 156.0), (118.0, 114.0), (182.0, 171.0), (133.0, 140.0))
_OFFSETS = ((9.0, -6.0), (-14.0, 5.0), (6.0, 11.0), (-7.0, -9.0))
"""Focal lengths and offsets of the principal point from the middle, (x, y) in px."""

_BALL = (-0.6, 0.35, 3.2)
"""Centre of the ball at frame 0."""

_WAVES = torch.tensor([[3.1, 2.2, -1.7], [-2.4, 3.0, 2.1], [1.9, -2.6, 2.9]], dtype=torch.float64)
_BALL_WAVES = torch.tensor([[5.0, -3.0, 2.0], [2.0, 5.0, -3.0], [-3.0, 2.0, 5.0]], dtype=torch.float64)


@dataclass(frozen=True)
class Capture:
    """A capture on disk: the `scene` folder, the `folder` of its finished run, and the exact predictions."""

    scene: Path
    folder: Path
    predictions: Predictions

    @cached_property
    def output(self) -> Output:
        """The run, opened."""
        return open_output(self.folder)

    @property
    def times(self) -> NDArray[np.float64]:
        """Seconds of the instants [T]."""
        return self.predictions.times.numpy()

    @property
    def world_to_camera(self) -> NDArray[np.float64]:
        """True poses [T, V, 4, 4]."""
        return self.predictions.cameras.world_to_camera[0].numpy()

    @cached_property
    def intrinsics(self) -> NDArray[np.float64]:
        """True intrinsics [T, V, 3, 3] of the pictures."""
        return self.output.cameras.intrinsics.numpy()

    def picture(self, instant: int, view: int) -> NDArray[np.uint8]:
        """Read an RGB picture [H, W, 3] of the scene."""
        paths = sorted((self.scene / self.predictions.view_names[view]).iterdir())
        return read_rgb(paths[instant])

    def sees(self, xyz: NDArray[Any], instant: int, view: int, tolerance: float = 0.03) -> NDArray[np.bool_]:
        """Return which points [N, 3] of the run's world a view sees: inside its picture, and not occluded.

        `tolerance` is the largest relative difference between the depth of a point and that of the surface.
        """
        depth = self.output.depth(instant, self.predictions.view_names[view])
        pixels, z = project(xyz, self.intrinsics[instant, view], self.world_to_camera[instant, view])
        inside = _inside(pixels, z, depth.shape)
        columns, rows = np.floor(np.where(inside[:, None], pixels, 0.0)).astype(int).T
        return inside & (np.abs(depth[rows, columns] - z) < tolerance * z)


def read_rgb(path: Path) -> NDArray[np.uint8]:
    """Read an RGB picture [H, W, 3]."""
    pixels = cv2.imread(str(path), cv2.IMREAD_COLOR)
    assert pixels is not None, path
    return np.ascontiguousarray(pixels[..., ::-1])


def project(
    xyz: NDArray[Any], intrinsics: NDArray[Any], world_to_camera: NDArray[Any]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Project points [N, 3] to pixels [N, 2], whose top-left centre is (0.5, 0.5), and z-depth [N]."""
    in_camera = xyz.astype(np.float64) @ world_to_camera[:3, :3].T + world_to_camera[:3, 3]
    with np.errstate(divide="ignore", invalid="ignore"):
        pixels = (in_camera @ np.asarray(intrinsics).T)[:, :2] / in_camera[:, 2:]
    return pixels, in_camera[:, 2]


def color_error(
    xyz: NDArray[Any],
    rgb: NDArray[Any],
    picture: NDArray[np.uint8],
    intrinsics: NDArray[Any],
    world_to_camera: NDArray[Any],
) -> float:
    """Return the mean absolute difference (0 to 1) between the colours of points and the picture at their pixels.

    Pass only the points [N, 3] that the view observed at this instant (those of its index in `view`, or the ones that
    `Capture.sees`): points behind others have other colours. An error in time shows on the moving ones alone: pass
    these. `rgb` is uint8, or real in [0, 1]; the centre of the top-left pixel is (0.5, 0.5). The result is infinite
    if less than half of the points lie in front of the camera and inside the picture.
    """
    assert len(xyz) >= 20, f"{len(xyz)} points are too few for the colour test"
    colors = rgb / 255.0 if rgb.dtype == np.uint8 else rgb.astype(np.float64)
    pixels, z = project(xyz, intrinsics, world_to_camera)
    inside = _inside(pixels, z, picture.shape)
    if inside.mean() < 0.5:
        return math.inf
    return float(np.abs(_sampled(picture, pixels[inside]) - colors[inside]).mean())


def _sampled(picture: NDArray[np.uint8], pixels: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sample a picture bilinearly at pixels [N, 2], to [0, 1]."""
    height, width = picture.shape[:2]
    x, y = (pixels - 0.5).clip(0.0, [width - 1, height - 1]).T
    left, top = np.minimum(x.astype(int), width - 2), np.minimum(y.astype(int), height - 2)
    right, down = (x - left)[:, None], (y - top)[:, None]
    upper = picture[top, left] * (1 - right) + picture[top, left + 1] * right
    lower = picture[top + 1, left] * (1 - right) + picture[top + 1, left + 1] * right
    return (upper * (1 - down) + lower * down) / 255.0


def _inside(pixels: NDArray[np.float64], z: NDArray[np.float64], shape: tuple[int, ...]) -> NDArray[np.bool_]:
    return (z > 0) & (pixels >= 0).all(axis=1) & (pixels < [shape[1], shape[0]]).all(axis=1)


def make_capture(
    folder: Path,
    *,
    moving: bool = False,
    numbers: tuple[int, ...] = REGULAR,
    names: tuple[str, ...] = NAMES,
    size: tuple[int, int] = SIZE,
    scale: Scale = Scale.METRIC,
    layers: bool = False,
    velocity: bool = False,
    tracks: bool = False,
) -> Capture:
    """Write the scene `folder`/scene and the run `folder`/out of a moving ball.

    With `layers` the run has them; static points are those of the middle instant. With `velocity` the ball moves by
    `DRIFT` per frame and the run has true velocities, unknown in the left eighth of every view; with `tracks` also
    `NUM_TRACKS` tracks on the ball, see `ball_tracks`.
    If `moving`, the cameras move and zoom. `numbers` are frame numbers of the instants at 12 fps: `UNEVEN` has a gap.
    """
    scene, out = folder / "scene", folder / "out"
    predictions = _render(numbers, names, size, moving, scale, DRIFT if velocity else STEP)
    if velocity:
        predictions = with_velocity(predictions, tuple(IMAGE_FPS * value for value in DRIFT))
    for view, name in enumerate(names):
        (scene / name).mkdir(parents=True)
        for index, number in enumerate(numbers):
            pixels = (predictions.images[0, index, view].permute(1, 2, 0) * 255).round().byte().numpy()
            assert cv2.imwrite(str(scene / name / f"{number:06d}.png"), pixels[..., ::-1])
    opened = open_scene(scene, image_fps=IMAGE_FPS)
    assert opened.view_names == names, f"give the names in the order of {opened.view_names}"
    assert np.array_equal(np.asarray(opened.times), predictions.times.numpy())
    of_ball = ball_tracks(numbers, len(names)) if tracks else None
    export(out, predictions, scene=opened, layers=layers, tracks=of_ball)
    return Capture(scene, out, predictions)


def ball_tracks(numbers: tuple[int, ...], num_views: int) -> Tracks:
    """Return tracks of points of the ball with `velocity`: the first begins at instant 1, the second ends there.

    The first view sees none of them.
    """
    draw = np.random.default_rng(0)
    offsets = draw.normal(size=(NUM_TRACKS, 3))
    offsets *= 0.6 / np.linalg.norm(offsets, axis=1, keepdims=True)
    coords = np.array([_BALL], np.float64) + np.outer(numbers, DRIFT)[:, None] + offsets
    coords[0, 0], coords[2:, 1] = np.nan, np.nan
    exists = np.isfinite(coords).all(axis=-1)
    seen = exists[..., None] & (np.arange(num_views) > 0)
    return Tracks(
        coords=coords.astype(np.float32),
        visibs=seen.any(axis=-1),
        view_visibs=seen,
        sigma=np.where(exists, 0.01, 0.0).astype(np.float32),
        start=exists.argmax(axis=0),
        colors=draw.integers(0, 256, (NUM_TRACKS, 3)).astype(np.uint8),
        times=np.array(numbers) / IMAGE_FPS,
        ids=np.arange(NUM_TRACKS) + 100,
    )


def _render(
    numbers: tuple[int, ...],
    names: tuple[str, ...],
    size: tuple[int, int],
    moving: bool,
    scale: Scale,
    step: tuple[float, float, float],
) -> Predictions:
    transforms = fit_views([size] * len(names), max(size), 1)
    rows: dict[str, list[Tensor]] = {name: [] for name in ("color", "depth", "ball", "pose", "intrinsics")}
    for number in numbers:
        ball = torch.tensor(_BALL, dtype=torch.float64) + number * torch.tensor(step, dtype=torch.float64)
        for view in range(len(names)):
            shift = 0.04 * number if moving else 0.0
            angle = math.radians(-24 + 48 * view / max(len(names) - 1, 1)) + shift
            position = torch.tensor([3 * math.sin(angle), 0.1 * view - 0.5 - shift, 3 - 3 * math.cos(angle)]).double()
            pose = look_at(position, torch.tensor([0.0, 0.5, 3.2], dtype=torch.float64))
            intrinsics = _intrinsics(view, size, 1 + shift / 4)
            rays = camera_rays(intrinsics, size) @ pose[:3, :3]
            depth, _, is_ball = trace(position, rays, ball)
            color = _texture(position + rays * depth[..., None], is_ball, ball).permute(2, 0, 1)
            for name, value in zip(rows, (color, depth, is_ball, pose, intrinsics), strict=True):
                rows[name].append(value)
    maps = {name: torch.stack(values).unflatten(0, (1, len(numbers), len(names))) for name, values in rows.items()}
    depth = maps["depth"].float()
    return Predictions(
        times=torch.tensor(numbers, dtype=torch.float64) / IMAGE_FPS,
        view_names=names,
        scale=scale,
        pixel_transforms=transforms,
        cameras=Cameras(world_to_camera=maps["pose"], intrinsics=maps["intrinsics"], image_size=size),
        images=maps["color"].float(),
        valid=torch.isfinite(depth),
        depth=depth,
        depth_confidence=(1.25 - depth / 6).clamp(0.05, 1),
        dynamic=maps["ball"].float(),
    )


def _intrinsics(view: int, size: tuple[int, int], zoom: float) -> Tensor:
    (fx, fy), (x, y) = _FOCALS[view % len(_FOCALS)], _OFFSETS[view % len(_OFFSETS)]
    factor = zoom * size[1] / SIZE[1]
    return torch.tensor(
        [[factor * fx, 0, size[1] / 2 + x], [0, factor * fy, size[0] / 2 + y], [0, 0, 1]], dtype=torch.float64
    )


def _texture(points: Tensor, is_ball: Tensor, ball: Tensor) -> Tensor:
    """Return colours [H, W, 3] of points of the surfaces; those of the ball move with it."""
    still = 0.5 + 0.35 * torch.sin(points @ _WAVES.T + torch.tensor([0.3, 1.1, 2.5]))
    of_ball = torch.tensor([0.6, 0.45, 0.4]) + 0.3 * torch.sin((points - ball) @ _BALL_WAVES.T)
    return torch.where(is_ball[..., None], of_ball, still)
