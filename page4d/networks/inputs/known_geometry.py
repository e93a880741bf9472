"""Known intrinsics, depth maps and poses of single images as inputs of the network.

Poses act on attention between patches, by the relative pose of their cameras.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from page4d.geometry.camera import camera_rays, has_depth
from page4d.geometry.transforms import invert_rigid, scale_translations
from page4d.networks.conditioning import Conditioning, SizeGroups, join
from page4d.networks.config_parts import KnownGeometryConfig
from page4d.networks.encoders.dino import DinoV2
from page4d.networks.layers.attention import (
    Attention,
    LogitsBias,
    RotaryTables,
    attend,
    grid_positions,
    rotary_tables,
)
from page4d.networks.layers.block import INIT_STD, FeedForward, LayerScale, PatchEmbed, initialise_linears
from page4d.networks.layers.execution import full_precision, in_chunks

_SMALL = 1e-8
_STATIC = 0.02
"""Largest movement of a camera at rest, in units of the mean depth."""

_Masks = Bool[Tensor, "B T V"] | None
"""Images whose values are known; None for all."""


@dataclass(frozen=True, kw_only=True)
class KnownPoses:
    """Poses for pose injection: world-to-camera, in the frame of the first image and in the unit of length."""

    world_to_camera: Float[Tensor, "B T V 4 4"]
    known: _Masks


def length_unit(conditioning: Conditioning) -> tuple[Float[Tensor, " B"], KnownPoses | None]:
    """Return the unit of length of every sequence, in which depth and translations enter the network, and the poses.

    The unit is the mean depth of all valid pixels, also of images whose depth is not known. Where no depth is known,
    it is the mean distance of the cameras from the first one, unless they hardly move. A single known pose is
    ignored.
    """
    poses, depths = conditioning.world_to_camera, conditioning.depths
    unit = torch.ones(1) if depths is None else _mean_depth(list(depths))
    if poses is None:
        return unit, None
    poses = poses.to(torch.float64)
    relative = poses @ invert_rigid(poses[:, :1, :1])
    distance = relative[..., :3, 3].norm(dim=-1).flatten(1)
    unit = unit.to(distance).expand(len(distance))
    num_images = distance.shape[1]
    if num_images == 1:
        return unit, None
    baseline = distance.sum(dim=1) / (num_images - 1) / unit + _SMALL
    moves = distance.amax(dim=1) >= _STATIC * unit
    unit = torch.where(moves & ~_any_depth(conditioning, moves), unit * baseline, unit)
    known = conditioning.known_poses
    if known is not None:
        known = known & (known.sum(dim=(1, 2), keepdim=True) > 1)
    relative = scale_translations(relative, 1 / unit[:, None, None])
    return unit, KnownPoses(world_to_camera=relative, known=known)


def _any_depth(conditioning: Conditioning, like: Bool[Tensor, " B"]) -> Bool[Tensor, " B"]:
    """Return whether a sequence has an image of known depth."""
    if conditioning.depths is None or conditioning.known_depths is None:
        return torch.full_like(like, fill_value=conditioning.depths is not None)
    return conditioning.known_depths.flatten(1).any(dim=1)


def _mean_depth(depths: Sequence[Float[Tensor, "B T W _ _"]]) -> Float[Tensor, " B"]:
    """Return the mean of the valid depths of each sequence, 1 if there are none."""
    valid = [has_depth(part) for part in depths]
    count = torch.stack([part.flatten(1).sum(dim=1) for part in valid]).sum(dim=0)
    totals = [
        torch.where(is_valid, part, 0).flatten(1).sum(dim=1, dtype=torch.float64)
        for part, is_valid in zip(depths, valid, strict=True)
    ]
    return torch.where(count > 0, torch.stack(totals).sum(dim=0) / count.clamp(min=1), 1)


def depth_channels(depths: Float[Tensor, "F H W"], unit: Float[Tensor, " F"]) -> Float[Tensor, "F 2 H W"]:
    """Return depth in units of length, 0 where invalid, and whether it is valid."""
    valid = has_depth(depths)
    normalized = torch.where(valid, depths, 0) / (unit.to(depths)[:, None, None] + _SMALL)
    return torch.stack([normalized, valid.to(depths)], dim=1)


def ray_channels(intrinsics: Float[Tensor, "F 3 3"], size: tuple[int, int]) -> Float[Tensor, "F 2 H W"]:
    """Return (x / z, y / z) of the ray through every pixel center."""
    return camera_rays(intrinsics, size)[..., :2].permute(0, 3, 1, 2)


class KnownGeometry(nn.Module):
    """Embed the rays of known intrinsics, and encode known depth maps, as additions to patch tokens.

    Source: the public Pi3X code (reference facts).
    """

    def __init__(self, config: KnownGeometryConfig) -> None:
        super().__init__()
        encoder = config.depth_encoder
        self.depth_encoder = DinoV2(encoder)
        self.depth_token = nn.Parameter(torch.empty(1, 1, encoder.embed_dim))
        self.rays = PatchEmbed(encoder.embed_dim, encoder.patch_size, in_channels=2)
        nn.init.trunc_normal_(self.depth_token, std=INIT_STD)

    def forward(
        self,
        patches: Sequence[Float[Tensor, "B T W _ C"]],
        conditioning: Conditioning,
        unit: Float[Tensor, " B"],
        sizes: SizeGroups,
        max_images: int | None = None,
    ) -> list[Float[Tensor, "B T W _ C"]]:
        """Return the patch tokens of every group with what is known added; tokens of other images are unchanged."""
        patches = list(patches)
        if conditioning.intrinsics is not None:
            cameras = sizes.chosen(conditioning.intrinsics)
            masks = self._known(conditioning.known_intrinsics, sizes)
            for place, (lenses, known) in enumerate(zip(cameras, masks, strict=True)):
                added = self.embed_rays(lenses.flatten(0, 2), sizes.grids[place], max_images)
                patches[place] = _with(patches[place], added, known)
        if conditioning.depths is not None:
            masks = self._known(conditioning.known_depths, sizes)
            for place, (depths, known) in enumerate(zip(conditioning.depths, masks, strict=True)):
                units = unit[:, None, None].expand(depths.shape[:3]).flatten()
                added = self.encode_depths(depths.flatten(0, 2), units, max_images)
                patches[place] = _with(patches[place], added, known)
        return patches

    def embed_rays(
        self, intrinsics: Float[Tensor, "F 3 3"], grid: tuple[int, int], max_images: int | None = None
    ) -> Float[Tensor, "F P C"]:
        """Return an embedding of the rays of every patch."""
        size, weight = (grid[0] * self.rays.patch_size, grid[1] * self.rays.patch_size), self.rays.proj.weight

        return in_chunks(
            lambda chosen: self.rays(ray_channels(intrinsics[chosen].to(weight), size)),
            len(intrinsics),
            max_images,
            dim=0,
        )

    def encode_depths(
        self, depths: Float[Tensor, "F H W"], unit: Float[Tensor, " F"], max_images: int | None = None
    ) -> Float[Tensor, "F P C"]:
        """Return the tokens of depth maps."""

        def encoded(chosen: slice) -> Tensor:
            maps = depth_channels(depths[chosen].to(self.depth_token), unit[chosen])
            return self.depth_encoder(maps).tokens + self.depth_token

        return in_chunks(encoded, len(depths), max_images, dim=0)

    def _known(self, known: _Masks, sizes: SizeGroups) -> Sequence[_Masks]:
        return [None] * len(sizes.grids) if known is None else sizes.chosen(known)


def _with(
    patches: Float[Tensor, "B T W P C"], added: Float[Tensor, "F P C"], known: _Masks
) -> Float[Tensor, "B T W P C"]:
    added = added.reshape(patches.shape)
    return patches + (added if known is None else torch.where(known[..., None, None], added, 0))


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
        self, tokens: Float[Tensor, "B N C"], norm: nn.Module, inputs: PoseInputs, max_queries: int | None = None
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
        mixed = self.ls1(self.attn(tokens, self.norm1, inputs, max_queries))
        refined = in_chunks(
            lambda rows: self.ls2(self.mlp(self.norm2(tokens[:, rows]))), tokens.shape[1], max_queries, dim=1
        )
        added: Tensor = mixed + refined
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
