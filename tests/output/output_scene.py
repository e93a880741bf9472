"""A ray-traced capture with known geometry: textured floor, wall and moving ball, and cameras on an arc."""

import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor

from page4d.conventions import Scale
from page4d.formats.maps import choose_depth_scale
from page4d.formats.tracks import Tracks, write_tracks
from page4d.geometry.camera import Cameras, camera_rays
from page4d.geometry.pixels import PixelTransform, fit_views
from page4d.geometry.transforms import invert_rigid, rigid
from page4d.io.json_records import write_model
from page4d.options import ReconstructSettings, describe_settings
from page4d.output.cameras import capture_cameras
from page4d.output.instant import (
    InstantFiles,
    InstantOptions,
    instant_writers,
    write_capture_cameras,
    write_instant,
    write_static,
)
from page4d.output.layout import OutputLayout
from page4d.output.record import (
    CountsRecord,
    LayersRecord,
    MotionRecord,
    NetworkRecord,
    RunRecord,
    SceneRecord,
    source_record,
    view_record,
)
from page4d.records import Predictions
from page4d.scene.records import Clock, Scene, View, ViewCamera

SIZES = ((480, 640), (480, 640), (640, 480), (360, 640))
NAMES = ("cam 1", "cam 2", "Kamera ü", "../../x")


def look_at(position: Tensor, target: Tensor) -> Tensor:
    """Return world_to_camera [4, 4] of a camera; y points down in the world."""
    forward = torch.nn.functional.normalize(target - position, dim=0)
    right = torch.nn.functional.normalize(
        torch.linalg.cross(torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64), forward), dim=0
    )
    rotation = torch.stack([right, torch.linalg.cross(forward, right), forward], dim=1)
    return invert_rigid(rigid(rotation, position))


def trace(origin: Tensor, rays: Tensor, ball: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the depth, the colour and the mask of the ball."""
    far = torch.full(rays.shape[:-1], math.inf, dtype=rays.dtype)
    floor = torch.where(rays[..., 1] > 1e-6, (1.0 - origin[1]) / rays[..., 1], far)
    wall = torch.where(rays[..., 2] > 1e-6, (5.0 - origin[2]) / rays[..., 2], far)
    to_origin = origin - ball
    a, b = rays.square().sum(-1), (rays * to_origin).sum(-1)
    discriminant = b * b - a * (to_origin.square().sum() - 0.6**2)
    sphere = torch.where(discriminant > 0, (-b - discriminant.clamp_min(0).sqrt()) / a, far)
    depths = torch.stack([torch.where(value > 0, value, far) for value in (floor, wall, sphere)])
    depth, which = depths.min(dim=0)
    point = origin + rays * depth.nan_to_num(posinf=0.0)[..., None]
    checker = ((point[..., 0] * 2).floor() + (point[..., 2] * 2).floor()) % 2
    tiles = ((point[..., 0] * 2).floor() + (point[..., 1] * 2).floor()) % 2
    stripes = ((point[..., 1] - ball[1]) * 8).floor() % 2
    palette = torch.tensor(
        [
            [0.85, 0.8, 0.7],
            [0.45, 0.5, 0.42],
            [0.55, 0.65, 0.8],
            [0.3, 0.4, 0.6],
            [0.9, 0.35, 0.2],
            [0.95, 0.75, 0.3],
        ],
        dtype=rays.dtype,
    )
    pattern = torch.stack([checker, tiles, stripes]).gather(0, which[None])[0]
    return depth, palette[(which * 2 + pattern.long())], which == 2


@cache
def made_capture(
    num_times: int = 2,
    long_side: int = 112,
    sizes: tuple[tuple[int, int], ...] = SIZES,
    scale: Scale = Scale.METRIC,
    names: tuple[str, ...] = NAMES,
) -> Predictions:
    """Return exact predictions of the scene, cached; the first view is static, the others move."""
    transforms = fit_views(list(sizes), long_side, 14)
    times = torch.arange(num_times, dtype=torch.float64) / 30 + 0.1
    maps: dict[str, list[list[Tensor]]] = {"images": [], "depth": [], "moving": [], "poses": [], "intrinsics": []}
    for index in range(num_times):
        ball = torch.tensor([0.35 * index - 0.3, 0.4, 3.2], dtype=torch.float64)
        row: dict[str, list[Tensor]] = {name: [] for name in maps}
        for view, transform in enumerate(transforms):
            angle = math.radians(-35 + 70 * view / max(len(sizes) - 1, 1))
            position = torch.tensor([3 * math.sin(angle), -0.5 + 0.1 * view, 3 - 3 * math.cos(angle)]).double()
            position = position + 0.01 * index * view
            pose = look_at(position, torch.tensor([0.0, 0.5, 3.2], dtype=torch.float64))
            for name, value in zip(row, _render(pose, position, ball, transform), strict=True):
                row[name].append(value)
        for name, values in row.items():
            maps[name].append(values)
    stacked = {name: torch.stack([torch.stack(row) for row in rows])[None] for name, rows in maps.items()}
    valid = torch.stack([transform.content_mask() for transform in transforms]).expand(1, num_times, -1, -1, -1)
    depth = torch.where(valid, stacked["depth"], 0.0).float()
    confidence = (1 - depth / 12).clamp(0, 1)
    cameras = Cameras(
        world_to_camera=stacked["poses"].float(),
        intrinsics=stacked["intrinsics"].float(),
        image_size=transforms[0].canvas_size,
    )
    return Predictions(
        times=times,
        view_names=names[: len(sizes)],
        scale=scale,
        pixel_transforms=transforms,
        cameras=cameras,
        images=stacked["images"].float(),
        valid=valid & torch.isfinite(depth),
        depth=depth,
        depth_confidence=confidence,
        dynamic=stacked["moving"].float(),
    )


def with_velocity(capture: Predictions, of_moving: tuple[float, float, float]) -> Predictions:
    """Add velocities: `of_moving` where something moves, 0 elsewhere, unknown in the left eighth of every view."""
    is_known = torch.arange(capture.depth.shape[-1]) >= capture.depth.shape[-1] // 8
    velocity = (capture.dynamic * is_known)[..., None] * torch.tensor(of_moving)
    sigma = torch.where(is_known, 0.01 + 0.02 * capture.dynamic, 0.0)
    return replace(capture, velocity=velocity, velocity_sigma=sigma)


def motion_record(num_views: int, num_times: int, motion_step: float, tracks: int | None = None) -> MotionRecord:
    """Return the record of true velocities."""
    return MotionRecord(
        method="truth",
        motion_step=motion_step,
        still_limit_px=0.3,
        sigma_factor=1.0,
        noise=[1.0] * num_views,
        differences=["forward", *["central"] * (num_times - 2), "backward"][:num_times],
        known=0.875,
        still=0.8,
        one_view=0.0,
        tracks=tracks,
    )


def view_of(name: str, clock: Clock | None = None, camera: ViewCamera | None = None, suffix: str = ".mp4") -> View:
    source = SimpleNamespace(label=f"{name}{suffix}")
    return View(name=name, source=source, clock=clock or Clock(), indices=(), camera=camera)


def background_of(instant: Predictions) -> Predictions:
    """Return an instant with holes where something moves, and without motion masks."""
    return replace(instant, valid=instant.valid & (instant.dynamic < 0.5), dynamic=None)


def export(
    folder: Path,
    capture: Predictions,
    status: str = "complete",
    scale_of: Predictions | None = None,
    scene: Scene | None = None,
    layers: bool = False,
    tracks: Tracks | None = None,
    **options: object,
) -> InstantFiles:
    """Write a complete output folder, as a run does whose first chunk is `scale_of`.

    With `scene` it has the records of the files, with `layers` the static points of the middle instant.
    """
    layout = OutputLayout(folder, capture.view_names)
    first = scale_of or capture
    depth_scale = choose_depth_scale(first.depth, first.valid, first.scale)
    settings = InstantOptions(depth_scale=depth_scale, **{"writers": instant_writers(layers=layers), **options})
    written, record = InstantFiles(), None
    for index in range(capture.num_times):
        written += write_instant(layout, index, capture.at_times(index, index + 1), settings)
    if layers:
        middle = capture.num_times // 2
        background = background_of(capture.at_times(middle, middle + 1))
        record = LayersRecord(static_points=write_static(layout, background, settings).num_points)
    if tracks is not None:
        write_tracks(layout.tracks, tracks)
    files = write_capture_cameras(layout, capture_cameras(capture))
    sizes, num_tracks = (len(capture.view_names), capture.num_times), None if tracks is None else tracks.num_tracks
    views = [(view_of(name), None) for name in capture.view_names]
    if scene is not None:
        views = [(view, source_record(view)) for view in scene.views]
    run = RunRecord(
        status=status,
        settings={} if scene is None else describe_settings(scene.options, ReconstructSettings()),
        scale=capture.scale,
        unit=capture.scale.unit,
        depth_scale=depth_scale,
        scene=SceneRecord(name="synthetic" if scene is None else scene.name),
        views=[
            view_record(layout, view, transform, source)
            for (view, source), transform in zip(views, capture.pixel_transforms, strict=True)
        ],
        times=capture.times.tolist(),
        network=NetworkRecord(name="truth", trained=True),
        counts=CountsRecord(clipped_depths=written.clipped_depths, points=written.num_points),
        layers=record,
        motion=None if capture.velocity is None else motion_record(*sizes, settings.motion_step, num_tracks),
    )
    return written + InstantFiles((*files, write_model(layout.run, run)))


def _render(pose: Tensor, position: Tensor, ball: Tensor, transform: PixelTransform) -> tuple[Tensor, ...]:
    height, width = transform.original_size
    focal = 0.9 * max(height, width)
    original = torch.tensor([[focal, 0, width / 2 + 3], [0, focal * 1.01, height / 2 - 2], [0, 0, 1]]).double()
    intrinsics = transform.intrinsics_to_network(original)
    rays = camera_rays(intrinsics, transform.canvas_size) @ pose[:3, :3]
    depth, color, moving = trace(position, rays, ball)
    return color.permute(2, 0, 1), depth, moving.double(), pose, intrinsics
