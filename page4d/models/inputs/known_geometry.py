"""Known geometry: intrinsics, depth maps and poses of single images as inputs of the network."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from page4d.conventions import PIXEL_CENTER
from page4d.encoders.dinov2 import DinoV2
from page4d.geometry.camera import normalize_pixels
from page4d.geometry.transforms import invert_rigid, scale_translations
from page4d.layers.block import INIT_STD
from page4d.layers.embed import PatchEmbed
from page4d.layers.execution import in_chunks
from page4d.models.conditioning import Conditioning
from page4d.models.config import KnownGeometryConfig
from page4d.models.size_groups import SizeGroups

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


@dataclass(frozen=True, kw_only=True)
class LengthUnit:
    """The unit of length of every sequence, in which depth and translations enter the network, and the poses."""

    unit: Float[Tensor, " B"]
    poses: KnownPoses | None


def length_unit(conditioning: Conditioning) -> LengthUnit:
    """Return the unit of length, and the poses in it.

    The unit is the mean depth of all valid pixels, also of images whose depth is not known. Where no depth is known,
    it is the mean distance of the cameras from the first one, unless they hardly move. A single known pose is
    ignored.
    """
    poses, depths = conditioning.world_to_camera, conditioning.depths
    unit = torch.ones(1) if depths is None else _mean_depth(list(depths))
    if poses is None:
        return LengthUnit(unit=unit, poses=None)
    poses = poses.to(torch.float64)
    relative = poses @ invert_rigid(poses[:, :1, :1])
    distance = relative[..., :3, 3].norm(dim=-1).flatten(1)
    unit = unit.to(distance).expand(len(distance))
    num_images = distance.shape[1]
    if num_images == 1:
        return LengthUnit(unit=unit, poses=None)
    baseline = distance.sum(dim=1) / (num_images - 1) / unit + _SMALL
    moves = distance.amax(dim=1) >= _STATIC * unit
    unit = torch.where(moves & ~_any_depth(conditioning, moves), unit * baseline, unit)
    known = conditioning.known_poses
    if known is not None:
        known = known & (known.sum(dim=(1, 2), keepdim=True) > 1)
    relative = scale_translations(relative, 1 / unit[:, None, None])
    return LengthUnit(unit=unit, poses=KnownPoses(world_to_camera=relative, known=known))


def _any_depth(conditioning: Conditioning, like: Bool[Tensor, " B"]) -> Bool[Tensor, " B"]:
    """Return whether a sequence has an image of known depth."""
    if conditioning.depths is None or conditioning.known_depths is None:
        return torch.full_like(like, fill_value=conditioning.depths is not None)
    return conditioning.known_depths.flatten(1).any(dim=1)


def _mean_depth(depths: Sequence[Float[Tensor, "B T W _ _"]]) -> Float[Tensor, " B"]:
    """Return the mean of the valid depths of each sequence, 1 if there are none."""
    valid = [_is_valid(part) for part in depths]
    count = sum(part.flatten(1).sum(dim=1) for part in valid)
    total = sum(
        torch.where(is_valid, part, 0).flatten(1).sum(dim=1, dtype=torch.float64)
        for part, is_valid in zip(depths, valid, strict=True)
    )
    assert isinstance(count, Tensor)
    assert isinstance(total, Tensor)
    return torch.where(count > 0, total / count.clamp(min=1), 1)


def _is_valid(depths: Tensor) -> Tensor:
    return (depths > 0) & depths.isfinite()


def resize_depth(depth: Float[Tensor, "*batch rows columns"], size: tuple[int, int]) -> Float[Tensor, "*batch H W"]:
    """Resize depth maps to the network's size by the value at or before each position; 0 where it is invalid.

    Source: the preprocessing of the public Pi3X code (reference facts).
    """
    maps = torch.where(_is_valid(depth), depth, 0).reshape(-1, 1, *depth.shape[-2:])
    return functional.interpolate(maps, size=size, mode="nearest").reshape(*depth.shape[:-2], *size)


def depth_channels(depths: Float[Tensor, "F H W"], unit: Float[Tensor, " F"]) -> Float[Tensor, "F 2 H W"]:
    """Return depth in units of length, 0 where invalid, and whether it is valid."""
    valid = _is_valid(depths)
    normalized = torch.where(valid, depths, 0) / (unit.to(depths)[:, None, None] + _SMALL)
    return torch.stack([normalized, valid.to(depths)], dim=1)


def ray_channels(intrinsics: Float[Tensor, "F 3 3"], size: tuple[int, int]) -> Float[Tensor, "F 2 H W"]:
    """Return (x / z, y / z) of the ray through every pixel center."""
    y, x = (torch.arange(n, dtype=intrinsics.dtype, device=intrinsics.device) + PIXEL_CENTER for n in size)
    centers = torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1)
    return normalize_pixels(centers.expand(len(intrinsics), -1, -1, -1), intrinsics).permute(0, 3, 1, 2)


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

        def embedded(chosen: slice) -> Tensor:
            tokens: Tensor = self.rays(ray_channels(intrinsics[chosen].to(weight), size))
            return tokens

        return in_chunks(embedded, len(intrinsics), max_images, dim=0)

    def encode_depths(
        self, depths: Float[Tensor, "F H W"], unit: Float[Tensor, " F"], max_images: int | None = None
    ) -> Float[Tensor, "F P C"]:
        """Return the tokens of depth maps."""

        def encoded(chosen: slice) -> Tensor:
            maps = depth_channels(depths[chosen].to(self.depth_token), unit[chosen])
            tokens: Tensor = self.depth_encoder(maps).tokens + self.depth_token
            return tokens

        return in_chunks(encoded, len(depths), max_images, dim=0)

    def _known(self, known: _Masks, sizes: SizeGroups) -> Sequence[_Masks]:
        return [None] * len(sizes.grids) if known is None else sizes.chosen(known)


def _with(
    patches: Float[Tensor, "B T W P C"], added: Float[Tensor, "F P C"], known: _Masks
) -> Float[Tensor, "B T W P C"]:
    added = added.reshape(patches.shape)
    return patches + (added if known is None else torch.where(known[..., None, None], added, 0))
