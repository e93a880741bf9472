"""Checks of the images, masks and conditioning that a network is given."""

from collections.abc import Sequence

from torch import Tensor

from page4d.errors import ShapeError, UsageError
from page4d.layers.embed import patch_grid
from page4d.models.conditioning import Conditioning, check_conditioning, check_known
from page4d.models.config import NetworkConfig
from page4d.models.size_groups import Grid, SizeGroups, check_mixed


def check_images(config: NetworkConfig, images: Tensor, mask_ext: object, conditioning: Conditioning) -> Grid:
    """Check views of one size; return their patch grid.

    Raises:
        ShapeError: if image sides are not multiples of the patch size, or masks or conditioning do not fit.
        UsageError: if images are not floating point, or the network does not take masks or conditioning.
    """
    if images.ndim != 6 or images.shape[3] != 3:
        raise ShapeError(f"images have shape {tuple(images.shape)}", "give [B, T, V, 3, H, W]")
    _check_floating(images)
    if mask_ext is not None:
        _check_mask(config, mask_ext, images, (*images.shape[:3], *images.shape[4:]))
    grid = patch_grid(images.shape[-2], images.shape[-1], config.patch_size)
    check_conditioning(conditioning, tuple(images.shape[:3]), grid)
    check_known(conditioning, images, accepted=config.known_geometry is not None)
    return grid


def check_views(
    config: NetworkConfig,
    images: Sequence[Tensor],
    mask_ext: Sequence[Tensor] | Tensor | None,
    conditioning: Conditioning,
) -> SizeGroups:
    """Check views [B, T, 3, H, W] that may differ in size; return their groups of one size.

    Raises:
        ShapeError: as `check_images`, or if views do not fit together.
        UsageError: as `check_images`, or if views differ in size where a part of the network needs one size.
    """
    for view in images:
        if view.ndim != 5 or view.shape[2] != 3 or view.shape[:2] != images[0].shape[:2]:
            raise ShapeError(f"a view of shape {tuple(view.shape)}", "give [B, T, 3, H, W] for every view")
        _check_floating(view)
    masks = () if mask_ext is None else mask_ext
    if not images or isinstance(masks, Tensor) or len(masks) not in (0, len(images)):
        raise ShapeError(f"{len(images)} views with masks of {len(masks)}", "give views, and all masks or none")
    for view, mask in zip(images, masks, strict=False):
        _check_mask(config, mask, view, (*view.shape[:2], *view.shape[3:]))
    sizes = SizeGroups.of([patch_grid(view.shape[-2], view.shape[-1], config.patch_size) for view in images])
    if not sizes.are_one:
        check_mixed(config, conditioning)
    leading = (images[0].shape[0], images[0].shape[1], len(images))
    check_conditioning(conditioning, leading, sizes.grids[0] if sizes.are_one else None)
    check_known(conditioning, images, accepted=config.known_geometry is not None)
    return sizes


def _check_mask(config: NetworkConfig, mask: object, images: Tensor, expected: tuple[int, ...]) -> None:
    if config.mask is None:
        raise UsageError("this network takes no masks", "leave the masks out or use a network with a mask head")
    shape = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
    if shape != expected:
        raise ShapeError(f"masks have shape {shape}, images {tuple(images.shape)}", f"give {expected}")


def _check_floating(images: Tensor) -> None:
    """Refuse integer images, which are usually in [0, 255]."""
    if not images.is_floating_point():
        kind = str(images.dtype).removeprefix("torch.")
        raise UsageError(f"images are {kind}", "give floating-point values in [0, 1], such as images.float() / 255")
