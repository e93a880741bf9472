"""Light, depth, moving pixels and object numbers of worlds, by casting rays through all cameras at once."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from page4d.errors import ShapeError
from page4d.geometry.camera import Cameras
from page4d.synthetic.rays import Bundles, Pairs, nearest, reachable
from page4d.synthetic.shade import SHADOW_PARTS, Scenes, shade
from page4d.synthetic.world import Instants, World

FARTHEST = 65.0
"""Depth in metres beyond which everything is taken for sky: what 16 bits of millimetres hold."""

TILE = 64
"""Pixels of a bundle of rays: 8 by 8, or a piece of a row."""


@dataclass(frozen=True, kw_only=True)
class Rendered:
    """What cameras see: linear light, z-depth in metres, True where an object moves, and object numbers.

    Depth, `dynamic` and `objects` (0 is the room or ground) belong to the exact pixel centres. In the sky depth is 0.
    """

    light: Float[Tensor, "B T V 3 H W"]
    depth: Float[Tensor, "B T V H W"]
    dynamic: Bool[Tensor, "B T V H W"]
    objects: Int[Tensor, "B T V H W"]


def render(
    world: World,
    cameras: Cameras,
    times: Float[Tensor, "B T"],
    *,
    supersample: int = 1,
    dtype: torch.dtype = torch.float32,
) -> Rendered:
    """Render B worlds at T instants each through V cameras each.

    `supersample` squared rays make up the light of pixels at the edges of objects and shadows.

    Raises:
        ShapeError: if the axes of worlds, cameras and times do not belong together.
    """
    batch, instants, views = cameras.intrinsics.shape[:3]
    if (len(world.shape), *times.shape) != (batch, batch, instants):
        raise ShapeError(
            f"{len(world.shape)} worlds at times {tuple(times.shape)} for cameras {tuple(cameras.intrinsics.shape)}",
            "give cameras [B, T, V] and times [B, T] for B worlds",
        )
    frozen = Instants.of(world, times, dtype)
    rays = _Rays(cameras, dtype)
    bundles = rays.bundles()
    pairs = reachable(frozen, bundles)
    distance, objects = nearest(frozen, bundles, pairs)
    distance = torch.where(distance > FARTHEST, 0.0, distance)
    scenes = Scenes.of(world, frozen, dtype)
    seen = shade(scenes, bundles, distance, objects, rays.pixel)
    light = seen.light
    if supersample > 1:
        part = rays.cut(_at_edges(rays.join(seen.part(objects), (-1,)))).flatten(0, 1)
        light = _refined(light, scenes, rays, bundles, pairs, part.nonzero(), supersample)
    number = objects + bundles.instant[:, None] * frozen.shape.shape[1]
    moving = world.moving.repeat_interleave(instants, 0).flatten()[number]
    leading = (batch, instants, views)
    return Rendered(
        light=torch.stack([rays.join(channel, leading) for channel in light], dim=3),
        depth=rays.join(distance, leading),
        dynamic=rays.join(moving & (distance > 0), leading),
        objects=rays.join(objects, leading),
    )


class _Rays:
    """The rays of all images, in tiles; tiles at the far edges reach beyond their image.

    Directions reach z = 1 in the camera, so that distances along them are z-depths.
    """

    def __init__(self, cameras: Cameras, dtype: torch.dtype) -> None:
        self.size = cameras.image_size
        self.instants, self.views = cameras.intrinsics.shape[:2].numel(), cameras.intrinsics.shape[2]
        rows = min(8, self.size[0])
        self.tile = (rows, TILE // rows)
        self.block = (4, 4) if rows == 8 else (rows, self.tile[1] // SHADOW_PARTS)
        self.count = (-(-self.size[0] // self.tile[0]), -(-self.size[1] // self.tile[1]))
        to_world = cameras.camera_to_world
        back = to_world[..., :3, :3] @ torch.linalg.inv(cameras.intrinsics)
        self._back = back.to(dtype).reshape(-1, 9).T.reshape(3, 3, -1)
        self._center = to_world[..., :3, 3].to(dtype).reshape(-1, 3).T
        self._focal = cameras.intrinsics[..., 0, 0].to(dtype).reshape(-1)
        y = torch.arange(self.count[0] * self.tile[0], dtype=dtype, device=back.device)[:, None] + 0.5
        x = torch.arange(self.count[1] * self.tile[1], dtype=dtype, device=back.device)[None, :] + 0.5
        self._x, self._y = (self.cut(axis.expand(len(y), x.shape[1])) for axis in (x, y))

    @property
    def tiles(self) -> int:
        """Number of tiles of an image."""
        return self.count[0] * self.count[1]

    @property
    def pixel(self) -> Float[Tensor, "K 1"]:
        """Size of a pixel at depth 1."""
        return (1 / self._focal).repeat_interleave(self.tiles)[:, None]

    def bundles(self) -> Bundles:
        """Return one bundle a tile."""
        first, second, third = self._back[:, :, :, None, None].unbind(1)
        direction = (first * self._x + second * self._y + third).flatten(1, 2)
        image = torch.arange(len(self._focal), device=direction.device)
        return Bundles(
            instant=(image // self.views).repeat_interleave(self.tiles),
            origin=self._center.repeat_interleave(self.tiles, 1),
            direction=direction,
        )

    def within(self, bundle: Tensor, place: Tensor, supersample: int) -> tuple[Tensor, Tensor]:
        """Return origins [3, E] and directions [3, E, s s] of rays spread over some pixels."""
        image, tile = bundle // self.tiles, bundle % self.tiles
        step = (torch.arange(supersample, dtype=self._x.dtype, device=bundle.device) + 0.5) / supersample - 0.5
        x = self._x[tile, place][:, None] + step.repeat(supersample)
        y = self._y[tile, place][:, None] + step.repeat_interleave(supersample)
        first, second, third = self._back[..., image][..., None].unbind(1)
        return self._center[:, image], first * x + second * y + third

    def cut(self, image: Tensor) -> Tensor:
        """Turn [..., rows, columns] into [..., tiles, P], with whatever the last pixels hold beyond the edges."""
        height, width = self.count[0] * self.tile[0], self.count[1] * self.tile[1]
        if image.shape[-2:] != (height, width):
            whole = image.new_zeros(*image.shape[:-2], height, width)
            whole[..., : image.shape[-2], : image.shape[-1]] = image
            image = whole
        rows, columns = (size // part for size, part in zip(self.tile, self.block, strict=True))
        split = image.reshape(
            *image.shape[:-2], self.count[0], rows, self.block[0], self.count[1], columns, self.block[1]
        )
        return split.movedim((-3, -5, -2, -4), (-5, -4, -3, -2)).flatten(-4).flatten(-3, -2)

    def join(self, values: Tensor, leading: tuple[int, ...]) -> Tensor:
        """Turn [K, P] into images [*leading, H, W]."""
        rows, columns = (size // part for size, part in zip(self.tile, self.block, strict=True))
        split = values.reshape(*leading, *self.count, rows, columns, *self.block)
        whole = split.movedim((-5, -4, -3, -2), (-3, -5, -2, -4)).flatten(-3).flatten(-4, -2)
        return whole[..., : self.size[0], : self.size[1]].contiguous()


def _at_edges(part: Int[Tensor, "M H W"]) -> Bool[Tensor, "M H W"]:
    """Return the pixels that show something else than a neighbour beside, above or below."""
    edge = torch.zeros_like(part, dtype=torch.bool)
    across, down = part[:, :, 1:] != part[:, :, :-1], part[:, 1:] != part[:, :-1]
    edge[:, :, 1:] |= across
    edge[:, :, :-1] |= across
    edge[:, 1:] |= down
    edge[:, :-1] |= down
    return edge


def _refined(
    light: Float[Tensor, "3 K P"],
    scenes: Scenes,
    rays: _Rays,
    bundles: Bundles,
    pairs: Pairs,
    rough: Int[Tensor, "E 2"],
    supersample: int,
) -> Float[Tensor, "3 K P"]:
    """Replace the light of some pixels, given by bundle and place in it, by the mean over finer rays."""
    if not len(rough):
        return light
    instants = len(scenes.number)
    instant = bundles.instant[rough[:, 0]]
    # Equally many bundles an instant, as rays want them: the last pixel of an instant's list is repeated.
    sizes = torch.bincount(instant, minlength=instants)
    place = torch.arange(int(sizes.max()), device=rough.device)
    row = (sizes.cumsum(0) - sizes)[:, None] + torch.minimum(place, (sizes[:, None] - 1).clamp(min=0))
    bundle, pixel = rough[row.flatten().clamp(max=len(rough) - 1)].unbind(1)
    origin, direction = rays.within(bundle, pixel, supersample)
    own = torch.arange(instants, device=rough.device).repeat_interleave(len(place))
    fine = Bundles(instant=own, origin=origin, direction=direction)
    distance, objects = nearest(scenes.frozen, fine, pairs.of(bundle, len(bundles.instant)))
    distance = torch.where(distance > FARTHEST, 0.0, distance)
    better = shade(scenes, fine, distance, objects, rays.pixel[bundle]).light.mean(-1)
    real = (place < sizes[:, None]).flatten()
    light = light.clone()
    light[:, bundle[real], pixel[real]] = better[:, real]
    return light
