"""Frame head: local points, confidence and pose, decoded from the tokens of each image separately.

A convolutional head upsamples patch features to maps of image size.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from page4d.geometry.camera import fit_intrinsics
from page4d.geometry.rotation import nearest_rotation
from page4d.geometry.transforms import invert_rigid, rigid, scale_translations, transform_points
from page4d.networks.conditioning import Grid
from page4d.networks.config_parts import ConvHeadConfig, FrameHeadConfig
from page4d.networks.layers.attention import RotaryTables, rotary_tables
from page4d.networks.layers.block import Block, BlockConfig, initialise_linears
from page4d.networks.layers.execution import ForwardLimits, each_part
from page4d.networks.output import NetworkOutput
from page4d.networks.tokens import token_positions

_NUM_RESIDUALS = 2
_EXPANSION = 2
_GROUP_WIDTH = 32
"""Channels per group of the second norm of a residual unit."""


def image_plane(size: tuple[int, int], like: Tensor) -> Float[Tensor, "2 rows columns"]:
    """Return (u, v) of the cell centers of a map, in units of half the diagonal of the image."""
    diagonal = (size[0] ** 2 + size[1] ** 2) ** 0.5
    u, v = (
        torch.linspace(-edge, edge, count, dtype=torch.float64)
        for count, edge in ((size[1], (size[1] - 1) / diagonal), (size[0], (size[0] - 1) / diagonal))
    )
    return torch.stack(torch.meshgrid(u, v, indexing="xy")).to(like)


def _with_plane(features: Float[Tensor, "F C rows columns"]) -> Float[Tensor, "F C2 rows columns"]:
    """Append the image coordinates as two channels."""
    plane = image_plane((features.shape[-2], features.shape[-1]), features)
    return torch.cat([features, plane.expand(len(features), -1, -1, -1)], dim=1)


def _convolution(in_channels: int, out_channels: int) -> nn.Conv2d:
    return nn.Conv2d(in_channels, out_channels, kernel_size=3, padding=1, padding_mode="replicate")


class NormedResidualUnit(nn.Module):
    """Two convolutions, each after a group norm and a rectifier, added to their input."""

    def __init__(self, channels: int, eps: float) -> None:
        super().__init__()
        hidden = _EXPANSION * channels
        self.layers = nn.Sequential(
            nn.GroupNorm(1, channels, eps=eps),
            nn.ReLU(),
            _convolution(channels, hidden),
            nn.GroupNorm(hidden // _GROUP_WIDTH, hidden, eps=eps),
            nn.ReLU(),
            _convolution(hidden, channels),
        )

    def forward(self, features: Tensor) -> Tensor:
        """Refine a feature map."""
        return features + self.layers(features)


class ConvHead(nn.Module):
    """Upsample patch features in three stages of factor 2, then to image size; coordinates enter every stage.

    `groups` are the numbers of output channels of separate last convolutions.

    Source: the head of Wang et al. (2024), "MoGe", as in the public Pi3X code (reference facts).
    """

    def __init__(self, config: ConvHeadConfig, dim: int, patch_size: int, groups: tuple[int, ...]) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.stages = nn.ModuleList(
            nn.Sequential(
                nn.ConvTranspose2d(in_channels + 2, channels, kernel_size=2, stride=2),
                _convolution(channels, channels),
                *(NormedResidualUnit(channels, config.norm_eps) for _ in range(_NUM_RESIDUALS)),
            )
            for in_channels, channels in pairwise((dim, *config.widths))
        )
        self.outputs = nn.ModuleList(
            nn.Sequential(
                _convolution(config.widths[-1] + 2, config.hidden),
                nn.ReLU(),
                nn.Conv2d(config.hidden, channels, kernel_size=1),
            )
            for channels in groups
        )

    def forward(self, features: Float[Tensor, "F P C"], grid: tuple[int, int]) -> Float[Tensor, "F D H W"]:
        """Return the output channels of all groups."""
        maps = torch.unflatten(features.transpose(1, 2), 2, grid)
        for stage in self.stages:
            maps = stage(_with_plane(maps))
        size = (grid[0] * self.patch_size, grid[1] * self.patch_size)
        maps = _with_plane(functional.interpolate(maps, size=size, mode="bilinear", align_corners=False))
        return torch.cat([output(maps) for output in self.outputs], dim=1)


_IDENTITY = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0)
"""Rotation matrix, in row-major order, of an untrained head."""


@dataclass(frozen=True, kw_only=True)
class FramePredictions:
    """Predictions for F images; points are in the camera frame, `camera_to_world` is float64."""

    local_points: Float[Tensor, "F H W 3"]
    confidence_logit: Float[Tensor, "F H W"]
    camera_to_world: Float[Tensor, "F 4 4"]


class FrameDecoder(nn.Module):
    """Attention blocks within one image, between an input and an output projection."""

    def __init__(self, config: FrameHeadConfig, in_dim: int, out_dim: int) -> None:
        super().__init__()
        block = BlockConfig(
            dim=config.dim, num_heads=config.num_heads, mlp_ratio=config.mlp_ratio, norm_eps=config.norm_eps
        )
        self.project_in = nn.Linear(in_dim, config.dim)
        self.blocks = nn.ModuleList(Block(block) for _ in range(config.depth))
        self.project_out = nn.Linear(config.dim, out_dim)

    def forward(self, tokens: Float[Tensor, "F N C"], rope: RotaryTables) -> Float[Tensor, "F N D"]:
        """Decode the tokens of every image separately."""
        state = self.project_in(tokens)
        for block in self.blocks:
            state = block(state, rope)
        return self.project_out(state)


class ResidualPerceptron(nn.Module):
    """Three rectified linear layers added to their input."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(dim, dim) for _ in range(3))

    def forward(self, features: Tensor) -> Tensor:
        """Refine the last axis."""
        refined = features
        for layer in self.layers:
            refined = functional.relu(layer(refined))
        return features + refined


class PoseRegression(nn.Module):
    """One pose per image, from the mean of its patches."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.residuals = nn.ModuleList(ResidualPerceptron(dim) for _ in range(_NUM_RESIDUALS))
        self.perceptron = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim), nn.ReLU())
        self.translation = nn.Linear(dim, 3)
        self.rotation = nn.Linear(dim, 9)

    def forward(self, patches: Float[Tensor, "F P D"]) -> Float[Tensor, "F 4 4"]:
        """Return camera-to-world poses in float64; predicted matrices are projected to the nearest rotations."""
        for residual in self.residuals:
            patches = residual(patches)
        pooled = self.perceptron(patches.mean(dim=1))
        rows = functional.normalize(torch.unflatten(self.rotation(pooled).to(torch.float64), -1, (3, 3)), dim=-1)
        return rigid(nearest_rotation(rows), self.translation(pooled).to(torch.float64))


class PixelHead(nn.Linear):
    """A linear layer from the features of a patch to the channels of its pixels."""

    def __init__(self, dim: int, channels: int, patch_size: int) -> None:
        super().__init__(dim, channels * patch_size**2)
        self.patch_size = patch_size

    def forward(self, features: Float[Tensor, "F P C"], grid: tuple[int, int]) -> Float[Tensor, "F channels H W"]:  # type: ignore[override]
        """Return maps of image size."""
        maps = torch.unflatten(super().forward(features).transpose(1, 2), 2, grid)
        return functional.pixel_shuffle(maps, self.patch_size)


class FrameHead(nn.Module):
    """Decode points, confidence and pose by separate decoders; images do not attend to each other.

    Source: the heads of Wang et al. (2025), Pi3, and of Pi3X, as in their public code (reference facts).
    """

    def __init__(
        self, config: FrameHeadConfig, dim: int, patch_size: int, num_special: int, rope_base: float
    ) -> None:
        super().__init__()
        self.config = config
        self.num_special = num_special
        self.rope_base = rope_base
        self.point_decoder = FrameDecoder(config, dim, config.point_dim)
        self.confidence_decoder = FrameDecoder(config, dim, config.point_dim)
        self.camera_decoder = FrameDecoder(config, dim, config.camera_dim)
        self.point_out = _pixel_head(config, patch_size, (2, 1))
        self.confidence_out = _pixel_head(config, patch_size, (1,))
        self.pose = PoseRegression(config.camera_dim)
        initialise_linears(self)
        with torch.no_grad():
            self.pose.rotation.bias.copy_(torch.tensor(_IDENTITY))

    def forward(self, tokens: Float[Tensor, "F N C"], grid: tuple[int, int]) -> FramePredictions:
        """Decode the tokens of the last layer, including the special tokens."""
        rope = rotary_tables(
            token_positions(grid, self.num_special, tokens.device),
            self.config.dim // self.config.num_heads,
            self.rope_base,
            torch.promote_types(tokens.dtype, torch.float32),
        )
        point_features, confidence_features, camera_features = (
            decoder(tokens, rope)[:, self.num_special :]
            for decoder in (self.point_decoder, self.confidence_decoder, self.camera_decoder)
        )
        raw = self.point_out(point_features, grid)
        limit = None if self.config.conv is None else self.config.conv.max_log_depth
        plane, depth = raw[:, :2], (raw[:, 2:] if limit is None else raw[:, 2:].clamp(max=limit)).exp()
        return FramePredictions(
            local_points=torch.cat([plane * depth, depth], dim=1).permute(0, 2, 3, 1),
            confidence_logit=self.confidence_out(confidence_features, grid)[:, 0],
            camera_to_world=self.pose(camera_features),
        )


def _pixel_head(config: FrameHeadConfig, patch_size: int, groups: tuple[int, ...]) -> nn.Module:
    """Build the last part of a decoder of maps."""
    if config.conv is not None:
        return ConvHead(config.conv, config.point_dim, patch_size, groups)
    return PixelHead(config.point_dim, sum(groups), patch_size)


def run_frame_head(
    head: FrameHead,
    level: Float[Tensor, "B T V N C"],
    grid: Grid,
    limits: ForwardLimits,
    scale: Float[Tensor, " B"] | None,
) -> NetworkOutput:
    """Predict from all tokens of the last layer: depth is the z of local points, points are these in the world.

    `scale` multiplies all lengths.
    """
    leading = level.shape[:3]
    tokens = level.flatten(0, 2).to(head.pose.translation.weight.dtype)
    parts = each_part(lambda part: head(tokens[part], grid), len(tokens), limits.max_images)
    local_points = torch.unflatten(torch.cat([part.local_points for part in parts]), 0, leading)
    logit = torch.unflatten(torch.cat([part.confidence_logit for part in parts]), 0, leading)
    camera_to_world = torch.unflatten(torch.cat([part.camera_to_world for part in parts]), 0, leading)
    if scale is not None:
        local_points = local_points * scale[:, None, None, None, None, None]
        camera_to_world = scale_translations(camera_to_world, scale[:, None, None])
    confidence = 1 + logit.exp()
    return NetworkOutput(
        world_to_camera=invert_rigid(camera_to_world),
        intrinsics=fit_intrinsics(local_points.to(torch.float64), logit.sigmoid().to(torch.float64)),
        depth=local_points[..., 2],
        depth_confidence=confidence,
        points=transform_points(camera_to_world.to(local_points.dtype), local_points),
        points_confidence=confidence,
        local_points=local_points,
        confidence_logits=logit,
        camera_to_world=camera_to_world,
        metric_scale=scale,
    )
