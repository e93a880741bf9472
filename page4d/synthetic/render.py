"""Ray-cast radiance, depth, motion masks and object indices of worlds, for all cameras at once or row by row."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from page4d.errors import ShapeError
from page4d.geometry.camera import Cameras
from page4d.synthetic.camera_rigs import Rig
from page4d.synthetic.rays import Candidates, RayPackets, closest_hit, cull
from page4d.synthetic.shade import SHADOW_PARTS, ShadingContext, shade
from page4d.synthetic.world import Snapshots, World

MAX_DEPTH = 65.0
"""Depth in metres beyond which everything counts as sky: the range of 16-bit millimetres."""

PACKET_SIZE = 64
"""Rays per packet: a tile of 8x8 px, or part of a row."""


@dataclass(frozen=True, kw_only=True)
class Rendered:
    """Linear radiance, z-depth in metres, motion mask and object indices (0: room or ground) of every pixel.

    Depth, `dynamic` and `objects` are sampled at pixel centres. Depth is 0 in the sky.
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
    """Render B worlds at T instants through V cameras each.

    The radiance of pixels at the edges of objects and shadows is the mean over `supersample` squared rays.

    Raises:
        ShapeError: if the leading axes of worlds, cameras and times differ.
    """
    batch, instants, views = cameras.intrinsics.shape[:3]
    if (len(world.shape), *times.shape) != (batch, batch, instants):
        raise ShapeError(
            f"{len(world.shape)} worlds at times {tuple(times.shape)} for cameras {tuple(cameras.intrinsics.shape)}",
            "pass cameras [B, T, V] and times [B, T] for B worlds",
        )
    snapshots = Snapshots.of(world, times, dtype)
    rays = _Rays(cameras, dtype)
    packets = rays.packets()
    candidates = cull(snapshots, packets)
    distance, objects = closest_hit(snapshots, packets, candidates)
    distance = torch.where(distance > MAX_DEPTH, 0.0, distance)
    context = ShadingContext.of(world, snapshots, dtype)
    shading = shade(context, packets, distance, objects, rays.pixel)
    light = shading.light
    if supersample > 1:
        part = rays.cut(_at_edges(rays.join(shading.part(objects), (-1,)))).flatten(0, 1)
        light = _supersampled(light, context, rays, packets, candidates, part.nonzero(), supersample)
    number = objects + packets.instant[:, None] * snapshots.shape.shape[1]
    moving = world.moving.repeat_interleave(instants, 0).flatten()[number]
    leading = (batch, instants, views)
    return Rendered(
        light=torch.stack([rays.join(channel, leading) for channel in light], dim=3),
        depth=rays.join(distance, leading),
        dynamic=rays.join(moving & (distance > 0), leading),
        objects=rays.join(objects, leading),
    )


class _Rays:
    """Camera rays of all images in tiles; tiles at the right and bottom edges extend beyond the image.

    Directions have z = 1 in the camera frame, so distances along them are z-depths.
    """

    def __init__(self, cameras: Cameras, dtype: torch.dtype) -> None:
        self.size = cameras.image_size
        self.instants, self.views = cameras.intrinsics.shape[:2].numel(), cameras.intrinsics.shape[2]
        rows = min(8, self.size[0])
        self.tile = (rows, PACKET_SIZE // rows)
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
        """Number of tiles per image."""
        return self.count[0] * self.count[1]

    @property
    def pixel(self) -> Float[Tensor, "K 1"]:
        """Width of a pixel at depth 1."""
        return (1 / self._focal).repeat_interleave(self.tiles)[:, None]

    def packets(self) -> RayPackets:
        """Return one packet per tile."""
        first, second, third = self._back[:, :, :, None, None].unbind(1)
        direction = (first * self._x + second * self._y + third).flatten(1, 2)
        image = torch.arange(len(self._focal), device=direction.device)
        return RayPackets(
            instant=(image // self.views).repeat_interleave(self.tiles),
            origin=self._center.repeat_interleave(self.tiles, 1),
            direction=direction,
        )

    def subpixel_rays(self, packet: Tensor, place: Tensor, supersample: int) -> tuple[Tensor, Tensor]:
        """Return origins [3, E] and directions [3, E, s s] of a regular grid of rays over E pixels."""
        image, tile = packet // self.tiles, packet % self.tiles
        step = (torch.arange(supersample, dtype=self._x.dtype, device=packet.device) + 0.5) / supersample - 0.5
        x = self._x[tile, place][:, None] + step.repeat(supersample)
        y = self._y[tile, place][:, None] + step.repeat_interleave(supersample)
        first, second, third = self._back[..., image][..., None].unbind(1)
        return self._center[:, image], first * x + second * y + third

    def cut(self, image: Tensor) -> Tensor:
        """Split [..., rows, columns] into tiles [..., tiles, P], padded with zeros."""
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
        """Join tiles [K, P] to images [*leading, H, W]."""
        rows, columns = (size // part for size, part in zip(self.tile, self.block, strict=True))
        split = values.reshape(*leading, *self.count, rows, columns, *self.block)
        whole = split.movedim((-5, -4, -3, -2), (-3, -5, -2, -4)).flatten(-3).flatten(-4, -2)
        return whole[..., : self.size[0], : self.size[1]].contiguous()


def render_rolling(
    world: World,
    rig: Rig,
    times: Float[Tensor, "B T"],
    image_size: tuple[int, int],
    readout_s: float,
    *,
    supersample: int = 1,
) -> Rendered:
    """Render images whose rows are read out from top to bottom over `readout_s` seconds, centred on `times`.

    Depth, motion and object indices of a row are those of its own instant and camera pose. The rig's cameras at
    `times` are exact for the middle row only.
    """
    height, width = image_size
    rows = torch.arange(height, dtype=times.dtype, device=times.device)
    instants = (times[..., None] + ((rows + 0.5) / height - 0.5) * readout_s).flatten(1)
    whole = rig.cameras(instants, image_size)
    intrinsics = whole.intrinsics.clone()
    intrinsics[..., 1, 2] -= rows.repeat(times.shape[1])[:, None]
    cameras = Cameras(world_to_camera=whole.world_to_camera, intrinsics=intrinsics, image_size=(1, width))
    rendered = render(world, cameras, instants, supersample=supersample)

    def join_rows(values: Tensor) -> Tensor:
        """Join the rows [B, T H, V, ..., 1, W] to images."""
        split = values.reshape(len(times), times.shape[1], height, *values.shape[2:])
        return split.transpose(2, -2).squeeze(2)

    return Rendered(**{name: join_rows(value) for name, value in vars(rendered).items()})


def _at_edges(part: Int[Tensor, "M H W"]) -> Bool[Tensor, "M H W"]:
    """Return the pixels whose label differs from that of a 4-neighbour."""
    edge = torch.zeros_like(part, dtype=torch.bool)
    across, down = part[:, :, 1:] != part[:, :, :-1], part[:, 1:] != part[:, :-1]
    edge[:, :, 1:] |= across
    edge[:, :, :-1] |= across
    edge[:, 1:] |= down
    edge[:, :-1] |= down
    return edge


def _supersampled(
    light: Float[Tensor, "3 K P"],
    context: ShadingContext,
    rays: _Rays,
    packets: RayPackets,
    candidates: Candidates,
    edges: Int[Tensor, "E 2"],
    supersample: int,
) -> Float[Tensor, "3 K P"]:
    """Replace the radiance of `edges` (packet, index within it) by the mean over a grid of rays per pixel."""
    if not len(edges):
        return light
    instants = len(context.number)
    instant = packets.instant[edges[:, 0]]
    # Culling expects the same number of packets per instant: the last edge pixel of an instant is repeated.
    sizes = torch.bincount(instant, minlength=instants)
    place = torch.arange(int(sizes.max()), device=edges.device)
    row = (sizes.cumsum(0) - sizes)[:, None] + torch.minimum(place, (sizes[:, None] - 1).clamp(min=0))
    packet, pixel = edges[row.flatten().clamp(max=len(edges) - 1)].unbind(1)
    origin, direction = rays.subpixel_rays(packet, pixel, supersample)
    own = torch.arange(instants, device=edges.device).repeat_interleave(len(place))
    fine = RayPackets(instant=own, origin=origin, direction=direction)
    distance, objects = closest_hit(context.snapshots, fine, candidates.for_packets(packet, len(packets.instant)))
    distance = torch.where(distance > MAX_DEPTH, 0.0, distance)
    better = shade(context, fine, distance, objects, rays.pixel[packet]).light.mean(-1)
    real = (place < sizes[:, None]).flatten()
    light = light.clone()
    light[:, packet[real], pixel[real]] = better[:, real]
    return light
