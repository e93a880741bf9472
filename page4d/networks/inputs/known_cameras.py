"""Known cameras as inputs: Plücker rays per patch, one token per image, and an epipolar prior on attention.

The prior is a penalty on attention between views off the epipolar line.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from page4d.geometry.camera import POSE_DIM, Cameras, encode_pose, normalize_pixels, pixel_grid
from page4d.geometry.rotation import skew
from page4d.geometry.transforms import camera_centers, invert_rigid, scale_translations
from page4d.networks.conditioning import SizeGroups
from page4d.networks.config_parts import CameraEncoderConfig, EpipolarConfig
from page4d.networks.layers.block import Block, BlockConfig, FeedForward, initialise_linears
from page4d.networks.layers.execution import full_precision

_MIN_BASELINE = 1e-6


class RayEmbedding(nn.Module):
    """Embed the patches' ray directions, given intrinsics, and their ray lines, given poses as well.

    Poses are relative to the first view at the first instant and scaled by the mean distance of the cameras from it:
    the embedding is independent of the user's world and unit. Both layers start at zero.

    Source: rays in Pluecker coordinates as in Sitzmann et al. (2021), "Light Field Networks", section 3.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.direction = nn.Linear(3, dim)
        self.line = nn.Linear(6, dim)
        for part in (self.direction, self.line):
            nn.init.zeros_(part.weight)
            nn.init.zeros_(part.bias)

    def forward(
        self,
        intrinsics: Float[Tensor, "B T V 3 3"],
        relative: Float[Tensor, "B T V 4 4"] | None,
        grid: tuple[int, int],
        patch_size: int,
    ) -> Float[Tensor, "B T V P C"]:
        """Return the embedding to add to patch tokens; `relative` are poses from `relative_cameras` of the whole rig.

        Without poses only directions in the camera frame are embedded.
        """
        weight = self.direction.weight
        directions = patch_directions(intrinsics, grid, patch_size)
        embedded = self.direction(directions.to(weight))
        return embedded if relative is None else embedded + self.line(plucker_lines(directions, relative).to(weight))


def patch_directions(
    intrinsics: Float[Tensor, "*batch 3 3"], grid: tuple[int, int], patch_size: int
) -> Float[Tensor, "*batch P 3"]:
    """Return the unit direction of the ray through every patch center, in the camera frame."""
    centers = patch_centers_px(intrinsics, grid, patch_size).expand(*intrinsics.shape[:-2], -1, 2)
    return functional.normalize(functional.pad(normalize_pixels(centers, intrinsics), (0, 1), value=1.0), dim=-1)


def patch_centers_px(like: Tensor, grid: tuple[int, int], patch_size: int) -> Float[Tensor, "P 2"]:
    """Return the (x, y) of every patch center in px: the pixel centers of an image with one pixel per patch."""
    return patch_size * pixel_grid(*grid, dtype=like.dtype, device=like.device).flatten(0, 1)


def plucker_lines(
    directions: Float[Tensor, "B T V P 3"], relative: Float[Tensor, "B T V 4 4"]
) -> Float[Tensor, "B T V P 6"]:
    """Return direction and moment (camera center x direction) of every ray in the frame of `relative`."""
    rotated = directions @ relative[..., :3, :3]
    centers = camera_centers(relative)[..., None, :].expand_as(rotated)
    return torch.cat([rotated, torch.linalg.cross(centers, rotated)], dim=-1)


def relative_cameras(world_to_camera: Float[Tensor, "B T V 4 4"]) -> Float[Tensor, "B T V 4 4"]:
    """Return the poses relative to the first view at the first instant, scaled to a mean distance of 1 from it."""
    relative = world_to_camera @ invert_rigid(world_to_camera[:, :1, :1])
    distance = camera_centers(relative).norm(dim=-1)
    unit = distance.sum(dim=(1, 2)) / max(1, distance[0].numel() - 1)
    return scale_translations(relative, 1 / torch.where(unit > _MIN_BASELINE, unit, 1)[:, None, None])


_MIN_UNIT = 0.1


class CameraEncoder(nn.Module):
    """Encode the poses and fields of view of all images by blocks that attend across images.

    Source: the camera encoder of the public Depth Anything 3 code (reference facts).
    """

    def __init__(self, config: CameraEncoderConfig, dim: int) -> None:
        super().__init__()
        block = BlockConfig.of(config, dim)
        self.pose_branch = FeedForward(POSE_DIM, dim // 2, dim)
        self.token_norm = nn.LayerNorm(dim, eps=config.norm_eps)
        self.blocks = nn.ModuleList(Block(block) for _ in range(config.depth))
        self.trunk_norm = nn.LayerNorm(dim, eps=config.norm_eps)
        initialise_linears(self)

    def forward(
        self,
        world_to_camera: Float[Tensor, "B T V 4 4"],
        intrinsics: Float[Tensor, "B T V 3 3"],
        sizes: SizeGroups,
        patch_size: int,
    ) -> Float[Tensor, "B T V C"]:
        """Return a token per image, in full precision; intrinsics are in pixels of each view's own image."""
        with full_precision(world_to_camera.device):
            encoding = camera_encodings(scale_cameras(world_to_camera), intrinsics, sizes, patch_size)
            tokens = self.token_norm(self.pose_branch(encoding.flatten(1, 2).to(self.trunk_norm.weight)))
            for block in self.blocks:
                tokens = block(tokens)
            return torch.unflatten(self.trunk_norm(tokens), 1, encoding.shape[1:3])


def scale_cameras(world_to_camera: Float[Tensor, "B T V 4 4"]) -> Float[Tensor, "B T V 4 4"]:
    """Return the poses relative to the first image, in units of the median distance of the cameras from it.

    The median is the lower one of all images of the batch, the first ones included, and at least 0.1: also for a
    single image, or for cameras at one place, the result is finite. All scenes of a batch have the same unit.

    Source: the input preparation of the public Depth Anything 3 code (reference facts).
    """
    relative = world_to_camera @ invert_rigid(world_to_camera[:, :1, :1])
    distances = camera_centers(relative).norm(dim=-1)
    return scale_translations(relative, 1 / distances.median().clamp(min=_MIN_UNIT))


def camera_encodings(
    world_to_camera: Float[Tensor, "B T V 4 4"],
    intrinsics: Float[Tensor, "B T V 3 3"],
    sizes: SizeGroups,
    patch_size: int,
) -> Float[Tensor, "B T V 9"]:
    """Return the pose encodings of the camera-to-world poses (see `geometry.pose_encoding`)."""
    camera_to_world = sizes.chosen(invert_rigid(world_to_camera))
    groups = zip(camera_to_world, sizes.chosen(intrinsics.to(world_to_camera)), sizes.grids, strict=True)
    encodings: Sequence[Tensor] = [
        encode_pose(
            Cameras(
                world_to_camera=poses,  # the encoding is of the inverse pose
                intrinsics=own,
                image_size=(grid[0] * patch_size, grid[1] * patch_size),
            )
        )
        for poses, own, grid in groups
    ]
    return sizes.stacked(encodings)


def fundamental_matrices(
    world_to_camera: Float[Tensor, "*batch V 4 4"], intrinsics: Float[Tensor, "*batch V 3 3"]
) -> Float[Tensor, "*batch V V 3 3"]:
    """Return the fundamental matrices of view pairs (a, b), from pixels of a to lines in b; 0 without a baseline.

    Source: Hartley & Zisserman (2004), eq. 9.2.
    """
    rotation, translation = world_to_camera[..., :3, :3], world_to_camera[..., :3, 3]
    relative = rotation[..., None, :, :, :] @ rotation[..., :, None, :, :].transpose(-1, -2)  # [..., a, b, 3, 3]
    moved = (relative @ translation[..., :, None, :, None])[..., 0]
    baseline = translation[..., None, :, :] - moved
    length = baseline.norm(dim=-1)
    apart = length > _MIN_BASELINE * length.amax(dim=(-2, -1), keepdim=True)
    inverse = torch.linalg.inv(intrinsics)
    matrix = inverse[..., None, :, :, :].transpose(-1, -2) @ skew(baseline) @ relative @ inverse[..., :, None, :, :]
    return torch.where(apart[..., None, None], matrix, torch.zeros_like(matrix))


def line_distances(lines: Float[Tensor, "*batch 3"], pixels: Float[Tensor, "P 2"]) -> Float[Tensor, "*batch P"]:
    """Return the distance of every pixel from every line, 0 where the line is zero."""
    signed = lines[..., :2] @ pixels.transpose(0, 1) + lines[..., 2:]
    length = lines[..., :2].norm(dim=-1, keepdim=True)
    return torch.where(length > 0, signed.abs() / length, 0.0)


@dataclass(frozen=True, kw_only=True)
class EpipolarBand:
    """Attention bias between all tokens of an instant; G instants, V views of N tokens, special tokens first."""

    fundamental: Float[Tensor, "G V V 3 3"]
    centers: Float[Tensor, "P 2"]
    """Patch centers in px."""
    num_special: int
    penalty: float
    band_px: float

    @property
    def num_instants(self) -> int:
        """Number of instants G."""
        return self.fundamental.shape[0]

    def rows(self, start: int, stop: int) -> Float[Tensor, "G M L"]:
        """Return some rows of the bias: -penalty off the line; 0 on it, within a view and for special tokens."""
        num_groups, num_views = self.fundamental.shape[:2]
        length = self.num_special + len(self.centers)
        queries = torch.arange(start, stop, device=self.centers.device)
        view, place = queries // length, queries % length - self.num_special
        homogeneous = torch.nn.functional.pad(self.centers[place.clamp(min=0)], (0, 1), value=1.0)  # [M, 3]
        lines = (self.fundamental[:, view] @ homogeneous[:, None, :, None])[..., 0]  # [G, M, V, 3]
        off = line_distances(lines, self.centers) > self.band_px
        off &= (place >= 0)[:, None, None] & (view[:, None] != torch.arange(num_views, device=view.device))[..., None]
        bias = -self.penalty * off.to(self.fundamental.dtype)
        return torch.nn.functional.pad(bias, (self.num_special, 0)).reshape(num_groups, stop - start, -1)

    def of_groups(self, chosen: slice) -> "EpipolarBand":
        """Return the bias of some instants."""
        return replace(self, fundamental=self.fundamental[chosen])


def epipolar_band(
    config: EpipolarConfig,
    world_to_camera: Float[Tensor, "B T V 4 4"],
    intrinsics: Float[Tensor, "B T V 3 3"],
    grid: tuple[int, int],
    patch_size: int,
    num_special: int,
) -> EpipolarBand:
    """Build the attention bias of all instants of a batch from their cameras."""
    # Float64 is accurate in any unit, and exempt from autocast.
    poses, matrices = (part.flatten(0, 1).to(torch.float64) for part in (world_to_camera, intrinsics))
    fundamental = fundamental_matrices(poses, matrices)
    return EpipolarBand(
        fundamental=fundamental,
        centers=patch_centers_px(fundamental, grid, patch_size),
        num_special=num_special,
        penalty=config.penalty,
        band_px=config.band * patch_size,
    )
