"""Shading of visible points: texture, one light with shadows, ambient light, fill light, and the sky."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from page4d.synthetic.rays import RayPackets, cull, occluded, split
from page4d.synthetic.texture import Texture, noise, smoothstep
from page4d.synthetic.world import ROOM_FACES, Lights, Shape, Snapshots, World

SHADOW_GAP = 2e-3
"""Offset in metres of shadow rays from the surface, against self-shadowing."""

OCCLUSION_REACH, OCCLUSION_STRENGTH = 0.3, 0.4
"""Decay length in metres and maximum of the ambient occlusion near walls and floor."""

SHADOW_PARTS, SPLIT_MIN_RAYS = 4, 32
"""Number of parts that packets are split into for shadow rays, and the minimum size of packets that are split."""


@dataclass(frozen=True, kw_only=True)
class ShadingContext:
    """Worlds at S instants with their textures and lights; `number` is the world index of each instant."""

    snapshots: Snapshots
    texture: Texture
    lights: Lights
    number: Int[Tensor, " S"]

    @staticmethod
    def of(world: World, snapshots: Snapshots, dtype: torch.dtype) -> "ShadingContext":
        """Cast textures and lights to the rendering precision."""
        cast = world.map(lambda value: value.to(dtype) if value.is_floating_point() else value)
        instants = len(snapshots.shape) // len(world.shape)
        number = torch.arange(len(snapshots.shape), device=snapshots.shape.device) // instants
        return ShadingContext(snapshots=snapshots, texture=cast.texture, lights=cast.lights, number=number)


@dataclass(frozen=True, kw_only=True)
class Shading:
    """Linear radiance along rays, face of the object that was hit, and True where it is in shadow."""

    light: Float[Tensor, "3 K P"]
    face: Int[Tensor, "K P"]
    dark: Bool[Tensor, "K P"]

    def part(self, objects: Int[Tensor, "K P"]) -> Int[Tensor, "K P"]:
        """Return a label per combination of object, face and shadow."""
        return (objects * 8 + self.face) * 2 + self.dark


def shade(
    context: ShadingContext,
    packets: RayPackets,
    distance: Float[Tensor, "K P"],
    objects: Int[Tensor, "K P"],
    pixel: Float[Tensor, "K 1"],
) -> Shading:
    """Return the radiance along rays that hit `objects` at `distance`, which is 0 for the sky.

    `pixel` is the width of a pixel at distance 1.
    """
    sky = distance == 0
    # Rays into the sky get the largest distance of their packet, which keeps the shadow rays coherent.
    filled = torch.where(sky, distance.amax(-1, keepdim=True).clamp(min=1.0), distance)
    shape = distance.shape
    point = torch.addcmul(packets.origin[..., None], packets.direction, filled)
    hit = _surface(context.snapshots, packets.instant, objects, point)
    number = context.number[packets.instant]
    textures = context.texture.pattern.shape[1]
    which = number[:, None] * textures + torch.where(objects == 0, hit.face, objects + (ROOM_FACES - 1))
    squared_length = packets.direction.square().sum(0)
    slant = (hit.normal * packets.direction).sum(0).abs() * squared_length.rsqrt()
    footprint = filled * pixel / slant.clamp(min=0.3)
    albedo = context.texture.colors(which.flatten(), hit.local.flatten(1), footprint.flatten()).reshape(3, *shape)
    lights = {name: value[number] for name, value in vars(context.lights).items()}
    direct, dark = _direct_light(context.snapshots, packets.instant, lights, point, hit.normal, sky)
    ambient = (0.75 - 0.25 * hit.normal[1]) * _ambient_visibility(
        context.snapshots, packets.instant, point, hit.normal
    )
    fill = -(hit.normal * lights["fill_direction"].T[..., None]).sum(0).clamp(max=0)
    total = direct * lights["color"].T[..., None] + ambient * lights["ambient"].T[..., None]
    light = albedo * (total + fill * lights["fill"].T[..., None])
    if bool(sky.any()):
        ray = packets.direction * squared_length.rsqrt()
        light = torch.where(sky, _sky(lights["sky"].permute(1, 2, 0)[..., None], ray), light)
    return Shading(light=light, face=hit.face, dark=dark)


def _direct_light(
    snapshots: Snapshots, instant: Tensor, lights: dict[str, Tensor], point: Tensor, normal: Tensor, sky: Tensor
) -> tuple[Float[Tensor, "K P"], Bool[Tensor, "K P"]]:
    """Return the irradiance factor of the light at each point, and True where the point is in shadow."""
    light = lights["position"].T
    from_light = torch.add(point, normal, alpha=SHADOW_GAP) - light[..., None]
    squared = from_light.square().sum(0)
    facing = -(normal * from_light).sum(0) * squared.rsqrt()
    lit = (facing > 0) & ~sky
    # Points that need no shadow ray take the mean direction of those that do, which keeps bounding cones narrow.
    toward = torch.where(lit, from_light, _mean(from_light, lit))
    shadow = RayPackets(instant=instant, origin=light, direction=toward)
    candidates = cull(snapshots, shadow, 1.0, lit.any(-1))
    if toward.shape[2] >= SPLIT_MIN_RAYS:
        shadow, candidates = split(snapshots, shadow, candidates, SHADOW_PARTS, 1.0)
    dark = occluded(snapshots, shadow, candidates, 1.0).reshape(lit.shape) & lit
    faded = facing / (1 + squared / lights["reach"][:, None].square())
    return faded * (lit & ~dark), dark


@dataclass(frozen=True, kw_only=True)
class _Hit:
    """Normals in the world frame, positions in the objects' unit frames, and face indices of boxes."""

    normal: Float[Tensor, "3 K P"]
    local: Float[Tensor, "3 K P"]
    face: Int[Tensor, "K P"]


def _surface(snapshots: Snapshots, instant: Tensor, objects: Tensor, point: Tensor) -> _Hit:
    """Return surface normals, positions and faces of points on objects; normals of a room point inwards."""
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
    return _Hit(normal=normal, local=torch.stack([a, b, c]), face=face)


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


def _mean(vectors: Float[Tensor, "3 K P"], chosen: Bool[Tensor, "K P"]) -> Float[Tensor, "3 K 1"]:
    """Return the mean of the chosen vectors of each packet, or of all if none is chosen."""
    weight = torch.where(chosen.any(-1, keepdim=True), chosen, True).to(vectors.dtype)
    return (vectors * weight).sum(-1, keepdim=True) / weight.sum(-1, keepdim=True)


def _sky(colors: Float[Tensor, "3 3 K 1"], direction: Float[Tensor, "3 K P"]) -> Float[Tensor, "3 K P"]:
    """Return the colour of the sky: a gradient from horizon to zenith with clouds."""
    height = (-direction[1]).clamp(min=0)
    base = torch.lerp(colors[1], colors[0], height.sqrt())
    place = direction / (height + 0.15) * 0.07
    cloud = smoothstep(noise(place.flatten(1)).reshape(height.shape), 0.1, 1.4) * (height * 4).clamp(0, 1)
    return torch.lerp(base, colors[2], 0.8 * cloud)
