"""The light that visible points send: texture, one lamp or sun with shadows, a glow, a fill; and the sky."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from page4d.synthetic.rays import Bundles, blocked, reachable, split
from page4d.synthetic.texture import Texture, noise, ramp
from page4d.synthetic.world import ROOM_FACES, Instants, Lights, Shape, World

SHADOW_GAP = 2e-3
"""How far above a surface, in metres, its shadow rays end."""


CORNER_REACH, CORNER_DARKNESS = 0.3, 0.4
"""How far in metres walls and floor keep the glow away, and how much of it."""

SHADOW_PARTS, SPLIT_FROM = 4, 32
"""Parts that bundles of at least so many rays are cut into for shadows."""


@dataclass(frozen=True, kw_only=True)
class Scenes:
    """Worlds at S instants with what it takes to colour them; `number` is the world of each instant."""

    frozen: Instants
    texture: Texture
    lights: Lights
    number: Int[Tensor, " S"]

    @staticmethod
    def of(world: World, frozen: Instants, dtype: torch.dtype) -> "Scenes":
        """Bring textures and lights to the precision that is rendered in."""
        cast = world.map(lambda value: value.to(dtype) if value.is_floating_point() else value)
        instants = len(frozen.shape) // len(world.shape)
        number = torch.arange(len(frozen.shape), device=frozen.shape.device) // instants
        return Scenes(frozen=frozen, texture=cast.texture, lights=cast.lights, number=number)


@dataclass(frozen=True, kw_only=True)
class Shaded:
    """Linear light that comes along rays, the face of the object and whether it lies in shadow."""

    light: Float[Tensor, "3 K P"]
    face: Int[Tensor, "K P"]
    dark: Bool[Tensor, "K P"]

    def part(self, objects: Int[Tensor, "K P"]) -> Int[Tensor, "K P"]:
        """Number what is seen by object, face and shadow."""
        return (objects * 8 + self.face) * 2 + self.dark


def shade(
    scenes: Scenes,
    bundles: Bundles,
    distance: Float[Tensor, "K P"],
    objects: Int[Tensor, "K P"],
    pixel: Float[Tensor, "K 1"],
) -> Shaded:
    """Return the light along rays that met objects after `distance`, 0 for the sky.

    `pixel` is the size of a pixel at distance 1.
    """
    sky = distance == 0
    # In the sky, shadow rays go where those of the neighbours go.
    filled = torch.where(sky, distance.amax(-1, keepdim=True).clamp(min=1.0), distance)
    shape = distance.shape
    point = torch.addcmul(bundles.origin[..., None], bundles.direction, filled)
    hit = _surface(scenes.frozen, bundles.instant, objects, point)
    number = scenes.number[bundles.instant]
    textures = scenes.texture.pattern.shape[1]
    which = number[:, None] * textures + torch.where(objects == 0, hit.face, objects + (ROOM_FACES - 1))
    squared_length = bundles.direction.square().sum(0)
    slant = (hit.normal * bundles.direction).sum(0).abs() * squared_length.rsqrt()
    footprint = filled * pixel / slant.clamp(min=0.3)
    albedo = scenes.texture.colors(which.flatten(), hit.local.flatten(1), footprint.flatten()).reshape(3, *shape)
    lights = {name: value[number] for name, value in vars(scenes.lights).items()}
    direct, dark = _lamplight(scenes.frozen, bundles.instant, lights, point, hit.normal, sky)
    glow = (0.75 - 0.25 * hit.normal[1]) * _openness(scenes.frozen, bundles.instant, point, hit.normal)
    fill = -(hit.normal * lights["fill_to"].T[..., None]).sum(0).clamp(max=0)
    total = direct * lights["color"].T[..., None] + glow * lights["glow"].T[..., None]
    light = albedo * (total + fill * lights["fill"].T[..., None])
    if bool(sky.any()):
        ray = bundles.direction * squared_length.rsqrt()
        light = torch.where(sky, _sky(lights["sky"].permute(1, 2, 0)[..., None], ray), light)
    return Shaded(light=light, face=hit.face, dark=dark)


def _lamplight(
    frozen: Instants, instant: Tensor, lights: dict[str, Tensor], point: Tensor, normal: Tensor, sky: Tensor
) -> tuple[Float[Tensor, "K P"], Bool[Tensor, "K P"]]:
    """Return which part of the lamp's light falls on points, and where something else keeps it away."""
    lamp = lights["position"].T
    from_lamp = torch.add(point, normal, alpha=SHADOW_GAP) - lamp[..., None]
    squared = from_lamp.square().sum(0)
    facing = -(normal * from_lamp).sum(0) * squared.rsqrt()
    lit = (facing > 0) & ~sky
    # Rays that matter decide where to look for shadows.
    toward = torch.where(lit, from_lamp, _mean(from_lamp, lit))
    shadow = Bundles(instant=instant, origin=lamp, direction=toward)
    pairs = reachable(frozen, shadow, 1.0, lit.any(-1))
    if toward.shape[2] >= SPLIT_FROM:
        shadow, pairs = split(frozen, shadow, pairs, SHADOW_PARTS, 1.0)
    dark = blocked(frozen, shadow, pairs, 1.0).reshape(lit.shape) & lit
    faded = facing / (1 + squared / lights["reach"][:, None].square())
    return faded * (lit & ~dark), dark


@dataclass(frozen=True, kw_only=True)
class _Hit:
    """Normals in the world, positions in the objects' unit frames, and the faces of their boxes."""

    normal: Float[Tensor, "3 K P"]
    local: Float[Tensor, "3 K P"]
    face: Int[Tensor, "K P"]


def _surface(frozen: Instants, instant: Tensor, objects: Tensor, point: Tensor) -> _Hit:
    """Find the normals of points on objects, outward, or inward for a room."""
    item = (instant[:, None] * frozen.shape.shape[1] + objects).flatten()
    values = frozen.surface_table.index_select(1, item).reshape(-1, *objects.shape)
    matrix, offset, (beside, along, side) = values[:9].reshape(3, 3, *objects.shape), values[9:12], values[12:]
    x, y, z = point
    a, b, c = (
        torch.addcmul(torch.addcmul(torch.addcmul(shift, x, row[0]), y, row[1]), z, row[2])
        for shift, row in zip(offset, matrix, strict=True)
    )
    u, v, w = (
        part - torch.maximum(torch.minimum(part, core), -core)
        for part, core in ((a, beside), (b, along), (c, beside))
    )
    first, second, third = matrix
    normal = torch.stack(
        [torch.addcmul(torch.addcmul(u * p, v, q), w, r) for p, q, r in zip(first, second, third, strict=True)]
    )
    normal *= side * normal.square().sum(0).rsqrt()
    face = torch.where(v != 0, 2 + (v > 0), torch.where(u != 0, u > 0, 4 + (w > 0)))
    return _Hit(normal=normal, local=torch.stack([a, b, c]), face=face)


def _openness(frozen: Instants, instant: Tensor, point: Tensor, normal: Tensor) -> Float[Tensor, "K P"]:
    """Return which part of the glow reaches points past the floor and the walls of a room."""
    unit, offset = frozen.unit[:, 0], frozen.offset[:, 0]
    shift = (unit * offset)[instant].T[..., None]
    gap = unit[instant].T[..., None] - (point + shift).abs()
    outdoors = frozen.shape[:, 0] == Shape.GROUND
    if bool(outdoors.any()):
        open_air = torch.stack(
            [torch.full_like(point[1], torch.inf), -point[1], torch.full_like(point[1], torch.inf)]
        )
        gap = torch.where(outdoors[instant][:, None], open_air, gap)
    hidden = CORNER_DARKNESS * (1 - normal.square()) * torch.exp(gap.clamp(min=0) / -CORNER_REACH)
    return (1 - hidden[0]) * (1 - hidden[1]) * (1 - hidden[2])


def _mean(vectors: Float[Tensor, "3 K P"], chosen: Bool[Tensor, "K P"]) -> Float[Tensor, "3 K 1"]:
    """Average the chosen vectors of each bundle, or all of them if none is chosen."""
    weight = torch.where(chosen.any(-1, keepdim=True), chosen, True).to(vectors.dtype)
    return (vectors * weight).sum(-1, keepdim=True) / weight.sum(-1, keepdim=True)


def _sky(colors: Float[Tensor, "3 3 K 1"], direction: Float[Tensor, "3 K P"]) -> Float[Tensor, "3 K P"]:
    """Return the colour of the sky: from the horizon to the zenith, with clouds."""
    height = (-direction[1]).clamp(min=0)
    base = torch.lerp(colors[1], colors[0], height.sqrt())
    place = direction / (height + 0.15) * 0.07
    cloud = ramp(noise(place.flatten(1)).reshape(height.shape), 0.1, 1.4) * (height * 4).clamp(0, 1)
    return torch.lerp(base, colors[2], 0.8 * cloud)
