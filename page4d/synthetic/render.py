"""Images, depth, moving pixels and object numbers of a world, by casting rays through all cameras at once."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from page4d.errors import ShapeError
from page4d.geometry.camera import Cameras, normalize_pixels, pixel_grid
from page4d.synthetic.intersection import nearest_hits
from page4d.synthetic.shade import shade
from page4d.synthetic.world import World

MAX_SAMPLES = 2**18
"""Rays times objects in memory at once: what a CPU cache holds; a GPU wants more."""


@dataclass(frozen=True, kw_only=True)
class Rendered:
    """What cameras see: RGB in [0, 1], z-depth in metres, True where an object moves, and object numbers.

    Depth, `dynamic` and `objects` (0 is the room) belong to the exact pixel centres; no pixel is empty.
    """

    images: Float[Tensor, "*cameras 3 H W"]
    depth: Float[Tensor, "*cameras H W"]
    dynamic: Bool[Tensor, "*cameras H W"]
    objects: Int[Tensor, "*cameras H W"]


def render(
    world: World,
    cameras: Cameras,
    time: Float[Tensor, "*cameras"] | float = 0.0,
    *,
    supersample: int = 1,
    dtype: torch.dtype = torch.float32,
    max_samples: int = MAX_SAMPLES,
) -> Rendered:
    """Render a world, or several behind leading axes, through cameras at a time in seconds.

    The leading axes of `cameras` are those of the world, then any others; `time` broadcasts to them. `supersample`
    squared rays a pixel make up its colour and soften shadows. Memory grows with `max_samples`, not with the image.

    Raises:
        ShapeError: if the axes of world and cameras do not belong together.
    """
    axes = tuple(cameras.intrinsics.shape[:-2])
    if axes[: len(world.batch)] != world.batch:
        raise ShapeError(f"worlds {world.batch} for cameras {axes}", "let the world's axes lead those of the cameras")
    flat, to_camera, intrinsics, instants = _flatten(world, cameras, time, dtype)
    poses = flat.object_to_world(instants)
    height, width = cameras.image_size
    pixels = pixel_grid(height, width, dtype=dtype, device=intrinsics.device).reshape(-1, 2)
    step = max(1, max_samples // max(1, poses.shape[0] * poses.shape[1]))
    parts = []
    for some in torch.split(pixels, step):
        center = _Rays.through(some, to_camera, intrinsics)
        distance, objects = nearest_hits(flat, poses, center.origins, center.directions)
        if supersample == 1:
            color = _shaded(flat, poses, center, distance, objects, 0, 1)
        else:
            color = _color(flat, poses, to_camera, intrinsics, some, supersample)
        parts.append((color, distance, torch.take_along_dim(flat.moving, objects, dim=1), objects))
    color, distance, dynamic, objects = (torch.cat(values, dim=1) for values in zip(*parts, strict=True))
    return Rendered(
        images=color.reshape(*axes, height, width, 3).movedim(-1, -3).contiguous(),
        depth=distance.reshape(*axes, height, width),
        dynamic=dynamic.reshape(*axes, height, width),
        objects=objects.reshape(*axes, height, width),
    )


@dataclass(frozen=True, kw_only=True)
class _Rays:
    """Viewing rays in the world whose directions reach z = 1, so that distances along them are z-depths."""

    origins: Float[Tensor, "M 1 3"]
    directions: Float[Tensor, "M P 3"]

    @staticmethod
    def through(pixels: Tensor, to_camera: Tensor, intrinsics: Tensor) -> "_Rays":
        plane = normalize_pixels(pixels.expand(len(intrinsics), *pixels.shape), intrinsics)
        rotation, translation = to_camera[:, :3, :3], to_camera[:, :3, 3]
        return _Rays(
            origins=-(translation[:, None] @ rotation),
            directions=torch.cat([plane, torch.ones_like(plane[..., :1])], dim=-1) @ rotation,
        )


def _color(
    world: World, poses: Tensor, to_camera: Tensor, intrinsics: Tensor, pixels: Tensor, supersample: int
) -> Float[Tensor, "M P 3"]:
    """Average the colours of a regular grid of rays in each pixel, each with its own point of the lamp."""
    total = pixels.new_zeros(())
    for sample in range(supersample**2):
        row, column = divmod(sample, supersample)
        shift = pixels.new_tensor([column + 0.5, row + 0.5]) / supersample - 0.5
        rays = _Rays.through(pixels + shift, to_camera, intrinsics)
        distance, objects = nearest_hits(world, poses, rays.origins, rays.directions)
        total = total + _shaded(world, poses, rays, distance, objects, sample, supersample**2)
    return total / supersample**2


def _shaded(
    world: World, poses: Tensor, rays: _Rays, distance: Tensor, objects: Tensor, sample: int, count: int
) -> Float[Tensor, "M P 3"]:
    """Shade what rays hit by the light of one of `count` points of the lamp."""
    points = rays.origins + distance[..., None] * rays.directions
    lamp = world.lights.position + world.lights.radius[:, None] * _disc(sample, count).to(points)
    return shade(world, poses, points, objects, lamp)


def _disc(sample: int, count: int) -> Float[Tensor, "3"]:
    """Return one of `count` points spread evenly over the level unit disc; the centre if there is one point.

    Source: Vogel, "A better way to construct the sunflower head" (1979), eq. 1.
    """
    angle = sample * math.pi * (3 - math.sqrt(5))
    radius = math.sqrt((sample + 0.5) / count) if count > 1 else 0.0
    return torch.tensor([radius * math.cos(angle), 0.0, radius * math.sin(angle)])


def _flatten(
    world: World, cameras: Cameras, time: Tensor | float, dtype: torch.dtype
) -> tuple[World, Tensor, Tensor, Tensor]:
    """Give every camera its own world and instant along one axis M."""
    axes, lead = tuple(cameras.intrinsics.shape[:-2]), len(world.batch)
    device = cameras.intrinsics.device

    def spread(tensor: Tensor) -> Tensor:
        tensor = tensor.to(device, dtype if tensor.is_floating_point() else tensor.dtype)
        own = tuple(tensor.shape[lead:])
        tensor = tensor.reshape((*tensor.shape[:lead], *(1,) * (len(axes) - lead), *own))
        return tensor.expand((*axes, *own)).reshape((-1, *own))

    instants = torch.as_tensor(time, dtype=dtype, device=device).expand(axes).reshape(-1)
    to_camera = cameras.world_to_camera.to(dtype).reshape(-1, 4, 4)
    return world.map(spread), to_camera, cameras.intrinsics.to(dtype).reshape(-1, 3, 3), instants
