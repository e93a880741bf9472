"""Explicit matches: where each patch is found in other images, worked out before the trunk and told to it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from page4d.layers.block import initialise_linears
from page4d.layers.feed_forward import FeedForward
from page4d.models.input_config import MatchConfig, MatchTarget

_FIRST_SHARPNESS = 10.0
_MOST_SHARPNESS = 100.0
_SAID_OF_A_TARGET = 6
"""Expected position (2), displacement (2), best cosine, and how concentrated the distribution is."""


@dataclass(frozen=True, kw_only=True)
class ViewMatches:
    """What `Matches` are, of one view of a rig of mixed sizes: images of Q patches have units of their own."""

    log_probability: tuple[Float[Tensor, "B T P Q"], ...]
    """By target."""
    expected: Float[Tensor, "B T G P 2"]
    targets: tuple[MatchTarget, ...]


@dataclass(frozen=True, kw_only=True)
class Matches:
    """For every patch and target, log-probabilities of where it is found, and the position to expect.

    Positions are (x, y) with the image's middle at 0 and half its long side as the unit.
    """

    log_probability: Float[Tensor, "B T V G P P"]
    expected: Float[Tensor, "B T V G P 2"]
    targets: tuple[MatchTarget, ...]

    def of_view(self, view: int) -> ViewMatches:
        """Return those of one view."""
        return ViewMatches(
            log_probability=self.log_probability[:, :, view].unbind(2),
            expected=self.expected[:, :, view],
            targets=self.targets,
        )


class _Found(NamedTuple):
    """What comparing patches with those of one other image gives, and what of it is told."""

    log_probability: Float[Tensor, "*images P Q"]
    expected: Float[Tensor, "*images P 2"]
    said: list[Tensor]


class PatchMatching(nn.Module):
    """Compare learned descriptors of patches with those of other images and tell each patch what was found.

    The last layer starts at zero, so that an untrained module says nothing.

    Source: soft arg-max of cosine similarities, as in Kendall et al. (2017), eq. 1, over patches of another image.
    """

    def __init__(self, config: MatchConfig, dim: int) -> None:
        super().__init__()
        self.config = config
        self.descriptor = nn.Linear(dim, config.dim)
        self.log_sharpness = nn.Parameter(torch.tensor(_FIRST_SHARPNESS).log())
        self.tell = FeedForward(2 + _SAID_OF_A_TARGET * len(config.targets), config.hidden, dim)
        initialise_linears(self)
        nn.init.zeros_(self.tell.fc2.weight)

    def forward(
        self, patches: Float[Tensor, "B T V P C"], grid: tuple[int, int]
    ) -> tuple[Float[Tensor, "B T V P C"], Matches]:
        """Return what to add to the patch tokens, and the matches."""
        num_times, num_views = patches.shape[1:3]
        descriptors = functional.normalize(self.descriptor(patches), dim=-1)
        own = patch_centers(grid, patches.device).to(descriptors.dtype)
        said: list[Tensor] = [own.expand(*patches.shape[:4], 2)]
        log_probabilities, positions = [], []
        for target in self.config.targets:
            times, views = target_images(target, num_times, num_views, patches.device)
            found = self._find(descriptors, own, descriptors[:, times, views], own)
            log_probabilities.append(found.log_probability)
            positions.append(found.expected)
            said += found.said
        matches = Matches(
            log_probability=torch.stack(log_probabilities, dim=3),
            expected=torch.stack(positions, dim=3),
            targets=self.config.targets,
        )
        return self.tell(torch.cat(said, dim=-1)), matches

    def between(
        self, patches: Sequence[Float[Tensor, "B T _ C"]], grids: Sequence[tuple[int, int]]
    ) -> tuple[list[Float[Tensor, "B T _ C"]], tuple[ViewMatches, ...]]:
        """Do the same for views of different sizes, one by one."""
        num_times, num_views = patches[0].shape[1], len(patches)
        descriptors = [functional.normalize(self.descriptor(part), dim=-1) for part in patches]
        centers = [
            patch_centers(grid, part.device).to(part.dtype) for grid, part in zip(grids, descriptors, strict=True)
        ]
        told, matches = [], []
        for view, own in enumerate(centers):
            said: list[Tensor] = [own.expand(*patches[view].shape[:3], 2)]
            seen = []
            for target in self.config.targets:
                times, views = target_images(target, num_times, num_views)
                other = int(views[0, view])
                others = descriptors[other][:, times[:, view]]
                seen.append(self._find(descriptors[view], own, others, centers[other]))
                said += seen[-1].said
            told.append(self.tell(torch.cat(said, dim=-1)))
            matches.append(
                ViewMatches(
                    log_probability=tuple(found.log_probability for found in seen),
                    expected=torch.stack([found.expected for found in seen], dim=2),
                    targets=self.config.targets,
                )
            )
        return told, tuple(matches)

    def _find(
        self,
        descriptors: Float[Tensor, "*images P D"],
        own: Float[Tensor, "P 2"],
        others: Float[Tensor, "*images Q D"],
        centers: Float[Tensor, "Q 2"],
    ) -> _Found:
        """Look for patches among those of other images, which have these centres."""
        sharpness = self.log_sharpness.exp().clamp(max=_MOST_SHARPNESS)
        cosine = descriptors @ others.transpose(-1, -2)
        log_probability = functional.log_softmax(sharpness * cosine, dim=-1)
        probability = log_probability.exp()
        expected = probability @ centers
        best = cosine.amax(dim=-1, keepdim=True)
        concentration = probability.square().sum(dim=-1, keepdim=True).sqrt()
        return _Found(log_probability, expected, [expected, expected - own, best, concentration])


def patch_centers(grid: tuple[int, int], device: torch.device | str = "cpu") -> Float[Tensor, "P 2"]:
    """Return (x, y) of every patch's middle: 0 in the middle of the image, half its long side as the unit."""
    rows, columns = grid
    half = max(grid) / 2
    y = (torch.arange(rows, device=device) + 0.5 - rows / 2) / half
    x = (torch.arange(columns, device=device) + 0.5 - columns / 2) / half
    return torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1).flatten(0, 1)


def target_images(
    target: MatchTarget, num_times: int, num_views: int, device: torch.device | str = "cpu"
) -> tuple[Int[Tensor, "T V"], Int[Tensor, "T V"]]:
    """Return for every image the instant and the view of the image in which its patches are looked for."""
    times, views = torch.meshgrid(
        torch.arange(num_times, device=device), torch.arange(num_views, device=device), indexing="ij"
    )
    if target is MatchTarget.FIRST_VIEW:
        return times, torch.zeros_like(views)
    if target is MatchTarget.NEXT_VIEW:
        return times, (views + 1) % num_views
    if target is MatchTarget.PREVIOUS_VIEW:
        return times, (views - 1) % num_views
    if target is MatchTarget.FIRST_TIME:
        return torch.zeros_like(times), views
    return (times + 1) % num_times, views
