"""What known cameras make of matches: how far away each patch is where its ray meets that of its match."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from page4d.geometry.camera import normalize_pixels
from page4d.geometry.rigid import camera_centers
from page4d.layers.block import initialise_linears
from page4d.layers.feed_forward import FeedForward
from page4d.models.config import MatchConfig
from page4d.models.inputs.matching import Matches, ViewMatches, target_images, to_pixels
from page4d.models.inputs.rays import patch_directions, relative_cameras

_SAID_OF_A_TARGET = 3
_TINY = 1e-12


class Triangulation(nn.Module):
    """Intersect the rays of matched patches and tell the patches; the last layer starts at zero."""

    def __init__(self, config: MatchConfig, dim: int) -> None:
        super().__init__()
        self.tell = FeedForward(_SAID_OF_A_TARGET * len(config.targets), config.hidden, dim)
        initialise_linears(self)
        nn.init.zeros_(self.tell.fc2.weight)

    def forward(
        self,
        matches: Matches,
        intrinsics: Float[Tensor, "B T V 3 3"],
        world_to_camera: Float[Tensor, "B T V 4 4"],
        grid: tuple[int, int],
        patch_size: int,
    ) -> Float[Tensor, "B T V P C"]:
        """Return what to add to the patch tokens; matches get no gradient from here."""
        relative = relative_cameras(world_to_camera)
        to_world = relative[..., :3, :3].transpose(-1, -2)
        centers = camera_centers(relative)
        own = patch_directions(intrinsics, grid, patch_size) @ to_world.transpose(-1, -2)
        said = []
        for index, target in enumerate(matches.targets):
            times, views = target_images(target, relative.shape[1], relative.shape[2], relative.device)
            rays = _rays(matches.expected[..., index, :, :], intrinsics[:, times, views], grid, patch_size)
            other = rays @ to_world[:, times, views].transpose(-1, -2)
            baseline = (centers - centers[:, times, views])[..., None, :]
            said.append(ray_meeting(own, other, baseline))
        told: Tensor = self.tell(torch.cat(said, dim=-1).to(self.tell.fc1.weight))
        return told

    def between(
        self,
        matches: Sequence[ViewMatches],
        intrinsics: Float[Tensor, "B T V 3 3"],
        world_to_camera: Float[Tensor, "B T V 4 4"],
        grids: Sequence[tuple[int, int]],
        patch_size: int,
    ) -> list[Float[Tensor, "B T _ C"]]:
        """Do the same for views of different sizes, one by one."""
        relative = relative_cameras(world_to_camera)
        to_world = relative[..., :3, :3].transpose(-1, -2)
        centers = camera_centers(relative)
        told = []
        for view, (found, grid) in enumerate(zip(matches, grids, strict=True)):
            directions = patch_directions(intrinsics[:, :, view], grid, patch_size)
            own = directions @ to_world[:, :, view].transpose(-1, -2)
            said = []
            for index, target in enumerate(found.targets):
                times, views = target_images(target, relative.shape[1], len(grids))
                when, other = times[:, view], int(views[0, view])
                rays = _rays(found.expected[:, :, index], intrinsics[:, when, other], grids[other], patch_size)
                baseline = (centers[:, :, view] - centers[:, when, other])[..., None, :]
                said.append(ray_meeting(own, rays @ to_world[:, when, other].transpose(-1, -2), baseline))
            told.append(self.tell(torch.cat(said, dim=-1).to(self.tell.fc1.weight)))
        return told


def _rays(
    expected: Float[Tensor, "*images P 2"],
    intrinsics: Float[Tensor, "*images 3 3"],
    grid: tuple[int, int],
    patch_size: int,
) -> Float[Tensor, "*images P 3"]:
    """Return the unit directions, in the camera's frame, of positions in images of this grid."""
    pixels = to_pixels(expected.detach().to(intrinsics), grid, patch_size)
    plane = normalize_pixels(pixels, intrinsics)
    return functional.normalize(functional.pad(plane, (0, 1), value=1.0), dim=-1)


def ray_meeting(
    own: Float[Tensor, "*batch P 3"], other: Float[Tensor, "*batch P 3"], baseline: Float[Tensor, "*batch one 3"]
) -> Float[Tensor, "*batch P 3"]:
    """Say of two rays of unit direction: nearness of the meeting, sine of its angle, and by how much they miss.

    `baseline` leads from the other ray's origin to the own one. Nearness is atan(1 / s), between 0 and pi, for the
    point at distance s on the own ray that is closest to the other; it passes smoothly through infinity to points
    behind the camera. The miss is the triple product of unit vectors. No ray is too parallel and no baseline too
    short for finite numbers.

    Source: Hartley & Sturm (1997), "Triangulation", the mid-point method.
    """
    cosine = (own * other).sum(dim=-1)
    squared_sine = (1 - cosine.square()).clamp(min=0)
    along = cosine * (other * baseline).sum(dim=-1) - (own * baseline).sum(dim=-1)
    nearness = torch.atan2(squared_sine, along)
    direction = baseline / baseline.norm(dim=-1, keepdim=True).clamp(min=_TINY)
    miss = (direction * torch.linalg.cross(own, other)).sum(dim=-1)
    return torch.stack([nearness, squared_sine.sqrt(), miss], dim=-1)
