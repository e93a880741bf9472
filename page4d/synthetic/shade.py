"""The colour of visible points: texture, one lamp with hard shadows, a glow that corners and contacts keep out."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from page4d.synthetic.intersection import nearest_hits
from page4d.synthetic.texture import Texture
from page4d.synthetic.world import Shape, World

CORNER_REACH = 0.35
"""How far from an edge of the room its corners look darker, in metres."""

LAMP_REACH = 3.5
"""Distance in metres at which the lamp's light has halved."""

SHADOW_GAP = 1e-3
"""How far above a surface, in metres, its shadow rays start."""


def shade(
    world: World,
    poses: Float[Tensor, "M N 4 4"],
    points: Float[Tensor, "M P 3"],
    objects: Int[Tensor, "M P"],
    lamp: Float[Tensor, "M 3"],
) -> Float[Tensor, "M P 3"]:
    """Return display colours in [0, 1] of points on the given objects."""
    images = torch.arange(len(objects), device=objects.device)[:, None]
    pose = poses[images, objects]
    local = ((points - pose[..., :3, 3])[..., None, :] @ pose[..., :3, :3])[..., 0, :]
    normal, face = _surface(world, images, objects, local)
    normal = (pose[..., :3, :3] @ normal[..., None])[..., 0]
    index = world.texture_index(objects, face)
    textures = Texture(**{name: value[images, index] for name, value in vars(world.texture).items()})
    albedo = textures.colors(local)

    to_lamp = lamp[:, None] - points
    squared = to_lamp.square().sum(-1)
    facing = (normal * to_lamp).sum(-1).clamp(min=0) / squared.sqrt()
    blocked, _ = nearest_hits(world, poses, points + SHADOW_GAP * normal, to_lamp)
    direct = torch.where(blocked < 1, 0.0, facing / (1 + squared / LAMP_REACH**2))
    upward = 0.75 - 0.25 * normal[..., 1]
    glow = upward * _openness(world, poses, points, normal, objects)
    lights = world.lights
    light = direct[..., None] * lights.color[:, None] + glow[..., None] * lights.glow[:, None]
    return display(albedo * light)


def display(linear: Float[Tensor, "*points 3"]) -> Float[Tensor, "*points 3"]:
    """Turn linear light into display values: a shoulder that never saturates, then a gamma of 2.2."""
    return (linear * 1.12 / (linear * 0.35 + 1)).clamp(0, 1) ** (1 / 2.2)


def _surface(world: World, images: Tensor, objects: Tensor, local: Tensor) -> tuple[Tensor, Tensor]:
    """Return the outward normal in the object's frame (inward for the room) and the number of the box face."""
    relative = local / world.half_sizes[images, objects]
    axis = relative.abs().argmax(-1, keepdim=True)
    side = torch.take_along_dim(relative, axis, dim=-1)
    flat = torch.zeros_like(relative).scatter(-1, axis, torch.sign(side))
    shape = torch.tensor(world.shapes, device=objects.device)[objects][..., None]
    normal = torch.where(shape == Shape.SPHERE, relative, flat) * torch.where(shape == Shape.ROOM, -1.0, 1.0)
    return torch.nn.functional.normalize(normal, dim=-1), (2 * axis + (side > 0))[..., 0]


def _openness(world: World, poses: Tensor, points: Tensor, normal: Tensor, objects: Tensor) -> Tensor:
    """Return which part of the glow reaches points past the room's edges and the spheres of its objects' volumes.

    Source: Quilez, "Sphere ambient occlusion" (2006): cosine times squared radius over squared distance.
    """
    room = poses[:, None, 0]
    local = ((points - room[..., :3, 3])[..., None, :] @ room[..., :3, :3])[..., 0, :]
    gap = (world.half_sizes[:, None, 0] - local.abs()).clamp(min=0)
    faced = (normal[..., None, :] @ room[..., :3, :3])[..., 0, :].square()
    open_to = (1 - 0.4 * (1 - faced) * torch.exp(-gap / CORNER_REACH)).prod(-1)
    radius = world.half_sizes[:, 1:].prod(-1) ** (1 / 3)
    centers = poses[:, 1:, :3, 3]
    ahead = normal @ centers.transpose(-1, -2) - (normal * points).sum(-1, keepdim=True)
    # Distances only shade: the digits that cdist's matrix product loses do not matter.
    distance = torch.cdist(points, centers).clamp(min=1e-3)
    covered = (ahead.clamp(min=0) * radius[:, None].square() / distance**3).clamp(0, 1)
    numbers = torch.arange(1, len(world.shapes), device=objects.device)
    covered = torch.where(objects[..., None] == numbers, 0.0, covered)
    return open_to * (1 - 0.8 * covered).prod(-1)
