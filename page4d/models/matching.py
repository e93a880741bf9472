"""Explicit matches: where each patch is found in other images, worked out before the trunk and told to it."""

from dataclasses import dataclass

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
class Matches:
    """For every patch and target, log-probabilities of where it is found, and the position to expect.

    Positions are (x, y) with the image's middle at 0 and half its long side as the unit.
    """

    log_probability: Float[Tensor, "B T V G P P"]
    expected: Float[Tensor, "B T V G P 2"]
    targets: tuple[MatchTarget, ...]


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
        sharpness = self.log_sharpness.exp().clamp(max=_MOST_SHARPNESS)
        said: list[Tensor] = [own.expand(*patches.shape[:4], 2)]
        log_probabilities, positions = [], []
        for target in self.config.targets:
            times, views = target_images(target, num_times, num_views, patches.device)
            cosine = descriptors @ descriptors[:, times, views].transpose(-1, -2)
            log_probability = functional.log_softmax(sharpness * cosine, dim=-1)
            probability = log_probability.exp()
            expected = probability @ own
            log_probabilities.append(log_probability)
            positions.append(expected)
            best = cosine.amax(dim=-1, keepdim=True)
            concentration = probability.square().sum(dim=-1, keepdim=True).sqrt()
            said += [expected, expected - own, best, concentration]
        found = Matches(
            log_probability=torch.stack(log_probabilities, dim=3),
            expected=torch.stack(positions, dim=3),
            targets=self.config.targets,
        )
        return self.tell(torch.cat(said, dim=-1)), found


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
