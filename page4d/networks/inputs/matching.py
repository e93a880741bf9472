"""Explicit patch matches between images, and their triangulation by known cameras, embedded into patch tokens.

Matches are computed from descriptors, before the trunk.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from page4d.geometry.camera import normalize_pixels
from page4d.geometry.transforms import camera_centers
from page4d.networks.conditioning import Grid, SizeGroups
from page4d.networks.config_parts import MatchConfig, MatchTarget
from page4d.networks.inputs.known_cameras import patch_directions, relative_cameras
from page4d.networks.layers.block import FeedForward, initialise_linears
from page4d.networks.layers.execution import full_precision, in_chunks

FINE_STRIDE = 2
"""Stride in pixels of the encoder's fine feature map."""

_INITIAL_SHARPNESS = 10.0
_MAX_SHARPNESS = 100.0
_INITIAL_UNSEEN_COSINE = 0.5
"""Initial cosine similarity below which a patch counts as not visible."""

_FEATURES_PER_TARGET = 6
"""Position (2), displacement (2), confidence, and probability that the patch is not visible."""

_MAX_PAIRS = 1 << 24
"""Pairs of descriptors compared at once in inference: 64 MB of logits, a few times over."""


class Descriptors(NamedTuple):
    """Unit vectors of the patches of an image and of the cells that patches consist of, in row-major order."""

    patches: Float[Tensor, "*images P D"]
    cells: Float[Tensor, "*images Q D"]


class PatchDescriptors(nn.Module):
    """Unfold every patch token into cells, add the fine feature map and mix neighbours by a convolution.

    The descriptor of a patch is a projection of all its cells; it stands for the patch center, where they meet.
    """

    def __init__(self, config: MatchConfig, dim: int, patch_size: int) -> None:
        super().__init__()
        self.finer, self.dim = config.finer, config.dim
        self.unfold = nn.Linear(dim, config.finer**2 * config.dim)
        self.detail: nn.Conv2d | None = None
        if config.fine_dim:
            stride = patch_size // (FINE_STRIDE * config.finer)
            self.detail = nn.Conv2d(config.fine_dim, config.dim, kernel_size=3, stride=stride, padding=1)
        self.mix = nn.Conv2d(config.dim, config.dim, kernel_size=3, padding=1)
        self.join = nn.Linear(config.finer**2 * config.dim, config.dim)
        initialise_linears(self)

    def forward(
        self,
        tokens: Float[Tensor, "*images P C"],
        grid: tuple[int, int],
        fine: Float[Tensor, "*images F h w"] | None = None,
    ) -> Descriptors:
        """Compute the descriptors of images of one size."""
        leading, rows, columns, finer = tokens.shape[:-2], *grid, self.finer
        unfolded = self.unfold(tokens).reshape(-1, rows, columns, finer, finer, self.dim)
        cells = unfolded.permute(0, 5, 1, 3, 2, 4).reshape(-1, self.dim, rows * finer, columns * finer)
        if self.detail is not None and fine is not None:
            cells = cells + self.detail(fine.flatten(0, -4))
        cells = self.mix(functional.gelu(cells))
        folded = cells.reshape(-1, self.dim, rows, finer, columns, finer).permute(0, 2, 4, 3, 5, 1)
        patches = self.join(folded.reshape(*leading, rows * columns, -1))
        cells = cells.flatten(2).transpose(1, 2).unflatten(0, leading)
        return Descriptors(functional.normalize(patches, dim=-1), functional.normalize(cells, dim=-1))


@dataclass(frozen=True, kw_only=True)
class Likelihoods:
    """Log-probabilities that a patch matches each cell of the other image, and that it is not visible there."""

    cell: Float[Tensor, "*images P Q"]
    unseen: Float[Tensor, "*images P"]


@dataclass(frozen=True, kw_only=True)
class MatchFeatures:
    """Descriptors scaled so that products of patches and cells are logits; `unseen` is the logit of no match.

    A patch side has `finer` cells.
    """

    patches: Float[Tensor, "B T W P D"]
    cells: Float[Tensor, "B T W Q D"]
    unseen: Float[Tensor, ""]
    finer: int

    def of_view(self, view: int) -> "MatchFeatures":
        """Return those of one view, W = 1."""
        chosen = slice(view, view + 1)
        return replace(self, patches=self.patches[:, :, chosen], cells=self.cells[:, :, chosen])


@dataclass(frozen=True, kw_only=True)
class Matches:
    """Matches of the patches of W views of one size with G target images each: position and confidence.

    Positions are (x, y) in the target image, 0 in its middle, in units of half its long side: means over the most
    likely cell and its neighbours, whose total probability is the confidence.
    """

    expected: Float[Tensor, "B T W G P 2"]
    confidence: Float[Tensor, "B T W G P"]
    targets: tuple[MatchTarget, ...]
    likelihoods: Likelihoods | None = None
    """Of images [B, T, W, G]; only with gradients enabled, and if all views have one size."""
    features: MatchFeatures | None = None
    """For comparisons at other positions; only with gradients disabled."""

    def of_view(self, view: int) -> "Matches":
        """Return the matches of one view, W = 1, without likelihoods."""
        return Matches(
            expected=self.expected[:, :, view : view + 1],
            confidence=self.confidence[:, :, view : view + 1],
            targets=self.targets,
            features=None if self.features is None else self.features.of_view(view),
        )


class _Found(NamedTuple):
    """Matches with one target image each: position (2), confidence, and probability that the patch is not visible."""

    values: Float[Tensor, "*images P 4"]
    likelihoods: Likelihoods | None = None


class PatchMatching(nn.Module):
    """Match learned patch descriptors with the cells of other images and embed the matches into patch tokens.

    A patch is not visible where no cell exceeds a learned cosine similarity. The last layer starts at zero: an
    untrained module leaves the tokens unchanged.

    Source: Sun et al. (2021), LoFTR, section 3.4 (the expectation over a window around the most likely cell); Sarlin
    et al. (2020), SuperGlue, eq. 8 (a dustbin for unmatched points).
    """

    def __init__(self, config: MatchConfig, dim: int, patch_size: int) -> None:
        super().__init__()
        self.config = config
        self.tell = FeedForward(2 + _FEATURES_PER_TARGET * len(config.targets), config.hidden, dim)
        initialise_linears(self)
        self.descriptors = PatchDescriptors(config, dim, patch_size)
        self.log_sharpness = nn.Parameter(torch.tensor(_INITIAL_SHARPNESS).log())
        self.unseen_cosine = nn.Parameter(torch.tensor(_INITIAL_UNSEEN_COSINE))
        nn.init.zeros_(self.tell.fc2.weight)

    def forward(
        self,
        patches: Sequence[Float[Tensor, "B T W _ C"]],
        sizes: SizeGroups,
        fine: Sequence[Float[Tensor, "B T W F _ _"] | None],
    ) -> tuple[list[Float[Tensor, "B T W _ C"]], list[Matches]]:
        """Return, for every group of views of one size, what to add to its patch tokens, and its matches."""
        described: list[Descriptors] = [
            self.descriptors(*group) for group in zip(patches, sizes.grids, fine, strict=True)
        ]
        embedded, matches = [], []
        for group, own in enumerate(described):
            found = [self._match(group, target, described, sizes) for target in self.config.targets]
            embedded.append(self._embed(found, sizes.grids[group], patches[group]))
            matches.append(
                Matches(
                    expected=torch.stack([one.values[..., :2] for one in found], dim=3),
                    confidence=torch.stack([one.values[..., 2] for one in found], dim=3),
                    targets=self.config.targets,
                    likelihoods=_stacked_likelihoods([one.likelihoods for one in found]),
                    features=self._features(own),
                )
            )
        return embedded, matches

    def _match(self, group: int, target: MatchTarget, described: Sequence[Descriptors], sizes: SizeGroups) -> _Found:
        """Match the patches of a group with one target image per view, target group by target group."""
        members, patches = sizes.members[group], described[group].patches
        times, views = target_images(target, patches.shape[1], sizes.num_views, patches.device)
        if sizes.are_one:
            return self._find(patches, described[0].cells[:, times, views], sizes.grids[0])
        found: dict[int, Tensor] = {}
        for other, (grid, cells) in enumerate(zip(sizes.grids, described, strict=True)):
            places = {view: place for place, view in enumerate(sizes.members[other])}
            chosen = [place for place, view in enumerate(members) if int(views[0, view]) in places]
            if chosen:
                when = times[:, [members[place] for place in chosen]]
                where = torch.tensor([places[int(views[0, members[place]])] for place in chosen], device=when.device)
                matched = self._find(patches[:, :, chosen], cells.cells[:, when, where], grid).values
                found |= {place: matched[:, :, index] for index, place in enumerate(chosen)}
        return _Found(torch.stack([found[place] for place in range(len(members))], dim=2))

    def _embed(
        self, found: Sequence[_Found], grid: Grid, patches: Float[Tensor, "*images P C"]
    ) -> Float[Tensor, "*images P C"]:
        """Return the embedding of all matches of patches on this grid."""
        own = patch_centers(grid, patches.device).to(patches.dtype)
        features = [own.expand(*patches.shape[:-1], 2)]
        for one in found:
            expected, chances = one.values[..., :2], one.values[..., 2:]
            features += [expected, expected - own, chances]
        return self.tell(torch.cat(features, dim=-1))

    def _features(self, described: Descriptors) -> MatchFeatures | None:
        if torch.is_grad_enabled():
            return None
        patches, cells = (part.to(torch.promote_types(part.dtype, torch.float32)) for part in described)
        sharpness = self._sharpness()
        return MatchFeatures(
            patches=sharpness * patches, cells=cells, unseen=sharpness * self.unseen_cosine, finer=self.config.finer
        )

    def _sharpness(self) -> Float[Tensor, ""]:
        return self.log_sharpness.exp().clamp(max=_MAX_SHARPNESS)

    def _find(self, patches: Float[Tensor, "*images P D"], cells: Float[Tensor, "*images Q D"], grid: Grid) -> _Found:
        """Match patches with the cells of other images, whose patches form this grid.

        With gradients enabled all at once, else in chunks of bounded memory and without likelihoods.
        """
        finer = (grid[0] * self.config.finer, grid[1] * self.config.finer)
        if torch.is_grad_enabled():
            return self._compare(patches, cells, finer)
        num_patches, pairs = patches.shape[-2], patches.shape[:-1].numel() * cells.shape[-2]
        at_once = -(-num_patches // min(num_patches, -(-pairs // _MAX_PAIRS)))

        def compared(rows: slice) -> Tensor:
            return self._compare(patches[..., rows, :], cells, finer).values

        return _Found(in_chunks(compared, num_patches, at_once, dim=patches.ndim - 2))

    def _compare(
        self, patches: Float[Tensor, "*images P D"], cells: Float[Tensor, "*images Q D"], finer: Grid
    ) -> _Found:
        """Compare all pairs in at least float32, which sub-cell positions need."""
        dtype = torch.promote_types(patches.dtype, torch.float32)
        with full_precision(patches.device):
            patches, cells, sharpness = patches.to(dtype), cells.to(dtype), self._sharpness()
            likelihoods = match_likelihoods(sharpness * patches, cells, sharpness * self.unseen_cosine)
            near, inside = _neighbourhood(likelihoods.cell.argmax(dim=-1), finer)
            weights = likelihoods.cell.gather(-1, near).exp() * inside
            confidence = weights.sum(dim=-1)
            centers = patch_centers(finer, patches.device).to(weights.dtype)
            expected = (weights[..., None] * centers[near]).sum(dim=-2) / confidence[..., None]
            values = torch.cat([expected, confidence[..., None], likelihoods.unseen.exp()[..., None]], dim=-1)
            return _Found(values, likelihoods)


def match_likelihoods(
    patches: Float[Tensor, "*images P D"], cells: Float[Tensor, "*images Q D"], unseen: Float[Tensor, ""]
) -> Likelihoods:
    """Return the log-probabilities of all matches from the parts of `MatchFeatures`."""
    logits = patches @ cells.transpose(-1, -2)
    log_sum = torch.logaddexp(logits.logsumexp(dim=-1), unseen)
    return Likelihoods(cell=logits - log_sum[..., None], unseen=unseen - log_sum)


def patch_centers(grid: Grid, device: torch.device | str = "cpu") -> Float[Tensor, "P 2"]:
    """Return (x, y) of every patch center: 0 in the middle of the image, in units of half its long side."""
    rows, columns = grid
    half = max(grid) / 2
    y = (torch.arange(rows, device=device) + 0.5 - rows / 2) / half
    x = (torch.arange(columns, device=device) + 0.5 - columns / 2) / half
    return torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1).flatten(0, 1)


def to_pixels(positions: Float[Tensor, "*places 2"], grid: Grid, patch_size: int) -> Float[Tensor, "*places 2"]:
    """Convert positions as in `Matches` to pixels of an image whose patches form this grid."""
    middle = positions.new_tensor([grid[1], grid[0]]) * patch_size / 2
    return positions * (max(grid) * patch_size / 2) + middle


def target_images(
    target: MatchTarget, num_times: int, num_views: int, device: torch.device | str = "cpu"
) -> tuple[Int[Tensor, "T V"], Int[Tensor, "T V"]]:
    """Return the time and view indices of the target image of every image; the view index is constant in time."""
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


def _stacked_likelihoods(found: Sequence[Likelihoods | None]) -> Likelihoods | None:
    kept = [one for one in found if one is not None]
    if not kept:
        return None
    return Likelihoods(
        cell=torch.stack([one.cell for one in kept], dim=3), unseen=torch.stack([one.unseen for one in kept], dim=3)
    )


def _neighbourhood(
    cell: Int[Tensor, "*images"], grid: Grid
) -> tuple[Int[Tensor, "*images nine"], Float[Tensor, "*images nine"]]:
    """Return a cell and its eight neighbours, and 1 for those inside the image, 0 for the others."""
    step = torch.arange(-1, 2, device=cell.device)
    row = (cell // grid[1])[..., None, None] + step[:, None]
    column = (cell % grid[1])[..., None, None] + step
    inside = (row >= 0) & (row < grid[0]) & (column >= 0) & (column < grid[1])
    places = row.clamp(0, grid[0] - 1) * grid[1] + column.clamp(0, grid[1] - 1)
    return places.flatten(-2), inside.flatten(-2).float()


_TRIANGULATED_FEATURES = 3
_EPSILON = 1e-12


class Triangulation(nn.Module):
    """Intersect the rays of matched patches and embed the result; the last layer starts at zero."""

    def __init__(self, config: MatchConfig, dim: int) -> None:
        super().__init__()
        self.tell = FeedForward(_TRIANGULATED_FEATURES * len(config.targets), config.hidden, dim)
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
        grids = torch.tensor([sizes.grids[group] for group, _ in sizes.places], device=intrinsics.device)
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
