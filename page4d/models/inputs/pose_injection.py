"""Pose injection: attention between patches that depends on the relative poses of their cameras."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from page4d.geometry.transforms import invert_rigid
from page4d.layers.attention import Attention, LogitsBias, attend
from page4d.layers.block import FeedForward, LayerScale, initialise_linears
from page4d.layers.execution import full_precision, in_chunks
from page4d.layers.positions import RotaryTables, grid_positions, rotary_tables
from page4d.models.config import KnownGeometryConfig
from page4d.models.inputs.known_geometry import KnownPoses
from page4d.models.size_groups import SizeGroups, join


@dataclass(frozen=True, kw_only=True)
class CameraFrames:
    """Transforms of the head channels of tokens by the pose of their camera and their place in the image.

    The first half of the channels, in groups of four, is transformed by the pose as homogeneous coordinates. The
    second half is rotated by the column, then the row of the patch, counted from 0: `rope` has these angles and
    `inverse_rope` their negatives.

    Source: Li et al. (2025), PRoPE, without intrinsics; details from the public Pi3X code (reference facts).
    """

    world_to_camera: Float[Tensor, "B N 4 4"]
    camera_to_world: Float[Tensor, "B N 4 4"]
    rope: RotaryTables
    inverse_rope: RotaryTables

    def of_queries(self, heads: Float[Tensor, "B heads N d"]) -> Float[Tensor, "B heads N d"]:
        """Transform queries."""
        return _transformed(heads, self.world_to_camera.mT, self.inverse_rope)

    def of_keys(self, heads: Float[Tensor, "B heads N d"]) -> Float[Tensor, "B heads N d"]:
        """Transform keys or values."""
        return _transformed(heads, self.camera_to_world, self.inverse_rope)

    def of_outputs(self, heads: Float[Tensor, "B heads N d"]) -> Float[Tensor, "B heads N d"]:
        """Transform outputs, in the frame of the values, to that of the token's own camera."""
        return _transformed(heads, self.world_to_camera, self.rope)

    def of_tokens(self, rows: slice) -> "CameraFrames":
        """Return the transforms of a range of tokens."""
        return CameraFrames(
            world_to_camera=self.world_to_camera[:, rows],
            camera_to_world=self.camera_to_world[:, rows],
            rope=self.rope.of_tokens(rows),
            inverse_rope=self.inverse_rope.of_tokens(rows),
        )


def _transformed(
    heads: Float[Tensor, "B heads N d"], matrices: Float[Tensor, "B N 4 4"], rope: RotaryTables
) -> Float[Tensor, "B heads N d"]:
    posed, placed = heads.to(matrices.dtype).chunk(2, dim=-1)
    with full_precision(heads.device):
        moved = torch.einsum("bnij,bhngj->bhngi", matrices, torch.unflatten(posed, -1, (-1, 4))).flatten(-2)
    return torch.cat([moved, rope.rotate(placed)], dim=-1).to(heads.dtype)


@dataclass(frozen=True, kw_only=True)
class PoseInputs:
    """What pose injection needs of the patches of all images: transforms, and which of them have a known pose."""

    frames: CameraFrames
    known: Bool[Tensor, "B N"] | None

    @property
    def bias(self) -> LogitsBias | None:
        """A bias that excludes keys without a known pose, in sequences where a pose is known."""
        if self.known is None:
            return None
        excluded = self.known.any(dim=1, keepdim=True) & ~self.known
        zeros = torch.zeros_like(excluded, dtype=self.frames.world_to_camera.dtype)
        return LogitsBias(key=zeros.masked_fill(excluded, -torch.inf))


class PoseAttention(Attention):
    """Attention with queries, keys, values and outputs in camera frames."""

    def forward(  # type: ignore[override]
        self,
        tokens: Float[Tensor, "B N C"],
        norm: nn.Module,
        inputs: PoseInputs,
        max_queries: int | None = None,
    ) -> Float[Tensor, "B N C"]:
        """Attend between normalized tokens, at most `max_queries` queries at once."""
        inner, length, frames = self.proj.in_features, tokens.shape[1], inputs.frames

        def projected(rows: slice, place: int) -> Tensor:
            return self._project(norm(tokens[:, rows]), slice(place * inner, (place + 1) * inner))[0]

        def keys(rows: slice) -> Tensor:
            key = projected(rows, 1)
            return frames.of_tokens(rows).of_keys(self._positioned(key, self.k_norm, None)).to(key.dtype)

        def values(rows: slice) -> Tensor:
            return frames.of_tokens(rows).of_keys(projected(rows, 2))

        key, value = (in_chunks(function, length, max_queries, dim=2) for function in (keys, values))
        bias = inputs.bias

        def mixed(rows: slice) -> Tensor:
            own = frames.of_tokens(rows)
            query = own.of_queries(self._positioned(projected(rows, 0), self.q_norm, None)).to(key.dtype)
            return self._joined(own.of_outputs(attend(query, key, value, bias)))

        return in_chunks(mixed, length, max_queries, dim=1)


class PoseBlock(nn.Module):
    """Attention in camera frames and a feed-forward network, which both read the block's input.

    Source: the public Pi3X code (reference facts).
    """

    def __init__(self, config: KnownGeometryConfig) -> None:
        super().__init__()
        dim = config.depth_encoder.embed_dim
        self.norm1, self.norm2 = (nn.LayerNorm(dim, eps=config.norm_eps) for _ in range(2))
        self.attn = PoseAttention(dim, config.num_heads, qk_norm_eps=config.qk_norm_eps)
        self.mlp = FeedForward(dim, int(dim * config.mlp_ratio))
        scale = config.layer_scale
        self.ls1, self.ls2 = (nn.Identity() if scale is None else LayerScale(dim, scale) for _ in range(2))

    def forward(
        self, tokens: Float[Tensor, "B N C"], inputs: PoseInputs, max_queries: int | None = None
    ) -> Float[Tensor, "B N C"]:
        """Return what is added to the tokens: 0 for those without a known pose."""

        def refined(rows: slice) -> Tensor:
            part: Tensor = self.ls2(self.mlp(self.norm2(tokens[:, rows])))
            return part

        mixed = self.ls1(self.attn(tokens, self.norm1, inputs, max_queries))
        added: Tensor = mixed + in_chunks(refined, tokens.shape[1], max_queries, dim=1)
        return added if inputs.known is None else torch.where(inputs.known[..., None], added, 0)


class PoseInjection(nn.Module):
    """Pose blocks after some layers of the trunk, over the patches of all images."""

    def __init__(self, config: KnownGeometryConfig, num_special: int) -> None:
        super().__init__()
        self.config = config
        self.num_special = num_special
        self.blocks = nn.ModuleList(PoseBlock(config) for _ in config.pose_layers)
        initialise_linears(self)

    def inputs(self, poses: KnownPoses, sizes: SizeGroups, dtype: torch.dtype) -> PoseInputs:
        """Return the constants of all blocks."""
        num_times = poses.world_to_camera.shape[1]
        patches = [rows * columns for rows, columns in sizes.grids]
        forward = _per_token(sizes.chosen(poses.world_to_camera.to(dtype)), patches)
        known = None if poses.known is None else _per_token(sizes.chosen(poses.known), patches)
        head_dim = self.config.depth_encoder.embed_dim // self.config.num_heads
        places = [
            grid_positions(grid, forward.device).flip(-1).repeat(num_times * len(views), 1)
            for grid, views in zip(sizes.grids, sizes.members, strict=True)
        ]
        columns_rows = torch.cat(places)
        ropes = [rotary_tables(sign * columns_rows, head_dim // 2, dtype=dtype) for sign in (1, -1)]
        frames = CameraFrames(
            world_to_camera=forward, camera_to_world=invert_rigid(forward), rope=ropes[0], inverse_rope=ropes[1]
        )
        return PoseInputs(frames=frames, known=known)

    def forward(
        self,
        state: Sequence[Float[Tensor, "B T W _ C"]],
        layer: int,
        inputs: PoseInputs,
        max_queries: int | None = None,
    ) -> list[Float[Tensor, "B T W _ C"]]:
        """Update the patch tokens after a layer; special tokens pass unchanged."""
        count = self.num_special
        patches = [part[..., count:, :].flatten(1, 3) for part in state]
        lengths = [part.shape[1] for part in patches]
        block = self.blocks[self.config.pose_layers.index(layer)]
        added = torch.split(block(join(patches, dim=1), inputs, max_queries), lengths, dim=1)
        return [
            torch.cat([part[..., :count, :], part[..., count:, :] + own.reshape(part[..., count:, :].shape)], dim=-2)
            for part, own in zip(state, added, strict=True)
        ]


def _per_token(values: Sequence[Tensor], patches: Sequence[int]) -> Tensor:
    """Repeat values [B, T, W, ...] of images for all patches, and concatenate the groups."""
    repeated = [
        part.flatten(1, 2).repeat_interleave(count, dim=1) for part, count in zip(values, patches, strict=True)
    ]
    return join(repeated, dim=1)
