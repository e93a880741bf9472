"""Small worlds and cameras in double precision for the tests of the renderer."""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from page4d.choices import SceneFamily, Subject
from page4d.conventions import Scale
from page4d.geometry.camera import Cameras, pixel_grid, project, world_points
from page4d.geometry.pixels import PixelTransform, fit_views
from page4d.geometry.transforms import invert_rigid, transform_points
from page4d.lab.synthetic.capture import RenderedFrame, SyntheticCapture, visible_points
from page4d.lab.synthetic.furnish import sample_world
from page4d.lab.synthetic.materials import Appearance, develop
from page4d.lab.synthetic.render import Rendered, render
from page4d.lab.synthetic.rigs import RigSpec, build_rig, sample_rig
from page4d.lab.synthetic.world import Shape, Snapshots, Worlds, build_world
from page4d.records import Predictions

SIZE = (24, 32)
EXACT = 1e-9


@dataclass(frozen=True)
class Setting:
    """Scene of a test: seed, rig family, subject and surroundings."""

    seed: int
    family: SceneFamily = SceneFamily.ARC
    subject: Subject | None = None
    outdoors: bool = False

    @property
    def rig(self) -> RigSpec:
        views = 1 if self.family is SceneFamily.SINGLE else 3
        return sample_rig(self.seed, self.family, views, None, 0.5, self.subject)

    @property
    def world(self) -> Worlds:
        return build_world([sample_world(self.seed, self.rig, float(self.outdoors))])

    def cameras(self, times: Tensor, size: tuple[int, int] = SIZE) -> Cameras:
        return build_rig([self.rig]).cameras(times, size)


ROOM = Setting(3, SceneFamily.RING)
TABLE = Setting(1, subject=Subject.TABLE)
GARDEN = Setting(2, SceneFamily.HANDHELD, subject=Subject.PEOPLE, outdoors=True)
PATIO = Setting(8, SceneFamily.SINGLE, subject=Subject.TABLE, outdoors=True)
SETTINGS = (ROOM, TABLE, GARDEN, PATIO)

TIMES = torch.tensor([[0.3, 1.1]], dtype=torch.float64)


def filmed(
    setting: Setting, times: Tensor = TIMES, size: tuple[int, int] = SIZE, **options: object
) -> tuple[Worlds, Cameras, Rendered]:
    """Render a setting in double precision."""
    world, cameras = setting.world, setting.cameras(times, size)
    return world, cameras, render(world, cameras, times, **({"dtype": torch.float64} | options))


def frames_together(capture: SyntheticCapture) -> dict[tuple[int, int], RenderedFrame]:
    """Render all frames of a capture at once, by time and view."""
    times = torch.from_numpy(capture.times)[None]
    maps = render(capture.world, capture.cameras[None], times, supersample=capture.supersample)
    images = develop(maps.light, capture._appearance, [capture.seed])
    return {
        (time, view): RenderedFrame(
            image=images[0, time, view],
            **{name: getattr(maps, name)[0, time, view] for name in ("depth", "dynamic", "objects")},
        )
        for time in range(capture.num_times)
        for view in range(capture.num_views)
    }


def rendered_on(
    capture: SyntheticCapture, view: int, times: slice, pixels: PixelTransform
) -> tuple[Cameras, Rendered]:
    """Render instants of a view on a network canvas; return the cameras [T], and maps [1, T, 1, ...]."""
    cameras = capture.cameras_of(view)[times]
    cameras = replace(
        cameras, intrinsics=pixels.intrinsics_to_network(cameras.intrinsics), image_size=pixels.canvas_size
    )
    at = torch.from_numpy(capture.times)[None, times]
    return cameras, render(capture.world, cameras[None, :, None], at, supersample=capture.supersample)


@lru_cache(maxsize=2000)
def maps_on(capture: SyntheticCapture, time: int, view: int, pixels: PixelTransform) -> dict[str, Tensor]:
    """Return the depth, motion mask and object indices [H, W] of one frame on a network canvas."""
    _, maps = rendered_on(capture, view, slice(time, time + 1), pixels)
    return {name: getattr(maps, name)[0, 0, 0] for name in ("depth", "dynamic", "objects")}


def predictions_of(
    capture: SyntheticCapture, start: int = 0, stop: int | None = None, size: int | None = None, multiple: int = 1
) -> Predictions:
    """Return the ground truth of instants as a perfect prediction, at the pixels of the videos, or of `fit_views`."""
    times, sizes = slice(start, stop), list(capture.view_sizes)
    pixels = tuple(PixelTransform(original_size=one, content_size=one, canvas_size=one) for one in sizes)
    pixels = pixels if size is None else fit_views(sizes, size, multiple)
    frames = [rendered_on(capture, view, times, transform) for view, transform in enumerate(pixels)]
    depth, dynamic = (torch.cat([getattr(maps, name) for _, maps in frames], dim=2) for name in ("depth", "dynamic"))
    images = []
    for view, (_, maps) in enumerate(frames):
        look = Appearance(**{name: value[:, view : view + 1] for name, value in vars(capture._appearance).items()})
        images.append(develop(maps.light, look, [capture.seed], first_frame=start, first_view=view))
    return Predictions(
        times=torch.from_numpy(capture.times[times]),
        view_names=capture.view_names,
        scale=Scale.METRIC,
        pixel_transforms=pixels,
        cameras=Cameras(
            world_to_camera=torch.stack([cameras.world_to_camera for cameras, _ in frames], dim=1)[None].float(),
            intrinsics=torch.stack([cameras.intrinsics for cameras, _ in frames], dim=1)[None].float(),
            image_size=pixels[0].canvas_size,
        ),
        images=torch.round(torch.cat(images, dim=2) * 255) / 255,
        valid=depth > 0,
        depth=depth,
        depth_confidence=torch.ones_like(depth),
        dynamic=dynamic.to(depth.dtype),
    )


def distance_to_surface(world: Worlds, points: Tensor, objects: Tensor, time: Tensor) -> Tensor:
    """Return the signed distance (or a lower bound) of world points from objects by implicit equations."""
    poses = world.object_to_world(time.reshape(1, 1))[0, 0]
    local = transform_points(invert_rigid(poses)[objects], points)
    return distance_from_origin(world.shape[0][objects], world.half_size[0][objects], local)


def distance_from_origin(shape: Tensor, half: Tensor, local: Tensor) -> Tensor:
    """Return the same for points in the objects' frames."""
    box = (local.abs() - half).amax(-1)
    ball = ((local / half).norm(dim=-1) - 1) * half.amin(-1)
    spine = torch.zeros_like(local)
    reach = half[..., 1] - half[..., 0]
    spine[..., 1] = torch.maximum(torch.minimum(local[..., 1], reach), -reach)
    distance = (local - spine).norm(dim=-1) - half[..., 0]
    by_shape = {Shape.ROOM: -box, Shape.GROUND: -local[..., 1], Shape.BOX: box, Shape.ELLIPSOID: ball}
    for kind, value in by_shape.items():
        distance = torch.where(shape == kind, value, distance)
    return torch.where(shape == Shape.ABSENT, torch.inf, distance)


def single_rays(cameras: Cameras, pixels: Tensor) -> Cameras:
    """Make cameras [1, 1, n] of one pixel each, whose centres are pixel coordinates of `cameras` [n]."""
    intrinsics = cameras.intrinsics.clone()
    intrinsics[:, :2, 2] += 0.5 - pixels
    return Cameras(
        world_to_camera=cameras.world_to_camera[None, None], intrinsics=intrinsics[None, None], image_size=(1, 1)
    )


class Flow(NamedTuple):
    """Exact flow of images [B]: scene flow in metres, optical flow in px, and whether the target shows a point."""

    scene: Tensor
    optical: Tensor
    visible: Tensor


def exact_flow(
    world: Worlds, depth: Tensor, objects: Tensor, cameras: tuple[Cameras, Cameras], times: Tensor
) -> Flow:
    """Compute the flow from cameras [B] at the first of times [B, 2] to cameras at the second, 0 in the sky."""
    poses = world.object_to_world(times)
    batch = torch.arange(len(depth))[:, None, None]
    motion = (poses[:, 1] @ invert_rigid(poses[:, 0])).to(depth.dtype)[batch, objects]
    first, second = (one.to(depth.dtype) for one in cameras)
    points = world_points(depth, first)
    moved = (motion[..., :3, :3] @ points[..., None])[..., 0] + motion[..., :3, 3]
    pixels, target_depth = project(transform_points(second.world_to_camera, moved), second.intrinsics)
    known = depth > 0
    shown = visible_points(Snapshots.of(world, times[:, 1:], depth.dtype), second, moved)
    optical = pixels - pixel_grid(*first.image_size, dtype=depth.dtype)
    return Flow(
        torch.where(known[..., None], moved - points, 0.0),
        torch.where((known & (target_depth > 0))[..., None], optical, 0.0),
        known & shown,
    )


def flow_between(capture: SyntheticCapture, source: tuple[int, int], target: tuple[int, int]) -> Flow:
    """Return the flow from one frame (time, view) of a capture to another one."""
    frame = capture.rendered(*source)
    first, second = (capture.cameras_of(view)[[time]] for time, view in (source, target))
    times = torch.from_numpy(capture.times)[None, [source[0], target[0]]]
    return exact_flow(capture.world, frame.depth[None], frame.objects[None], (first, second), times)
