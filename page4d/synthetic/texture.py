"""Solid textures: colours that are functions of the point in the object's own frame, so they move with the object."""

import math
from dataclasses import dataclass
from enum import IntEnum

import torch
from jaxtyping import Float, Int
from torch import Tensor

OCTAVES = 4
"""Scales of the noise, each twice as fine as the one before."""

_AXIS_FACTORS = (73856093, 19349663, 83492791)
_MIX_FACTOR = 0x45D9F3B
_MASK_32 = 0xFFFFFFFF


class Pattern(IntEnum):
    """What a texture draws before the grain goes over it."""

    PLAIN = 0
    CHECKER = 1
    STRIPES = 2
    CELLS = 3
    MARBLE = 4


@dataclass(frozen=True, kw_only=True)
class Texture:
    """K solid textures. Texture space is `frame @ point + offset`, in cells; frame holds cells per metre.

    `palette` has three linear RGB colours: ground, second, and joints. `grain` is the coarsest noise in cycles per
    metre along the object's axes and `strength` how much it darkens and lightens. `warp` bends stripes and veins, in
    cells. Row v of `CELLS` is shifted by `bond * v` (0.5: bricks), and joints are `joint` cells wide.
    """

    pattern: Int[Tensor, "*worlds K"]
    palette: Float[Tensor, "*worlds K 3 3"]
    frame: Float[Tensor, "*worlds K 3 3"]
    offset: Float[Tensor, "*worlds K 3"]
    grain: Float[Tensor, "*worlds K 3"]
    strength: Float[Tensor, "*worlds K"]
    warp: Float[Tensor, "*worlds K"]
    bond: Float[Tensor, "*worlds K"]
    joint: Float[Tensor, "*worlds K 3"]
    seed: Int[Tensor, "*worlds K"]

    def colors(self, points: Float[Tensor, "*worlds K 3"]) -> Float[Tensor, "*worlds K 3"]:
        """Evaluate each texture at its own point of the object's frame, in metres: linear RGB in [0, 1]."""
        noise = fractal_noise(points * self.grain, self.seed)
        cells = (self.frame @ points[..., None])[..., 0] + self.offset
        bent = cells.sum(-1) + self.warp * (noise - 0.5)
        row = torch.floor(cells[..., 1])
        bonded = torch.cat([(cells[..., 0] + self.bond * row)[..., None], cells[..., 1:]], dim=-1)
        weight = torch.stack(
            [
                _ramp(noise, 0.3, 0.7),
                torch.floor(cells).sum(-1).remainder(2),
                _ramp(torch.sin(2 * math.pi * bent), -0.12, 0.12),
                lattice_values(torch.floor(bonded).long(), self.seed).to(points.dtype),
                (1 - torch.sin(math.pi * bent).abs()) ** 5,
            ],
            dim=-1,
        )
        chosen = torch.take_along_dim(weight, self.pattern[..., None], dim=-1)
        ground, second, joints = self.palette.unbind(-2)
        color = torch.lerp(ground, second, chosen)
        distance = 0.5 - (bonded - torch.floor(bonded) - 0.5).abs()
        on_joint = (_ramp(self.joint / 2 - distance, 0.0, 0.02) * (self.joint > 0)).amax(-1)
        on_joint = on_joint * (self.pattern == Pattern.CELLS)
        color = torch.lerp(color, joints, on_joint[..., None])
        shade = 1 + self.strength * (2 * noise - 1)
        return (color * shade[..., None]).clamp(0, 1)


def fractal_noise(points: Float[Tensor, "*points 3"], seed: Int[Tensor, "*points"]) -> Float[Tensor, "*points"]:
    """Sum `OCTAVES` value noises of halving amplitude; the result lies in [0, 1] with a mean of 0.5."""
    total = torch.zeros_like(points[..., 0])
    for octave in range(OCTAVES):
        total = total + value_noise(points * 2**octave + 0.37 * octave, seed + octave) * 0.5**octave
    return total / (2 - 0.5 ** (OCTAVES - 1))


def value_noise(points: Float[Tensor, "*points 3"], seed: Int[Tensor, "*points"]) -> Float[Tensor, "*points"]:
    """Interpolate random values of the integer lattice smoothly; the result lies in [0, 1].

    Source: Perlin, "Improving noise" (2002), for the interpolant 6 t^5 - 15 t^4 + 10 t^3.
    """
    corner = torch.floor(points)
    t = points - corner
    x, y, z = (t * t * t * (t * (6 * t - 15) + 10)).unbind(-1)
    cell = corner.long()

    def along_x(dy: int, dz: int) -> Tensor:
        step = cell.new_tensor([[0, dy, dz], [1, dy, dz]])
        low, high = (lattice_values(cell + offset, seed).to(points.dtype) for offset in step)
        return torch.lerp(low, high, x)

    near, far = (torch.lerp(along_x(0, dz), along_x(1, dz), y) for dz in (0, 1))
    return torch.lerp(near, far, z)


def lattice_values(cell: Int[Tensor, "*points 3"], seed: Int[Tensor, "*points"]) -> Float[Tensor, "*points"]:
    """Hash integer cells to float32 values in [0, 1]; the same on every device.

    Source: axis factors of Teschner et al., "Optimized spatial hashing" (2003); 32-bit mixing of T. Mueller.
    """
    x, y, z = cell.unbind(-1)
    key = (x * _AXIS_FACTORS[0]) ^ (y * _AXIS_FACTORS[1]) ^ (z * _AXIS_FACTORS[2]) ^ (seed * _MIX_FACTOR)
    key = key & _MASK_32
    for _ in range(2):
        key = ((key ^ (key >> 16)) * _MIX_FACTOR) & _MASK_32
    return (key >> 8).float() / 2**24


def _ramp(value: Tensor, low: float, high: float) -> Tensor:
    """Go smoothly from 0 at `low` to 1 at `high`."""
    t = ((value - low) / (high - low)).clamp(0, 1)
    return t * t * (3 - 2 * t)
