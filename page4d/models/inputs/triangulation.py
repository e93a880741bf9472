"""Triangulation of patch matches by known cameras, embedded into the patch tokens."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from page4d.geometry.camera import normalize_pixels
from page4d.geometry.transforms import camera_centers
from page4d.layers.block import FeedForward, initialise_linears
from page4d.models.config import MatchConfig
from page4d.models.inputs.matching import Matches, target_images
from page4d.models.inputs.rays import patch_directions, relative_cameras
from page4d.models.size_groups import SizeGroups

_FEATURES_PER_TARGET = 3
_EPSILON = 1e-12


class Triangulation(nn.Module):
    """Intersect the rays of matched patches and embed the result; the last layer starts at zero."""

    def __init__(self, config: MatchConfig, dim: int) -> None:
        super().__init__()
        self.tell = FeedForward(_FEATURES_PER_TARGET * len(config.targets), config.hidden, dim)
        initialise_linears(self)
        nn.init.zeros_(self.tell.fc2.weight)

    def forward(
        self,
        matches: Sequence[Matches],
        intrinsics: Float[Tensor, "B T V 3 3"],
        world_to_camera: Float[Tensor, "B T V 4 4"],
        sizes: SizeGroups,
        patch_size: int,
    ) -> list[Float[Tensor, "B T W _ C"]]:
        """Return what to add to the patch tokens of every group of views of one size; matches get no gradient."""
        relative = relative_cameras(world_to_camera)
        to_world = relative[..., :3, :3].transpose(-1, -2)
        centers = camera_centers(relative)
        grids = sizes.grid_of_views(intrinsics.device)
        embedded = []
        for found, members, grid in zip(matches, sizes.members, sizes.grids, strict=True):
            views = list(members)
            directions = patch_directions(intrinsics[:, :, views], grid, patch_size)
            own = directions @ to_world[:, :, views].transpose(-1, -2)
            features = []
            for index, target in enumerate(found.targets):
                targets = target_images(target, relative.shape[1], sizes.num_views, relative.device)
                when, other = (part[:, views] for part in targets)
                half = grids[other] * patch_size / 2  # [T, W, 2]: rows, columns
                rays = _rays(found.expected[:, :, :, index], intrinsics[:, when, other], half)
                baseline = (centers[:, :, views] - centers[:, when, other])[..., None, :]
                features.append(intersect_rays(own, rays @ to_world[:, when, other].transpose(-1, -2), baseline))
            embedded.append(self.tell(torch.cat(features, dim=-1).to(self.tell.fc1.weight)))
        return embedded


def _rays(
    expected: Float[Tensor, "B T W P 2"], intrinsics: Float[Tensor, "B T W 3 3"], half: Float[Tensor, "T W 2"]
) -> Float[Tensor, "B T W P 3"]:
    """Return the unit ray directions, in the camera frame, of positions as in `Matches` in images of half size."""
    half = half.to(intrinsics)
    pixels = expected.detach().to(intrinsics) * half.amax(dim=-1)[:, :, None, None] + half.flip(-1)[:, :, None]
    plane = normalize_pixels(pixels, intrinsics)
    return functional.normalize(functional.pad(plane, (0, 1), value=1.0), dim=-1)


def intersect_rays(
    own: Float[Tensor, "*batch P 3"], other: Float[Tensor, "*batch P 3"], baseline: Float[Tensor, "*batch one 3"]
) -> Float[Tensor, "*batch P 3"]:
    """Return nearness, sine of the parallax angle and miss of the intersection of two rays of unit direction.

    `baseline` leads from the other ray's origin to the own one. Nearness is atan(1 / s), in (0, pi), for the point at
    distance s on the own ray that is closest to the other; it passes smoothly through infinity to points behind the
    camera. The miss is the triple product of unit vectors. The result is finite for parallel rays and no baseline.

    Source: Hartley & Sturm (1997), "Triangulation", the mid-point method.
    """
    cosine = (own * other).sum(dim=-1)
    squared_sine = (1 - cosine.square()).clamp(min=0)
    along = cosine * (other * baseline).sum(dim=-1) - (own * baseline).sum(dim=-1)
    nearness = torch.atan2(squared_sine, along)
    direction = baseline / baseline.norm(dim=-1, keepdim=True).clamp(min=_EPSILON)
    miss = (direction * torch.linalg.cross(own, other)).sum(dim=-1)
    return torch.stack([nearness, squared_sine.sqrt(), miss], dim=-1)
