"""Procedural solid textures: colour is a function of the point in the object's frame, so it moves with the object."""

import math
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property, lru_cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

NOISE_SIZE = 64
"""Voxels per period of the noise."""

_FACTORS = (73856093, 19349663, 83492791, 0x45D9F3B)


class Pattern(IntEnum):
    """Base pattern of a texture, modulated by grain."""

    PLAIN = 0
    CHECKER = 1
    STRIPES = 2
    CELLS = 3
    MARBLE = 4
    DOTS = 5


@dataclass(frozen=True, kw_only=True)
class Texture:
    """K solid textures in each of B worlds. Pattern coordinates are `frame @ point + offset`, in cells.

    `palette` holds three linear RGB colours: base, second and joints. Grain is noise with the spectrum of natural
    images and a period of 1 / `grain` metres along the object's axes; it modulates brightness by `strength`, and by
    `fine` at a ten times finer scale. `warp` bends stripes and veins by that many cells. Row v of `CELLS` is shifted
    by `bond * v` (0.5: running bond of bricks), and joints are `joint` cells wide. `unit` is the length in metres of
    one unit of the object's frame.
    """

    pattern: Int[Tensor, "B K"]
    palette: Float[Tensor, "B K 3 3"]
    frame: Float[Tensor, "B K 3 3"]
    offset: Float[Tensor, "B K 3"]
    grain: Float[Tensor, "B K 3"]
    strength: Float[Tensor, "B K"]
    fine: Float[Tensor, "B K"]
    warp: Float[Tensor, "B K"]
    bond: Float[Tensor, "B K"]
    joint: Float[Tensor, "B K 3"]
    unit: Float[Tensor, "B K 3"]
    seed: Int[Tensor, "B K"]

    def colors(
        self, which: Int[Tensor, " n"], points: Float[Tensor, "3 n"], footprint: Float[Tensor, " n"]
    ) -> Float[Tensor, "3 n"]:
        """Return linear RGB in [0, 1] of points in the objects' unit frames.

        `which` indexes the textures of all worlds. Detail finer than `footprint`, the width of a pixel on the surface
        in metres, fades to its mean against aliasing.
        """
        table = self._table.index_select(1, which)
        palette, frame, offset = table[0:9].reshape(3, 3, -1), table[9:18].reshape(3, 3, -1), table[18:21]
        grain, joint, seed = table[21:24], table[24:27], table[27]
        strength, fine, warp, bond, fineness, density = table[28:34]
        place = torch.addcmul(0.37 * seed, points, grain)
        coarse = noise(place)
        detail = noise(place * 10) * (1.5 - 40 * footprint * fineness).clamp(0, 1)
        x, y, z = points
        cells = tuple(
            torch.addcmul(torch.addcmul(torch.addcmul(shift, x, row[0]), y, row[1]), z, row[2])
            for shift, row in zip(offset, frame, strict=True)
        )
        weight, on_joint = _patterns(table[34:], cells, coarse + 0.3 * detail, warp, bond, joint, seed)
        # Cells of half a pixel or less fade to the mean of their colours.
        clear = (2.0 - 2.5 * footprint * density).clamp(0, 1)
        weight = torch.lerp(torch.full_like(weight, 0.5), weight, clear)
        color = torch.lerp(palette[0], palette[1], weight)
        color = torch.lerp(color, palette[2], on_joint * clear)
        shade = (1 + strength * coarse + fine * detail).clamp(0.15, 2.0)
        return torch.clamp(color * shade, 0, 1)

    @cached_property
    def _table(self) -> Float[Tensor, "40 BK"]:
        """Parameters of all textures in one table for a single gather, scaled to points in units of `unit`."""
        count = self.pattern.numel()
        frame, grain = self.frame * self.unit[:, :, None], self.grain * self.unit
        columns = [self.palette, frame, self.offset, grain, self.joint]
        rows = [column.reshape(count, -1).T for column in columns]
        fineness = self.grain.amax(-1)
        density = self.frame.norm(dim=-1).amax(-1)
        singles = [self.seed, self.strength, self.fine, self.warp, self.bond, fineness, density]
        singles += [self.pattern == pattern for pattern in Pattern]
        return torch.cat([*rows, *(single.reshape(1, -1).to(self.grain) for single in singles)])


def _patterns(
    drawn_as: Float[Tensor, "patterns n"],
    cells: tuple[Tensor, ...],
    grain: Tensor,
    warp: Tensor,
    bond: Tensor,
    joint: Tensor,
    seed: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return the weights of the second colour and of the joint colour at each point."""
    x, row, layer = (torch.floor(part) for part in cells)
    bent = torch.addcmul(cells[0] + cells[1] + cells[2], warp, grain, value=0.25)
    along = torch.addcmul(cells[0], bond, row)
    first = torch.floor(along)
    aside = [along - first - 0.5, cells[1] - row - 0.5, cells[2] - layer - 0.5]
    drawn = lattice_hash(first, row, layer, seed)
    middle = aside[0].square() + aside[1].square() + aside[2].square()
    plain, checker, stripes, own_cells, marble, dots = drawn_as
    weight = plain * smoothstep(grain, -1.0, 1.0)
    weight = torch.addcmul(weight, checker, (x + row + layer).remainder(2))
    weight = torch.addcmul(weight, stripes, smoothstep(torch.sin(2 * math.pi * bent), -0.2, 0.2))
    weight = torch.addcmul(weight, own_cells, drawn)
    weight = torch.addcmul(weight, marble, (1 - torch.sin(math.pi * bent).abs()).square().square())
    weight = torch.addcmul(weight, dots, smoothstep(0.02 + 0.14 * drawn - middle, -0.02, 0.02))
    inset = [torch.add(part.abs(), width, alpha=0.5) for part, width in zip(aside, joint, strict=True)]
    over = torch.maximum(torch.maximum(inset[0], inset[1]), inset[2])
    return weight, smoothstep(over, 0.5, 0.52) * own_cells


def noise(points: Float[Tensor, "3 n"]) -> Float[Tensor, " n"]:
    """Return noise of period 1 and unit variance, clipped to [-2.5, 2.5]."""
    volume = _noise_volume(points.device, points.dtype)
    place = (points - torch.floor(points)) * 2 - 1
    grid = place.T.reshape(1, 1, 1, -1, 3)
    return torch.nn.functional.grid_sample(volume, grid, align_corners=True).reshape(-1)


@lru_cache(maxsize=4)
def _noise_volume(device: torch.device, dtype: torch.dtype) -> Float[Tensor, "1 1 D D D"]:
    """Filter white noise so that plane sections have the 1 / f amplitude spectrum of natural images.

    Source: Field, "Relations between the statistics of natural images and the response properties of cortical cells"
    (1987), for the spectrum; a plane section of a volume of power f ** -3 has the power f ** -2.
    """
    random = torch.Generator().manual_seed(0)
    white = torch.randn(NOISE_SIZE, NOISE_SIZE, NOISE_SIZE, generator=random, dtype=torch.float64)
    axis = torch.fft.fftfreq(NOISE_SIZE, 1 / NOISE_SIZE, dtype=torch.float64)
    half = torch.fft.rfftfreq(NOISE_SIZE, 1 / NOISE_SIZE, dtype=torch.float64)
    squared = axis[:, None, None] ** 2 + axis[None, :, None] ** 2 + half**2
    gain = torch.where(squared == 0, 0.0, squared.clamp(min=1) ** -0.75)
    volume = torch.fft.irfftn(torch.fft.rfftn(white) * gain, s=white.shape)
    volume = (volume / volume.std()).clamp(-2.5, 2.5)
    whole = torch.nn.functional.pad(volume[None, None], (0, 1) * 3, mode="circular")
    return whole.to(device, dtype)


def lattice_hash(x: Tensor, y: Tensor, z: Tensor, seed: Tensor) -> Float[Tensor, " n"]:
    """Hash integer coordinates to values in [0, 1), identical on every device.

    Source: axis factors of Teschner et al., "Optimized spatial hashing" (2003); 32-bit mixing of T. Mueller.
    """
    parts = [part.int() * factor for part, factor in zip((x, y, z, seed), _FACTORS, strict=True)]
    key = parts[0] ^ parts[1] ^ parts[2] ^ parts[3]
    for _ in range(2):
        key = (key ^ (key >> 16)) * _FACTORS[3]
    return ((key >> 8) & 0xFFFFFF).to(x.dtype) / 2**24


def smoothstep(value: Tensor, low: float, high: float) -> Tensor:
    """Interpolate from 0 at `low` to 1 at `high` by a cubic with zero slope at both ends."""
    t = ((value - low) / (high - low)).clamp(0, 1)
    return t * t * (3 - 2 * t)
