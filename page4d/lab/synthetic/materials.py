"""Colours of synthetic images: random materials, procedural textures, and the photometric camera model.

The colour of a texture is a function of the point in the object's frame, so it moves with the object.
"""

import colorsys
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from functools import cached_property, lru_cache
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from page4d.lab.synthetic.rigs import Rng, Vector

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


GAMMA = 2.2
"""Exponent from display values to linear light."""

Rows = tuple[Vector, Vector, Vector]

_HUES_DEG = ((18, 45), (18, 45), (18, 60), (-12, 14), (80, 140), (195, 235))
"""Ranges of natural hues; wood and earth tones are the most frequent."""


class Material(NamedTuple):
    """One texture: a row of `texture.Texture`. `frame` maps metres to cells; `joint_m` is a joint width in metres."""

    pattern: Pattern
    palette: Rows
    frame: Rows
    grain: Vector
    strength: float
    fine: float
    warp: float = 0.0
    bond: float = 0.0
    joint_m: float = 0.0


def color(rng: Rng, low: float = 0.2, high: float = 0.85, vivid: float = 0.6) -> Vector:
    """Draw a linear RGB colour with a display brightness from `low` to `high`.

    Half of all colours are nearly grey, the others have a saturation of at most `vivid`.
    """
    hue = rng.uniform(*rng.choice(_HUES_DEG)) / 360
    saturation = rng.uniform(0.0, 0.14) if rng.chance(0.5) else rng.uniform(0.15, vivid)
    red, green, blue = colorsys.hsv_to_rgb(hue % 1, saturation, rng.uniform(low, high))
    return (red**GAMMA, green**GAMMA, blue**GAMMA)


def near(rng: Rng, base: Vector, contrast: float) -> Vector:
    """Draw a darker or lighter variation of a colour."""
    factor = math.exp(rng.sign() * rng.uniform(0.3, 1.0) * contrast)
    return tuple(min(1.0, max(0.005, part * factor * rng.uniform(0.92, 1.08))) for part in base)  # type: ignore[return-value]


def floor_material(rng: Rng) -> Material:
    """Draw planks, tiles, a chequered floor, a carpet or bonded stones in the plane of x and z."""
    kind = rng.integer(5)
    ground = color(rng, 0.3, 0.75, 0.45)
    if kind == 0:
        frame = ((rng.uniform(0.5, 0.9), 0.0, 0.0), (0.0, 0.0, rng.uniform(5, 9)), (0.0, 0.0, 0.0))
        palette = (ground, near(rng, ground, 0.4), near(rng, ground, 1.2))
        return Material(Pattern.CELLS, palette, frame, (0.12, 0.5, 0.8), 0.18, 0.12, bond=0.37, joint_m=0.006)
    if kind == 1:
        cells = rng.uniform(1.6, 3.5)
        palette = (ground, near(rng, ground, 0.5), near(rng, ground, 1.0))
        return Material(Pattern.CELLS, palette, _level(cells), (0.4, 0.4, 0.4), 0.15, 0.08, joint_m=0.015)
    if kind == 2:
        palette = (ground, near(rng, ground, 1.2), ground)
        return Material(Pattern.CHECKER, palette, _level(rng.uniform(1.2, 3)), (0.4, 0.4, 0.4), 0.15, 0.1)
    if kind == 3:
        return plain_material(rng, 0.35, 0.7, 0.25)
    frame = ((1.4, 0.0, 0.0), (0.0, 0.0, 2.8), (0.0, 0.0, 0.0))
    palette = (ground, near(rng, ground, 0.5), near(rng, ground, 0.8))
    return Material(Pattern.CELLS, palette, frame, (0.5, 0.5, 0.5), 0.2, 0.1, bond=0.5, joint_m=0.012)


def plain_material(rng: Rng, low: float = 0.2, high: float = 0.85, grain: float = 0.5) -> Material:
    """Draw a colour with fine and coarse grain: plaster, cloth, soil or grass."""
    ground = color(rng, low, high, 0.45)
    palette = (ground, near(rng, ground, rng.uniform(0.05, 0.45)), ground)
    scale = grain * rng.log_uniform(0.6, 1.8)
    strength, fine = rng.uniform(0.03, 0.2), rng.log_uniform(0.03, 0.2)
    return Material(Pattern.PLAIN, palette, _level(1.0), (scale, scale, scale), strength, fine)


def wall_material(rng: Rng, normal_axis: int) -> Material:
    """Draw plaster, stripes, dots, bricks or panels for a wall with its normal along an axis."""
    along: Vector = (0.0, 0.0, 1.0) if normal_axis == 0 else (1.0, 0.0, 0.0)
    ground = color(rng, 0.45, 0.88, 0.4)
    kind = rng.integer(6)
    if kind <= 1:
        return plain_material(rng, 0.5, 0.88, 0.3)
    if kind == 2:
        frame = (_times(along, rng.uniform(2, 5)), (0.0,) * 3, (0.0,) * 3)
        return Material(Pattern.STRIPES, (ground, near(rng, ground, 0.5), ground), frame, (0.4,) * 3, 0.12, 0.06)
    if kind == 3:
        ground = color(rng, 0.35, 0.7)
        frame = (_times(along, rng.uniform(2.2, 4.5)), (0.0, rng.uniform(6, 12), 0.0), (0.0,) * 3)
        palette = (ground, near(rng, ground, 0.6), near(rng, ground, 0.9))
        return Material(Pattern.CELLS, palette, frame, (0.7,) * 3, 0.2, 0.15, bond=0.5, joint_m=0.014)
    if kind == 4:
        frame = (_times(along, rng.uniform(1, 1.8)), (0.0, rng.uniform(0.8, 1.3), 0.0), (0.0,) * 3)
        palette = (ground, near(rng, ground, 0.3), near(rng, ground, 1.0))
        return Material(Pattern.CELLS, palette, frame, (0.4,) * 3, 0.12, 0.08, joint_m=0.03)
    cells = rng.uniform(3, 7)
    frame = (_times(along, cells), (0.0, cells, 0.0), (0.0,) * 3)
    return Material(Pattern.DOTS, (ground, color(rng, 0.2, 0.8), ground), frame, (0.4,) * 3, 0.12, 0.06)


def object_material(rng: Rng, size: float) -> Material:
    """Draw a texture whose pattern repeats a few times over an object of about `size` metres."""
    kind = rng.integer(7)
    grain = rng.log_uniform(0.25, 0.8) / size
    strength, fine = rng.uniform(0.04, 0.25), rng.log_uniform(0.03, 0.15)
    ground = color(rng)
    second = near(rng, ground, 1.0) if rng.chance(0.5) else color(rng)
    palette = (ground, second, near(rng, ground, 1.2))
    if kind <= 1:
        return Material(Pattern.PLAIN, palette, _level(1.0), (grain,) * 3, strength, fine)
    cells = rng.log_uniform(1.5, 5.0) / size
    frame = _turned(rng, cells)
    if kind == 2:
        return Material(Pattern.CHECKER, palette, frame, (grain,) * 3, strength, fine)
    if kind == 3:
        striped = (frame[0], (0.0,) * 3, (0.0,) * 3)
        return Material(Pattern.STRIPES, palette, striped, (grain,) * 3, strength, fine, warp=rng.uniform(0, 2))
    if kind == 4:
        return Material(Pattern.MARBLE, palette, frame, (grain,) * 3, strength, fine, warp=3.0)
    if kind == 5:
        return Material(Pattern.DOTS, palette, frame, (grain,) * 3, strength, fine)
    return Material(Pattern.CELLS, palette, frame, (grain,) * 3, strength, fine, bond=0.5, joint_m=0.1 / cells)


def skin_material(rng: Rng, tint: Vector) -> Material:
    """Draw skin of about one colour."""
    palette = (tint, near(rng, tint, 0.12), tint)
    return Material(Pattern.PLAIN, palette, ((1.0, 0.0, 0.0),) * 3, (2.0,) * 3, 0.05, 0.03)


def _level(cells: float) -> Rows:
    return ((cells, 0.0, 0.0), (0.0, 0.0, cells), (0.0, 0.0, 0.0))


def _times(vector: Vector, factor: float) -> Vector:
    return (vector[0] * factor, vector[1] * factor, vector[2] * factor)


def _turned(rng: Rng, cells: float) -> Rows:
    """Draw an orthogonal frame with random orientation and `cells` per metre (Gram-Schmidt)."""
    a, b = rng.direction(), rng.direction()
    dot = sum(p * q for p, q in zip(a, b, strict=True))
    c = [q - dot * p for p, q in zip(a, b, strict=True)]
    length = math.sqrt(sum(q * q for q in c)) or 1.0
    b = (c[0] / length, c[1] / length, c[2] / length)
    third = (a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0])
    return (_times(a, cells), _times(b, cells), _times(third, cells))


BLOCK = 8
"""Side of a compression block in px."""


@dataclass(frozen=True, kw_only=True)
class Appearance:
    """Photometric parameters of V cameras in each of B worlds.

    `exposure` and `balance` are gains. `vignette` is the share of light lost in the corners. `blur` is the share of
    light that goes to either neighbour, applied twice per axis. The standard deviation of noise is
    `read_noise + shot_noise * sqrt(light)`. `contrast` is the slope of the tone curve about middle grey, `saturation`
    a factor, and `blocks` the quantization step of the cosine transform of blocks of 8x8 px; 0 disables it.
    """

    exposure: Float[Tensor, "B V"]
    balance: Float[Tensor, "B V 3"]
    vignette: Float[Tensor, "B V"]
    blur: Float[Tensor, "B V"]
    shot_noise: Float[Tensor, "B V"]
    read_noise: Float[Tensor, "B V"]
    contrast: Float[Tensor, "B V"]
    saturation: Float[Tensor, "B V"]
    blocks: Float[Tensor, "B V"]


def plain_appearance(scenes: int, views: int) -> Appearance:
    """Return identical cameras with neutral exposure and colour, no blur and no noise."""
    ones, zeros = torch.ones(scenes, views), torch.zeros(scenes, views)
    none = dict.fromkeys(("vignette", "blur", "shot_noise", "read_noise", "blocks"), zeros)
    return Appearance(exposure=ones, balance=torch.ones(scenes, views, 3), contrast=ones, saturation=ones, **none)


def sample_appearance(seeds: Sequence[int], views: int) -> Appearance:
    """Draw the cameras of each seed; in about a third of all rigs they differ little from each other."""
    rows = [_cameras(Rng(seed, "appearance"), views) for seed in seeds]
    names = [field.name for field in fields(Appearance)]
    return Appearance(**{name: torch.tensor([[one[name] for one in row] for row in rows]) for name in names})


def _cameras(rng: Rng, views: int) -> list[dict[str, object]]:
    spread = 0.15 if rng.chance(0.35) else 1.0
    exposure, tone = 0.22 * rng.normal(), 0.1 * rng.normal()
    warmth, green = 0.1 * rng.normal(), 0.03 * rng.normal()
    soft, noisy = rng.chance(0.4), rng.chance(0.6)
    squeezed, saturation = rng.chance(0.35), rng.uniform(0.75, 1.2)
    grain = rng.log_uniform(0.004, 0.04)
    cameras: list[dict[str, object]] = []
    for _ in range(views):
        warm = warmth + 0.07 * spread * rng.normal()
        tint = green + 0.02 * spread * rng.normal()
        cameras.append(
            {
                "exposure": math.exp(max(-0.7, min(0.6, exposure + 0.25 * spread * rng.normal()))),
                "balance": (math.exp(warm), math.exp(tint), math.exp(-warm)),
                "vignette": rng.uniform(0.0, 0.35),
                "blur": rng.uniform(0.0, 0.11) if soft else 0.0,
                "shot_noise": grain * rng.uniform(0.5, 1.5) if noisy else 0.0,
                "read_noise": 0.3 * grain * rng.uniform(0.5, 1.5) if noisy else 0.0,
                "contrast": math.exp(tone + 0.08 * spread * rng.normal()),
                "saturation": saturation + 0.1 * spread * rng.normal(),
                "blocks": rng.log_uniform(0.006, 0.04) if squeezed else 0.0,
            }
        )
    return cameras


def develop(
    light: Float[Tensor, "B T V 3 H W"],
    appearance: Appearance,
    seeds: Sequence[int],
    *,
    first_frame: int = 0,
    first_view: int = 0,
) -> Float[Tensor, "B T V 3 H W"]:
    """Convert linear radiance to images in [0, 1]; the noise depends on the seed, frame and view only."""
    of = {
        name: value[:, None, :, None, None, None].to(light)
        for name, value in vars(appearance).items()
        if name != "balance"
    }
    for _ in range(2):
        light = _blurred(light, of["blur"]) if bool((appearance.blur > 0).any()) else light
    gain = of["exposure"] * appearance.balance[:, None, :, :, None, None].to(light)
    light = light * gain * _vignetting(light, of["vignette"])
    if bool((appearance.read_noise > 0).any()):
        deviation = of["read_noise"] + of["shot_noise"] * light.clamp(min=0).sqrt()
        light = light + deviation * _noise(light, seeds, first_frame, first_view)
    image = tone_curve(light)
    image = 0.5 + (image - 0.5) * of["contrast"]
    gray = image.mean(-3, keepdim=True)
    image = (gray + (image - gray) * of["saturation"]).clamp(0, 1)
    return _compressed(image, of["blocks"]) if bool((appearance.blocks > 0).any()) else image


def tone_curve(light: Float[Tensor, "*image"]) -> Float[Tensor, "*image"]:
    """Map linear radiance to display values by a soft shoulder and a gamma of 2.2."""
    light = light.clamp(min=0)
    return (light * 1.12 / (light * 0.35 + 1)).clamp(0, 1) ** (1 / 2.2)


def _blurred(light: Tensor, share: Tensor) -> Tensor:
    """Convolve rows and columns with the kernel (share, 1 - 2 share, share)."""
    for axis in (-1, -2):
        size = light.shape[axis]
        before = torch.cat([light.narrow(axis, 0, 1), light.narrow(axis, 0, size - 1)], dim=axis)
        after = torch.cat([light.narrow(axis, 1, size - 1), light.narrow(axis, size - 1, 1)], dim=axis)
        light = light + share * (before + after - 2 * light)
    return light


def _vignetting(light: Tensor, vignette: Tensor) -> Tensor:
    """Return the transmission of every pixel, which falls quadratically towards the corners."""
    height, width = light.shape[-2:]
    y = torch.linspace(-1, 1, height, dtype=light.dtype, device=light.device)[:, None]
    x = torch.linspace(-1, 1, width, dtype=light.dtype, device=light.device)
    return 1 - vignette * (x * x + y * y) / 2


def _noise(light: Tensor, seeds: Sequence[int], first_frame: int, first_view: int) -> Tensor:
    """Draw standard normal noise per image on the CPU, so that it does not depend on the device."""
    _, times, views = light.shape[:3]
    images = []
    for seed in seeds:
        for number in range(times * views):
            frame, view = first_frame + number // views, first_view + number % views
            random = torch.Generator("cpu").manual_seed(((seed * 1_000_003 + frame) * 64 + view) % 2**63)
            images.append(torch.randn(light.shape[3:], generator=random, device="cpu"))
    return torch.stack(images).reshape(light.shape).to(light)


def _compressed(image: Tensor, step: Tensor) -> Tensor:
    """Quantize the cosine transform of blocks, high frequencies more than low ones; step 0 leaves an image unchanged.

    Computed in double precision, so that rounding does not depend on the batch.

    Source: ITU-T T.81 (1992), A.3.3, for the transform.
    """
    height, width = image.shape[-2:]
    down, right = -height % BLOCK, -width % BLOCK
    padded = torch.nn.functional.pad(image.flatten(0, 2).double(), (0, right, 0, down), mode="replicate")
    rows, columns = (height + down) // BLOCK, (width + right) // BLOCK
    blocks = padded.reshape(*image.shape[:4], rows, BLOCK, columns, BLOCK).transpose(-2, -3)
    k = torch.arange(BLOCK, dtype=torch.float64, device=image.device)
    basis = torch.cos(math.pi / BLOCK * (k + 0.5) * k[:, None]) * (2 / BLOCK) ** 0.5
    basis[0] /= 2**0.5
    steps = (step.double()[..., None, None] * (1 + k[:, None] + k)).clamp(min=1e-6)
    coded = torch.round(basis @ blocks @ basis.T / steps) * steps
    whole = (basis.T @ coded @ basis).transpose(-2, -3).reshape(*image.shape[:4], height + down, width + right)
    return torch.where(step > 0, whole[..., :height, :width].clamp(0, 1).to(image), image)
