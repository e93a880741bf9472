"""Epipolar prior: a penalty on attention between views off the epipolar line."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from page4d.geometry.camera import pixel_grid
from page4d.geometry.rotation import skew
from page4d.models.config.parts import EpipolarConfig

_MIN_BASELINE = 1e-6
"""In units of the largest baseline; shorter ones give no epipolar line."""


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
    # Patch centers are the pixel centers of an image with one pixel per patch.
    cells = pixel_grid(*grid, dtype=fundamental.dtype, device=fundamental.device)
    return EpipolarBand(
        fundamental=fundamental,
        centers=(patch_size * cells).flatten(0, 1),
        num_special=num_special,
        penalty=config.penalty,
        band_px=config.band * patch_size,
    )
