"""Explicit matches: where each patch is found in other images, worked out before the trunk and told to it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from page4d.layers.block import initialise_linears
from page4d.layers.feed_forward import FeedForward
from page4d.layers.precision import full_precision
from page4d.models.config import MatchConfig, MatchTarget
from page4d.models.inputs.descriptors import Descriptors, PatchDescriptors

_FIRST_SHARPNESS = 10.0
_MOST_SHARPNESS = 100.0
_FIRST_UNSEEN = 0.5
"""Cosine that anything must beat to be a match, to begin with."""

_SAID_OF_A_TARGET = 6
"""Position (2), displacement (2), how sure it is, and whether it is seen at all."""

_COMPARED_AT_ONCE = 1 << 24
"""Pairs of descriptors where nothing is to be learned: 64 MB of numbers, a few times over."""


@dataclass(frozen=True, kw_only=True)
class Likelihoods:
    """Log-probabilities that a patch is found in each cell of the other image, and that it is not seen there."""

    cell: Float[Tensor, "*images P Q"]
    unseen: Float[Tensor, "*images P"]


@dataclass(frozen=True, kw_only=True)
class Appearance:
    """What patches and cells look like: the products of both are logits, and `unseen` is that of being nowhere.

    There are `finer` cells to a patch's side.
    """

    patches: Float[Tensor, "B T *views P D"]
    cells: Float[Tensor, "B T *views Q D"]
    unseen: Float[Tensor, ""]
    finer: int

    def of_view(self, view: int) -> "Appearance":
        """Return that of one view."""
        return replace(self, patches=self.patches[:, :, view], cells=self.cells[:, :, view])


@dataclass(frozen=True, kw_only=True)
class ViewMatches:
    """What `Matches` are, of one view of a rig of mixed sizes: images of Q cells have units of their own."""

    likelihoods: tuple[Likelihoods, ...] | None
    """By target."""
    expected: Float[Tensor, "B T G P 2"]
    confidence: Float[Tensor, "B T G P"]
    targets: tuple[MatchTarget, ...]
    appearance: Appearance | None = None


@dataclass(frozen=True, kw_only=True)
class Matches:
    """For every patch and target the position where its middle is found, and how sure that is.

    Positions are (x, y) with the image's middle at 0 and half its long side as the unit: means over the likeliest
    cell and its neighbours, whose probability together is the confidence. All probabilities are there only while
    something is learned.
    """

    likelihoods: Likelihoods | None
    """Of images [B, T, V, G]."""
    expected: Float[Tensor, "B T V G P 2"]
    confidence: Float[Tensor, "B T V G P"]
    targets: tuple[MatchTarget, ...]
    appearance: Appearance | None = None
    """What was compared, so that it can be compared at other places; only while nothing is learned."""

    def of_view(self, view: int) -> ViewMatches:
        """Return those of one view."""
        of_targets: tuple[Likelihoods, ...] | None = None
        if self.likelihoods is not None:
            cells, unseen = self.likelihoods.cell[:, :, view], self.likelihoods.unseen[:, :, view]
            pairs = zip(cells.unbind(2), unseen.unbind(2), strict=True)
            of_targets = tuple(Likelihoods(cell=cell, unseen=one) for cell, one in pairs)
        return ViewMatches(
            likelihoods=of_targets,
            expected=self.expected[:, :, view],
            confidence=self.confidence[:, :, view],
            targets=self.targets,
            appearance=None if self.appearance is None else self.appearance.of_view(view),
        )


class _Found(NamedTuple):
    """What comparing patches with those of one other image gives."""

    likelihoods: Likelihoods | None
    expected: Float[Tensor, "*images P 2"]
    confidence: Float[Tensor, "*images P"]
    unseen: Float[Tensor, "*images P"]

    def said(self, own: Float[Tensor, "P 2"]) -> Float[Tensor, "*images P 6"]:
        """Return what patches with these middles are told of it."""
        return torch.cat(
            [self.expected, self.expected - own, self.confidence[..., None], self.unseen[..., None]], dim=-1
        )


class PatchMatching(nn.Module):
    """Compare learned descriptors of patches with those of cells of other images; tell each patch what was found.

    What no cell resembles more than a learned cosine is not seen. The last layer starts at zero, so that an
    untrained module says nothing.

    Source: Sun et al. (2021), LoFTR, section 3.4: the expectation over a window around the likeliest cell; Sarlin et
    al. (2020), SuperGlue, eq. 8: one more place for what is not seen.
    """

    def __init__(self, config: MatchConfig, dim: int, patch_size: int) -> None:
        super().__init__()
        self.config = config
        self.tell = FeedForward(2 + _SAID_OF_A_TARGET * len(config.targets), config.hidden, dim)
        initialise_linears(self)
        self.descriptors = PatchDescriptors(config, dim, patch_size)
        self.log_sharpness = nn.Parameter(torch.tensor(_FIRST_SHARPNESS).log())
        self.unseen_cosine = nn.Parameter(torch.tensor(_FIRST_UNSEEN))
        nn.init.zeros_(self.tell.fc2.weight)

    def forward(
        self,
        patches: Float[Tensor, "B T V P C"],
        grid: tuple[int, int],
        fine: Float[Tensor, "B T V F h w"] | None = None,
    ) -> tuple[Float[Tensor, "B T V P C"], Matches]:
        """Return what to add to the patch tokens, and the matches."""
        num_times, num_views = patches.shape[1:3]
        described: Descriptors = self.descriptors(patches, grid, fine)
        found = []
        for target in self.config.targets:
            times, views = target_images(target, num_times, num_views, patches.device)
            found.append(self._find(described.patches, described.cells[:, times, views], grid))
        kept = [one.likelihoods for one in found if one.likelihoods is not None]
        likelihoods: Likelihoods | None = None
        if kept:
            likelihoods = Likelihoods(
                cell=torch.stack([one.cell for one in kept], dim=3),
                unseen=torch.stack([one.unseen for one in kept], dim=3),
            )
        matches = Matches(
            likelihoods=likelihoods,
            expected=torch.stack([one.expected for one in found], dim=3),
            confidence=torch.stack([one.confidence for one in found], dim=3),
            targets=self.config.targets,
            appearance=self._appearance(described),
        )
        return self._told(found, grid, patches), matches

    def between(
        self,
        patches: Sequence[Float[Tensor, "B T _ C"]],
        grids: Sequence[tuple[int, int]],
        fine: Sequence[Float[Tensor, "B T F _ _"]] | None = None,
    ) -> tuple[list[Float[Tensor, "B T _ C"]], tuple[ViewMatches, ...]]:
        """Do the same for views of different sizes, one by one."""
        num_times, num_views = patches[0].shape[1], len(patches)
        maps = [None] * num_views if fine is None else fine
        described = [self.descriptors(*one) for one in zip(patches, grids, maps, strict=True)]
        told, matches = [], []
        for view, grid in enumerate(grids):
            found = []
            for target in self.config.targets:
                times, views = target_images(target, num_times, num_views)
                other = int(views[0, view])
                cells = described[other].cells[:, times[:, view]]
                found.append(self._find(described[view].patches, cells, grids[other]))
            told.append(self._told(found, grid, patches[view]))
            kept = tuple(one.likelihoods for one in found if one.likelihoods is not None)
            matches.append(
                ViewMatches(
                    likelihoods=kept or None,
                    expected=torch.stack([one.expected for one in found], dim=2),
                    confidence=torch.stack([one.confidence for one in found], dim=2),
                    targets=self.config.targets,
                    appearance=self._appearance(described[view]),
                )
            )
        return told, tuple(matches)

    def _told(
        self, found: Sequence[_Found], grid: tuple[int, int], patches: Float[Tensor, "*images P C"]
    ) -> Float[Tensor, "*images P C"]:
        """Return what the patches of this grid are told of what was found."""
        own = patch_centers(grid, patches.device).to(patches.dtype)
        said = [own.expand(*patches.shape[:-1], 2), *(one.said(own) for one in found)]
        told: Tensor = self.tell(torch.cat(said, dim=-1))
        return told

    def _appearance(self, described: Descriptors) -> Appearance | None:
        if torch.is_grad_enabled():
            return None
        patches, cells = (part.to(torch.promote_types(part.dtype, torch.float32)) for part in described)
        sharpness = self._sharpness()
        return Appearance(
            patches=sharpness * patches,
            cells=cells,
            unseen=sharpness * self.unseen_cosine,
            finer=self.config.finer,
        )

    def _sharpness(self) -> Float[Tensor, ""]:
        return self.log_sharpness.exp().clamp(max=_MOST_SHARPNESS)

    def _find(
        self, patches: Float[Tensor, "*images P D"], cells: Float[Tensor, "*images Q D"], grid: tuple[int, int]
    ) -> _Found:
        """Look for patches among the cells of other images, whose patches form this grid.

        All at once while something is learned, else as many patches at a time as memory likes.
        """
        finer = (grid[0] * self.config.finer, grid[1] * self.config.finer)
        if torch.is_grad_enabled():
            return self._compare(patches, cells, finer)
        num_patches, pairs = patches.shape[-2], patches.shape[:-1].numel() * cells.shape[-2]
        num_parts = min(num_patches, -(-pairs // _COMPARED_AT_ONCE))
        parts = [
            self._compare(part, cells, finer)._replace(likelihoods=None) for part in patches.chunk(num_parts, dim=-2)
        ]
        return _Found(
            None,
            torch.cat([part.expected for part in parts], dim=-2),
            torch.cat([part.confidence for part in parts], dim=-1),
            torch.cat([part.unseen for part in parts], dim=-1),
        )

    def _compare(
        self, patches: Float[Tensor, "*images P D"], cells: Float[Tensor, "*images Q D"], finer: tuple[int, int]
    ) -> _Found:
        """Compare all of them, in float32 at least: positions within cells hang on the last digits."""
        dtype = torch.promote_types(patches.dtype, torch.float32)
        with full_precision(patches.device):
            return self._compared(patches.to(dtype), cells.to(dtype), finer)

    def _compared(
        self, patches: Float[Tensor, "*images P D"], cells: Float[Tensor, "*images Q D"], finer: tuple[int, int]
    ) -> _Found:
        sharpness = self._sharpness()
        likelihoods = likelihoods_of(sharpness * patches, cells, sharpness * self.unseen_cosine)
        log_cell, log_unseen = likelihoods.cell, likelihoods.unseen
        near, inside = _neighbourhood(log_cell.argmax(dim=-1), finer)
        weights = log_cell.gather(-1, near).exp() * inside
        confidence = weights.sum(dim=-1)
        centers = patch_centers(finer, patches.device).to(weights.dtype)
        expected = (weights[..., None] * centers[near]).sum(dim=-2) / confidence[..., None]
        return _Found(likelihoods, expected, confidence, log_unseen.exp())


def likelihoods_of(
    patches: Float[Tensor, "*images P D"], cells: Float[Tensor, "*images Q D"], unseen: Float[Tensor, ""]
) -> Likelihoods:
    """Return how likely patches are found in each of the cells, or nowhere, from the parts of an `Appearance`."""
    logits = patches @ cells.transpose(-1, -2)
    log_sum = torch.logaddexp(logits.logsumexp(dim=-1), unseen)
    return Likelihoods(cell=logits - log_sum[..., None], unseen=unseen - log_sum)


def _neighbourhood(
    cell: Int[Tensor, "*images"], grid: tuple[int, int]
) -> tuple[Int[Tensor, "*images nine"], Float[Tensor, "*images nine"]]:
    """Return a cell and its eight neighbours, and 1 for those in the image, 0 for others."""
    step = torch.arange(-1, 2, device=cell.device)
    row = (cell // grid[1])[..., None, None] + step[:, None]
    column = (cell % grid[1])[..., None, None] + step
    inside = (row >= 0) & (row < grid[0]) & (column >= 0) & (column < grid[1])
    places = row.clamp(0, grid[0] - 1) * grid[1] + column.clamp(0, grid[1] - 1)
    return places.flatten(-2), inside.flatten(-2).float()


def patch_centers(grid: tuple[int, int], device: torch.device | str = "cpu") -> Float[Tensor, "P 2"]:
    """Return (x, y) of every patch's middle: 0 in the middle of the image, half its long side as the unit."""
    rows, columns = grid
    half = max(grid) / 2
    y = (torch.arange(rows, device=device) + 0.5 - rows / 2) / half
    x = (torch.arange(columns, device=device) + 0.5 - columns / 2) / half
    return torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1).flatten(0, 1)


def to_pixels(
    positions: Float[Tensor, "*places 2"], grid: tuple[int, int], patch_size: int
) -> Float[Tensor, "*places 2"]:
    """Turn positions as those of `Matches` into px of an image whose patches form this grid."""
    middle = positions.new_tensor([grid[1], grid[0]]) * patch_size / 2
    return positions * (max(grid) * patch_size / 2) + middle


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
