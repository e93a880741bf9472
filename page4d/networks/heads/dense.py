"""Dense prediction head (DPT): patch tokens of four layers, fused from coarse to fine into maps of image size."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from page4d.networks.config_parts import DenseOutput, DPTHeadConfig, ResidualKind

_POSITION_WEIGHT = 0.1
_POSITION_BASE = 100.0
_RAY_DIM = 6


class DenseActivation(StrEnum):
    """Activation of the value channels of a dense head."""

    EXPONENTIAL = "exp"
    """exp(x), for positive values: depth."""

    INVERSE_LOG = "inv_log"
    """sign(x) * (exp(|x|) - 1), for signed values: points."""


ACTIVATIONS: dict[DenseActivation, Callable[[Tensor], Tensor]] = {
    DenseActivation.EXPONENTIAL: torch.exp,
    DenseActivation.INVERSE_LOG: lambda raw: raw.sign() * torch.expm1(raw.abs()),
}


def resize_features(features: Float[Tensor, "F C rows columns"], size: tuple[int, int]) -> Float[Tensor, "F C H W"]:
    """Resample bilinearly with aligned corners."""
    return functional.interpolate(features, size=size, mode="bilinear", align_corners=True)


def add_positions(features: Float[Tensor, "F C rows columns"], aspect: float) -> Float[Tensor, "F C rows columns"]:
    """Add sinusoidal position encodings of image coordinates in units of the diagonal, with weight 0.1.

    `aspect` is width / height of the image. The first half of the channels encodes the column, the second the row.
    """
    channels, rows, columns = features.shape[-3:]
    diagonal = (aspect**2 + 1) ** 0.5
    quarter = torch.arange(channels // 4, dtype=torch.float64) / (channels // 4)
    frequencies = _POSITION_BASE**-quarter

    def waves(count: int, span: float) -> Tensor:
        edge = span * (count - 1) / count
        angles = frequencies[:, None] * torch.linspace(-edge, edge, count, dtype=torch.float64)
        return torch.cat([angles.sin(), angles.cos()]).float().to(features)  # [C/2, count]

    along_x, along_y = features.chunk(2, dim=-3)
    along_x = along_x + _POSITION_WEIGHT * waves(columns, aspect / diagonal)[:, None, :]
    along_y = along_y + _POSITION_WEIGHT * waves(rows, 1 / diagonal)[:, :, None]
    return torch.cat([along_x, along_y], dim=-3)


class ResidualUnit(nn.Module):
    """Two convolutions of the rectified input, added to it or to the input itself."""

    def __init__(self, channels: int, kind: ResidualKind = ResidualKind.RECTIFIED) -> None:
        super().__init__()
        self.kind = kind
        self.conv1 = nn.Conv2d(channels, channels, kernel_size=3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, kernel_size=3, padding=1)

    def forward(self, features: Tensor) -> Tensor:
        """Refine a feature map."""
        rectified = functional.relu(features)
        skip = features if self.kind is ResidualKind.PLAIN else rectified
        return skip + self.conv2(functional.relu(self.conv1(rectified)))


class Fusion(nn.Module):
    """Add the next finer level to the fused map and upsample the result."""

    def __init__(self, channels: int, kind: ResidualKind = ResidualKind.RECTIFIED, *, has_coarser: bool) -> None:
        super().__init__()
        self.skip_unit = ResidualUnit(channels, kind) if has_coarser else None
        self.unit = ResidualUnit(channels, kind)
        self.out_conv = nn.Conv2d(channels, channels, kernel_size=1)

    def forward(self, level: Tensor, coarser: Tensor | None, size: tuple[int, int]) -> Tensor:
        """Fuse one level with the coarser map; the coarsest level has none."""
        if self.skip_unit is not None and coarser is not None:
            level = coarser + self.skip_unit(level)
        return self.out_conv(resize_features(self.unit(level), size))


def fuse_levels(
    fusions: Iterable[nn.Module], levels: Sequence[Float[Tensor, "F D _ _"]], enlarge: int
) -> Float[Tensor, "F D rows columns"]:
    """Fuse maps from coarse to fine into one that is `enlarge` times finer than the first of them."""
    rows, columns = levels[0].shape[-2:]
    sizes = [(enlarge * rows, enlarge * columns), *(tuple(level.shape[-2:]) for level in levels[:-1])]
    fused: Tensor | None = None
    for fusion, level, size in reversed(list(zip(fusions, levels, sizes, strict=True))):
        fused = fusion(level, fused, size)
    assert fused is not None
    return fused


class RayBranch(nn.Module):
    """Predict directions and origins of rays in the world, and a confidence, from the levels of a DPT head.

    The map is 8 times finer than the patch grid. Directions are not normalized; in the camera frame their z is 1, up
    to the scale of the scene. Origins are camera centers.

    Source: the ray branch of the public Depth Anything 3 code (reference facts).
    """

    def __init__(self, config: DPTHeadConfig) -> None:
        super().__init__()
        wide, narrow = config.features, config.features // 2
        self.fusions = nn.ModuleList(Fusion(wide, config.residual, has_coarser=index < 3) for index in range(4))
        pairs = ((wide, narrow), (narrow, wide), (wide, narrow), (narrow, wide), (wide, narrow))
        self.fused_convs = nn.Sequential(*(nn.Conv2d(*pair, kernel_size=3, padding=1) for pair in pairs))
        self.out_conv1 = nn.Conv2d(narrow, config.hidden, kernel_size=3, padding=1)
        self.norm = nn.LayerNorm(config.hidden)
        self.out_conv2 = nn.Conv2d(config.hidden, _RAY_DIM + 1, kernel_size=1)

    def forward(
        self, levels: Sequence[Float[Tensor, "F D _ _"]], aspect: float
    ) -> tuple[Float[Tensor, "F rows columns 6"], Float[Tensor, "F rows columns"]]:
        """Return [direction | origin] and confidences 1 + exp(x)."""
        merged = self.fused_convs(fuse_levels(self.fusions, levels, 2))
        features = self.out_conv1(add_positions(merged, aspect))
        normed = self.norm(features.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        raw = self.out_conv2(functional.relu(normed)).permute(0, 2, 3, 1)
        return raw[..., :_RAY_DIM], 1 + raw[..., _RAY_DIM].exp()


@dataclass(frozen=True, kw_only=True)
class DenseMaps:
    """Output of a dense head."""

    values: Float[Tensor, "F H W D"]
    confidence: Float[Tensor, "F H W"] | None = None
    sky: Float[Tensor, "F H W"] | None = None
    rays: Float[Tensor, "F rows columns 6"] | None = None
    ray_confidence: Float[Tensor, "F rows columns"] | None = None


class ShuffledOutput(nn.Module):
    """One linear layer each for values and confidence; its channels are the pixels of a cell of the map, row by row.

    Source: the dense head of the public VGGT-Omega code (reference facts).
    """

    def __init__(self, features: int, value_dim: int, cell: int) -> None:
        super().__init__()
        self.cell = cell
        self.value = nn.Conv2d(features, value_dim * cell**2, kernel_size=1)
        self.confidence = nn.Conv2d(features, cell**2, kernel_size=1)

    def forward(self, features: Float[Tensor, "F C rows columns"]) -> Float[Tensor, "F D H W"]:
        """Return the value channels and the confidence at image size, without activations."""
        parts = [functional.pixel_shuffle(part(features), self.cell) for part in (self.value, self.confidence)]
        return torch.cat(parts, dim=1)


class DPTHead(nn.Module):
    """Predict a value of `value_dim` channels, and a confidence if configured, from the patch tokens of four layers.

    Source: Ranftl et al. (2021), DPT; changes of the public VGGT code (reference facts).
    """

    def __init__(
        self, config: DPTHeadConfig, dim: int, patch_size: int, value_dim: int, activation: DenseActivation
    ) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.activation = activation
        self.layers = config.layers
        widths, features = config.out_channels, config.features
        self.adds_positions = config.positions
        self.norm = nn.Identity() if config.norm_eps is None else nn.LayerNorm(dim, eps=config.norm_eps)
        self.projects = nn.ModuleList(nn.Conv2d(dim, width, kernel_size=1) for width in widths)
        self.resizes = nn.ModuleList(
            [
                nn.ConvTranspose2d(widths[0], widths[0], kernel_size=4, stride=4),
                nn.ConvTranspose2d(widths[1], widths[1], kernel_size=2, stride=2),
                nn.Identity(),
                nn.Conv2d(widths[3], widths[3], kernel_size=3, stride=2, padding=1),
            ]
        )
        self.adapters = nn.ModuleList(
            nn.Conv2d(width, features, kernel_size=3, padding=1, bias=False) for width in widths
        )
        self.fusions = nn.ModuleList(Fusion(features, config.residual, has_coarser=index < 3) for index in range(4))
        self.fine = nn.Conv2d(config.fine_dim, features // 2, kernel_size=1) if config.fine_dim else None
        self.value_dim = value_dim
        self.sky: nn.Module | None = None
        self.ray_branch = RayBranch(config) if config.ray_map else None
        self.shuffled: ShuffledOutput | None = None
        if config.output is DenseOutput.PIXEL_SHUFFLE:
            self.fused_conv: nn.Module = nn.Identity()
            self.shuffled = ShuffledOutput(features, value_dim, patch_size // 4)
            return
        self.fused_conv = nn.Conv2d(features, features // 2, kernel_size=3, padding=1)
        self.out_conv1 = nn.Conv2d(features // 2, config.hidden, kernel_size=3, padding=1)
        per_feature = 1 if self.fine is None else 4
        self.out_conv2 = nn.Conv2d(config.hidden, per_feature * (value_dim + config.confidence), kernel_size=1)
        if config.sky:
            convolution = nn.Conv2d(features // 2, config.hidden, kernel_size=3, padding=1)
            self.sky = nn.Sequential(convolution, nn.ReLU(), nn.Conv2d(config.hidden, 1, kernel_size=1), nn.ReLU())

    def adapt(
        self, levels: Sequence[Float[Tensor, "F P C"]], grid: tuple[int, int]
    ) -> list[Float[Tensor, "F D _ _"]]:
        """Return the maps of the levels: 4, 2, 1 and 1/2 times as fine as the patch grid."""
        aspect = grid[1] / grid[0]
        maps = []
        for tokens, project, scale, adapter in zip(levels, self.projects, self.resizes, self.adapters, strict=True):
            features = project(torch.unflatten(self.norm(tokens).transpose(1, 2), 2, grid))
            maps.append(adapter(scale(self._positioned(features, aspect))))
        return maps

    def fuse(self, maps: Sequence[Float[Tensor, "F D _ _"]]) -> Float[Tensor, "F D rows columns"]:
        """Fuse maps of `adapt` into one, 8 times finer than the patch grid.

        It is 4 times finer if a fine map or the pixel shuffle follows.
        """
        enlarge = 2 if self.fine is None and self.shuffled is None else 1
        return self.fused_conv(fuse_levels(self.fusions, maps, enlarge))

    def forward(
        self,
        levels: Sequence[Float[Tensor, "F P C"]],
        grid: tuple[int, int],
        fine: Float[Tensor, "F D H/2 W/2"] | None = None,
        *,
        rays: bool = True,
    ) -> DenseMaps:
        """Return values, confidences 1 + exp(x) and sky at image size, and rays unless they are not wanted."""
        maps, aspect = self.adapt(levels, grid), grid[1] / grid[0]
        merged, sky = self.fuse(maps), None
        found = (None, None) if self.ray_branch is None or not rays else self.ray_branch(maps, aspect)
        del maps  # before the maps of image size, where memory peaks
        if self.shuffled is not None:
            raw = self.shuffled(self._positioned(merged, aspect))
        elif self.fine is not None and fine is not None:
            merged = resize_features(merged, (fine.shape[-2], fine.shape[-1])) + self.fine(fine.to(merged.dtype))
            features = self.out_conv1(self._positioned(merged, aspect))
            raw = functional.pixel_shuffle(self.out_conv2(functional.relu(features)), 2)
        else:
            size = (grid[0] * self.patch_size, grid[1] * self.patch_size)
            merged = self._positioned(resize_features(merged, size), aspect)
            raw = self.out_conv2(functional.relu(self.out_conv1(merged)))
            sky = None if self.sky is None else self.sky(merged)[:, 0]
        return DenseMaps(
            values=ACTIVATIONS[self.activation](raw[:, : self.value_dim].permute(0, 2, 3, 1)),
            confidence=1 + raw[:, self.value_dim].exp() if raw.shape[1] > self.value_dim else None,
            sky=sky,
            rays=found[0],
            ray_confidence=found[1],
        )

    def _positioned(self, features: Tensor, aspect: float) -> Tensor:
        return add_positions(features, aspect) if self.adds_positions else features
