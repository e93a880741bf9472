"""The mesh of one instant, or of what moves in it: its filtered depth maps, the voxel size, and the fusion."""

from collections.abc import Iterator

import torch
from jaxtyping import Bool
from torch import Tensor

from page4d.errors import UsageError
from page4d.formats.maps import DYNAMIC_THRESHOLD, to_bytes, to_numpy
from page4d.formats.open3d import BLOCK_SIDE, VOXEL_BYTES, DepthView, Mesh, fuse_mesh
from page4d.options import PointOptions
from page4d.output.points import pixel_footprints, view_surface
from page4d.records import Predictions

FOOTPRINTS_PER_VOXEL = 1.5
"""Voxel size unless set, in footprints of a pixel: its width on the surface, depth / focal length."""

MAX_VOXELS_PER_FOOTPRINT = 2.0
"""Pixels whose footprint is more voxels wide are left out: distant surfaces would dominate memory and file size."""

_MIN_VOXELS_ACROSS = 2
"""Voxels across an image below which a mesh is empty."""

_LAYERS = 3
"""Blocks along a ray through the truncation band; sharing of blocks between views is not counted."""


def choose_mesh_voxel(predictions: Predictions) -> float:
    """Return the voxel size that fits the image resolution of predictions [1, T, V, H, W]; 1 if there is no depth."""
    return FOOTPRINTS_PER_VOXEL * _median_footprint(predictions) or 1.0


def fused_mesh(instant: Predictions, options: PointOptions, mesh_voxel: float, *, moving_only: bool = False) -> Mesh:
    """Fuse the depth maps of one instant [1, 1, V, H, W] into a mesh, from the pixels that pass the point filters.

    With `moving_only` only pixels that move count: none without motion masks.

    Raises:
        CapabilityError: if Open3D cannot be loaded.
    """
    chosen = torch.ones_like(instant.valid[0, 0], device="cpu")
    if moving_only:
        moving = None if instant.dynamic is None else instant.dynamic[0, 0].cpu() > DYNAMIC_THRESHOLD
        chosen = torch.zeros_like(chosen) if moving is None else moving
    return fuse_mesh(_depth_views(instant, options, mesh_voxel, chosen), mesh_voxel)


def check_mesh_voxel(predictions: Predictions, mesh_voxel: float, num_bytes: int) -> None:
    """Refuse voxels too small for the image resolution or for `num_bytes` of memory, or as large as the scene.

    Raises:
        UsageError: naming a voxel size that fits.
    """
    median = _median_footprint(predictions)
    if median > MAX_VOXELS_PER_FOOTPRINT * mesh_voxel:
        raise UsageError(
            f"⟨mesh_voxel={mesh_voxel:.3g}⟩ is too small for images whose pixels are {median:.3g} wide in the scene",
            f"use ⟨mesh_voxel={FOOTPRINTS_PER_VOXEL * median:.2g}⟩, or a larger ⟨long_side⟩",
        )
    width = median * max(predictions.depth.shape[-2:])
    if 0 < width < _MIN_VOXELS_ACROSS * mesh_voxel:
        raise UsageError(
            f"⟨mesh_voxel={mesh_voxel:.3g}⟩ is too large for images that are {width:.3g} wide in the scene",
            f"use ⟨mesh_voxel={FOOTPRINTS_PER_VOXEL * median:.2g}⟩",
        )
    in_voxels = pixel_footprints(predictions) / mesh_voxel
    counted = predictions.valid.cpu() & (predictions.depth.cpu() > 0) & (in_voxels <= MAX_VOXELS_PER_FOOTPRINT)
    voxels = torch.where(counted, in_voxels, 0.0).square().sum((0, 2, 3, 4)).max() * _LAYERS * BLOCK_SIDE
    expected = float(voxels) * VOXEL_BYTES
    if expected > num_bytes:
        coarser = mesh_voxel * (expected / num_bytes) ** 0.5
        raise UsageError(
            f"⟨mesh⟩ with voxels of {mesh_voxel:.3g} needs about {expected / 1e9:.1f} GB, "
            f"{num_bytes / 1e9:.1f} GB are available",
            f"use ⟨mesh_voxel={coarser:.2g}⟩",
        )


def _median_footprint(predictions: Predictions) -> float:
    """Return the median width of pixels with depth, 0 if there are none."""
    footprints = pixel_footprints(predictions)[predictions.valid.cpu() & (predictions.depth.cpu() > 0)]
    return float(footprints.median()) if len(footprints) else 0.0


def _depth_views(
    instant: Predictions, options: PointOptions, mesh_voxel: float, chosen: Bool[Tensor, "V H W"]
) -> Iterator[DepthView]:
    """Yield the depth maps, 0 where a pixel does not pass the filters, is far away, or is not `chosen`."""
    close = pixel_footprints(instant)[0, 0] <= MAX_VOXELS_PER_FOOTPRINT * mesh_voxel
    for view in range(len(instant.view_names)):
        surface = view_surface(instant, view, options)
        depth = torch.where(surface.keep & close[view] & chosen[view], surface.in_camera[..., 2], 0.0)
        yield DepthView(
            depth=to_numpy(depth.float()),
            rgb=to_bytes(to_numpy(instant.images[0, 0, view].detach().cpu().permute(1, 2, 0))),
            world_to_camera=to_numpy(instant.cameras.world_to_camera[0, 0, view].double()),
            intrinsics=to_numpy(instant.cameras.intrinsics[0, 0, view].double()),
        )
