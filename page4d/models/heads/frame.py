"""Frame head: local points, confidence and pose, decoded from the tokens of each image separately."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from page4d.geometry.rotation import nearest_rotation
from page4d.geometry.transforms import rigid
from page4d.layers.block import Block, BlockConfig, initialise_linears
from page4d.layers.positions import RotaryTables, rotary_tables
from page4d.models.config import FrameHeadConfig
from page4d.models.heads.conv import ConvHead
from page4d.models.tokens import token_positions

_NUM_RESIDUALS = 2
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
        decoded: Tensor = self.project_out(state)
        return decoded


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
