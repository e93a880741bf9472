"""Ray-cast radiance, depth, motion masks and object indices of worlds, for all cameras at once or row by row.

Light of visible points: texture, one light with shadows, ambient light, fill light, and the sky.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from page4d.errors import ShapeError
from page4d.geometry.camera import Cameras
from page4d.geometry.time_axis import map_tensors
from page4d.lab.synthetic.materials import Texture, noise, smoothstep
from page4d.lab.synthetic.rays import Candidates, RayPackets, closest_hit, cull, occluded
from page4d.lab.synthetic.rigs import CameraRigs
from page4d.lab.synthetic.world import ROOM_FACES, Lights, Shape, Snapshots, Worlds

SHADOW_GAP = 2e-3
"""Offset in metres of shadow rays from the surface, against self-shadowing."""

OCCLUSION_REACH, OCCLUSION_STRENGTH = 0.3, 0.4
"""Decay length in metres and maximum of the ambient occlusion near walls and floor."""


@dataclass(frozen=True, kw_only=True)
class ShadingContext:
    """Worlds at S instants with their textures and lights; `number` is the world index of each instant."""

    snapshots: Snapshots
    texture: Texture
    lights: Lights
    number: Int[Tensor, " S"]

    @staticmethod
    def of(world: Worlds, snapshots: Snapshots, dtype: torch.dtype) -> "ShadingContext":
        """Cast textures and lights to the rendering precision."""
        cast = map_tensors(world, lambda value: value.to(dtype) if value.is_floating_point() else value)
        instants = len(snapshots.shape) // len(world.shape)
        number = torch.arange(len(snapshots.shape), device=snapshots.shape.device) // instants
        return ShadingContext(snapshots=snapshots, texture=cast.texture, lights=cast.lights, number=number)


def shade(
    context: ShadingContext,
    packets: RayPackets,
    distance: Float[Tensor, "K P"],
    objects: Int[Tensor, "K P"],
    pixel: Float[Tensor, "K 1"],
) -> tuple[Float[Tensor, "3 K P"], Int[Tensor, "K P"]]:
    """Return the linear radiance along rays that hit `objects` at `distance`, and labels of what they hit.

    A label stands for a combination of object, face and shadow. The distance is 0 for the sky. `pixel` is the width
    of a pixel at distance 1.
    """
    sky = distance == 0
    # Rays into the sky get the largest distance of their packet, which keeps the shadow rays coherent.
    filled = torch.where(sky, distance.amax(-1, keepdim=True).clamp(min=1.0), distance)
    shape = distance.shape
    point = torch.addcmul(packets.origin[..., None], packets.direction, filled)
    normal, local, face = _surface(context.snapshots, packets.instant, objects, point)
    number = context.number[packets.instant]
    textures = context.texture.pattern.shape[1]
    which = number[:, None] * textures + torch.where(objects == 0, face, objects + (ROOM_FACES - 1))
    squared_length = packets.direction.square().sum(0)
    slant = (normal * packets.direction).sum(0).abs() * squared_length.rsqrt()
    footprint = filled * pixel / slant.clamp(min=0.3)
    albedo = context.texture.colors(which.flatten(), local.flatten(1), footprint.flatten()).reshape(3, *shape)
    lights = {name: value[number] for name, value in vars(context.lights).items()}
    direct, dark = _direct_light(context.snapshots, packets.instant, lights, point, normal, sky)
    ambient = (0.75 - 0.25 * normal[1]) * _ambient_visibility(context.snapshots, packets.instant, point, normal)
    fill = -(normal * lights["fill_direction"].T[..., None]).sum(0).clamp(max=0)
    total = direct * lights["color"].T[..., None] + ambient * lights["ambient"].T[..., None]
    light = albedo * (total + fill * lights["fill"].T[..., None])
    if bool(sky.any()):
        ray = packets.direction * squared_length.rsqrt()
        light = torch.where(sky, _sky(lights["sky"].permute(1, 2, 0)[..., None], ray), light)
    return light, (objects * 8 + face) * 2 + dark


def _direct_light(
    snapshots: Snapshots, instant: Tensor, lights: dict[str, Tensor], point: Tensor, normal: Tensor, sky: Tensor
) -> tuple[Float[Tensor, "K P"], Bool[Tensor, "K P"]]:
    """Return the irradiance factor of the light at each point, and True where the point is in shadow."""
    light = lights["position"].T
    from_light = torch.add(point, normal, alpha=SHADOW_GAP) - light[..., None]
    squared = from_light.square().sum(0)
    facing = -(normal * from_light).sum(0) * squared.rsqrt()
    lit = (facing > 0) & ~sky
    shadow = RayPackets(instant=instant, origin=light, direction=from_light)
    dark = occluded(snapshots, shadow, cull(snapshots, shadow, 1.0, lit.any(-1))) & lit
    faded = facing / (1 + squared / lights["reach"][:, None].square())
    return faded * (lit & ~dark), dark


def _surface(snapshots: Snapshots, instant: Tensor, objects: Tensor, point: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return points on objects as normals [3, K, P] in the world, positions [3, K, P] in unit frames, and box faces.

    Normals of a room point inwards.
    """
    instance = (instant[:, None] * snapshots.shape.shape[1] + objects).flatten()
    values = snapshots.surface_table.index_select(1, instance).reshape(-1, *objects.shape)
    matrix, offset, (across, along, side) = values[:9].reshape(3, 3, *objects.shape), values[9:12], values[12:]
    x, y, z = point
    a, b, c = (
        torch.addcmul(torch.addcmul(torch.addcmul(shift, x, row[0]), y, row[1]), z, row[2])
        for shift, row in zip(offset, matrix, strict=True)
    )
    u, v, w = (
        part - torch.maximum(torch.minimum(part, core), -core)
        for part, core in ((a, across), (b, along), (c, across))
    )
    first, second, third = matrix
    normal = torch.stack(
        [torch.addcmul(torch.addcmul(u * p, v, q), w, r) for p, q, r in zip(first, second, third, strict=True)]
    )
    normal *= side * normal.square().sum(0).rsqrt()
    face = torch.where(v != 0, 2 + (v > 0), torch.where(u != 0, u > 0, 4 + (w > 0)))
    return normal, torch.stack([a, b, c]), face


def _ambient_visibility(snapshots: Snapshots, instant: Tensor, point: Tensor, normal: Tensor) -> Float[Tensor, "K P"]:
    """Return the share of ambient light that floor and walls leave at each point (analytic ambient occlusion)."""
    unit, offset = snapshots.unit[:, 0], snapshots.offset[:, 0]
    shift = (unit * offset)[instant].T[..., None]
    gap = unit[instant].T[..., None] - (point + shift).abs()
    outdoors = snapshots.shape[:, 0] == Shape.GROUND
    if bool(outdoors.any()):
        open_air = torch.stack(
            [torch.full_like(point[1], torch.inf), -point[1], torch.full_like(point[1], torch.inf)]
        )
        gap = torch.where(outdoors[instant][:, None], open_air, gap)
    hidden = OCCLUSION_STRENGTH * (1 - normal.square()) * torch.exp(gap.clamp(min=0) / -OCCLUSION_REACH)
    return (1 - hidden[0]) * (1 - hidden[1]) * (1 - hidden[2])


def _sky(colors: Float[Tensor, "3 3 K 1"], direction: Float[Tensor, "3 K P"]) -> Float[Tensor, "3 K P"]:
    """Return the colour of the sky: a gradient from horizon to zenith with clouds."""
    height = (-direction[1]).clamp(min=0)
    base = torch.lerp(colors[1], colors[0], height.sqrt())
    place = direction / (height + 0.15) * 0.07
    cloud = smoothstep(noise(place.flatten(1)).reshape(height.shape), 0.1, 1.4) * (height * 4).clamp(0, 1)
    return torch.lerp(base, colors[2], 0.8 * cloud)


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
    world: Worlds,
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
    light, label = shade(context, packets, distance, objects, rays.pixel)
    if supersample > 1:
        part = rays.cut(_at_edges(rays.join(label, (-1,)))).flatten(0, 1)
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
        split = image.reshape(*image.shape[:-2], self.count[0], self.tile[0], self.count[1], self.tile[1])
        return split.transpose(-3, -2).flatten(-2).flatten(-3, -2)

    def join(self, values: Tensor, leading: tuple[int, ...]) -> Tensor:
        """Join tiles [K, P] to images [*leading, H, W]."""
        whole = values.reshape(*leading, *self.count, *self.tile).transpose(-3, -2).flatten(-2).flatten(-3, -2)
        return whole[..., : self.size[0], : self.size[1]].contiguous()


def render_rolling(
    world: Worlds,
    rig: CameraRigs,
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
    rows_of = {name: torch.unflatten(value, 1, (-1, height)) for name, value in vars(rendered).items()}
    return Rendered(**{name: value.transpose(2, -2).squeeze(2) for name, value in rows_of.items()})  # B T 1 V ... H W


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
    packet, pixel = edges.unbind(1)
    origin, direction = rays.subpixel_rays(packet, pixel, supersample)
    fine = RayPackets(instant=packets.instant[packet], origin=origin, direction=direction)
    distance, objects = closest_hit(context.snapshots, fine, candidates.for_packets(packet, len(packets.instant)))
    distance = torch.where(distance > MAX_DEPTH, 0.0, distance)
    light[:, packet, pixel] = shade(context, fine, distance, objects, rays.pixel[packet])[0].mean(-1)
    return light
