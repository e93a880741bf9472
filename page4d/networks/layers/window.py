"""Attention inside windows of a feature map, and images of different sizes packed into sequences of one length.

Windows are regular, or shifted with a relative position bias. Packing follows Patch n' Pack.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from page4d.errors import ShapeError
from page4d.networks.layers.attention import Attention, PairLogits, grid_positions
from page4d.networks.layers.block import INIT_STD, cut_patches, join_patches

_FORBIDDEN = -100.0
"""Added to the logits of tokens that are not neighbours in the image."""


def partition_windows(maps: Float[Tensor, "F rows columns C"], window: int) -> Float[Tensor, "FW N C"]:
    """Cut maps whose sides are multiples of the window into windows, image by image and row by row."""
    return cut_patches(maps, (window, window)).reshape(-1, window * window, maps.shape[-1])


def merge_windows(
    windows: Float[Tensor, "FW N C"], window: int, grid: tuple[int, int]
) -> Float[Tensor, "F rows columns C"]:
    """Invert `partition_windows` for maps of (rows, columns)."""
    patches = windows.reshape(-1, grid[0] // window, grid[1] // window, window * window * windows.shape[-1])
    return join_patches(patches, (window, window))


def pad_to_multiple(maps: Float[Tensor, "F rows columns C"], multiple: int) -> Float[Tensor, "F rows2 columns2 C"]:
    """Pad with rows and columns of zeros at the end until both sides are multiples."""
    rows, columns = maps.shape[1:3]
    if rows % multiple == 0 and columns % multiple == 0:
        return maps
    return functional.pad(maps, (0, 0, 0, -columns % multiple, 0, -rows % multiple))


def offset_index(window: int, covered: int | None = None) -> Int[Tensor, "N N"]:
    """Return the row of the relative position bias table for every (query, key) pair of a window.

    The table covers windows of side `covered`, by default `window`.

    Source: Liu et al. (2021), Swin, section 3.2.
    """
    covered = covered or window
    places = grid_positions((window, window))
    offsets = places[:, None] - places[None, :] + covered - 1
    return offsets[..., 0] * (2 * covered - 1) + offsets[..., 1]


def shifted_mask(
    grid: tuple[int, int], window: int, shift: int, device: torch.device | str = "cpu"
) -> Float[Tensor, "W N N"]:
    """Return logits of 0 for tokens of a rolled map that are neighbours in the image, and -100 for others.

    Rolling a map by `shift` puts its first rows and columns after its last ones, into the same windows.

    Source: Liu et al. (2021), Swin, figure 4.
    """
    regions = []
    for side in grid:
        place = torch.arange(side, device=device)
        regions.append((place >= side - window).long() + (place >= side - shift).long())
    labels = (3 * regions[0][:, None] + regions[1])[None, :, :, None]
    tokens = partition_windows(labels, window)[..., 0]
    return torch.where(tokens[:, :, None] == tokens[:, None, :], 0.0, _FORBIDDEN)


class WindowAttention(nn.Module):
    """Attention inside windows that tile the map from its top left corner.

    Incomplete windows are padded with zeros, which are attended to like tokens.
    """

    def __init__(
        self, dim: int, num_heads: int, window: int, *, head_dim: int | None = None, qkv_bias: bool = True
    ) -> None:
        super().__init__()
        self.window = window
        self.inside = Attention(dim, num_heads, head_dim=head_dim, qkv_bias=qkv_bias)

    def forward(self, maps: Float[Tensor, "F rows columns C"]) -> Float[Tensor, "F rows columns C"]:
        """Attend inside every window."""
        rows, columns = maps.shape[1:3]
        padded = pad_to_multiple(maps, self.window)
        mixed = self.inside(partition_windows(padded, self.window))
        return merge_windows(mixed, self.window, (padded.shape[1], padded.shape[2]))[:, :rows, :columns]


class ShiftedWindowAttention(nn.Module):
    """Attention inside windows with a learned relative position bias, and optionally shifted windows.

    A map that is no larger than a window along one axis has windows of its shorter side and no shift. A window that
    is smaller than `window` uses the central part of the bias table.

    Source: Liu et al. (2021), Swin, section 3.2; zero padding as in the public timm code (reference facts).
    """

    def __init__(self, dim: int, num_heads: int, window: int, *, shift: int = 0, qkv_bias: bool = True) -> None:
        super().__init__()
        self.window, self.shift = window, shift
        self.inside = Attention(dim, num_heads, qkv_bias=qkv_bias)
        self.offset_table = nn.Parameter(torch.empty(1, (2 * window - 1) ** 2, num_heads))
        nn.init.trunc_normal_(self.offset_table, std=INIT_STD)

    def forward(self, maps: Float[Tensor, "F rows columns C"]) -> Float[Tensor, "F rows columns C"]:
        """Attend inside every window."""
        frames, rows, columns = maps.shape[:3]
        small = min(rows, columns) <= self.window
        window = min(rows, columns) if small else self.window
        shift = 0 if small else self.shift
        padded = pad_to_multiple(maps.roll((-shift, -shift), dims=(1, 2)) if shift else maps, window)
        grid = (padded.shape[1], padded.shape[2])
        index = offset_index(window, self.window).to(maps.device)
        logits = self.offset_table[:, index].permute(0, 3, 1, 2)
        if shift:
            mask = shifted_mask(grid, window, shift, maps.device)
            logits = (logits + mask[:, None].to(logits.dtype)).repeat(frames, 1, 1, 1)
        mixed = self.inside(partition_windows(padded, window), pair_logits=logits)
        merged = merge_windows(mixed, window, grid)[:, :rows, :columns]
        return merged.roll((shift, shift), dims=(1, 2)) if shift else merged


_OTHER_IMAGE = -1e4
"""Added to the logits of tokens of different images: their attention weight is exactly 0, also in half precision."""


def group_in_order(lengths: Sequence[int], max_tokens: int) -> list[range]:
    """Group images into sequences greedily, in their order.

    Raises:
        ShapeError: if a single image is too long.

    Source: Dehghani et al. (2023), NaViT, section 2.1 (greedy packing).
    """
    groups: list[range] = []
    start = total = 0
    for image, length in enumerate(lengths):
        if length > max_tokens:
            raise ShapeError(f"image {image} has {length} patches, a sequence holds {max_tokens}", "raise max_tokens")
        if total + length > max_tokens:
            groups.append(range(start, image))
            start, total = image, 0
        total += length
    if start < len(lengths):
        groups.append(range(start, len(lengths)))
    return groups


@dataclass(frozen=True, kw_only=True)
class Packing:
    """Sequences of patches of one or more images each, padded at the end.

    `positions` are (row, column) in the image of the patch, `images` the index of that image in its sequence.
    Padding is zero everywhere and has image index 0; no token attends to it.
    """

    patches: Float[Tensor, "S N patch_dim"]
    positions: Int[Tensor, "S N 2"]
    images: Int[Tensor, "S N"]
    lengths: Int[Tensor, " S"]
    num_images: Int[Tensor, " S"]
    most_images: int
    """In one sequence."""

    @property
    def is_token(self) -> Bool[Tensor, "S N"]:
        """Whether an entry is a patch, not padding."""
        return torch.arange(self.images.shape[1], device=self.images.device) < self.lengths[:, None]

    @property
    def slots(self) -> Int[Tensor, " I"]:
        """Image indices of the sequence with the most images."""
        return torch.arange(self.most_images, device=self.images.device)

    @property
    def is_image(self) -> Bool[Tensor, "S I"]:
        """Whether a sequence has an image with this index."""
        return self.slots < self.num_images[:, None]

    def within_images(self) -> PairLogits:
        """Return the logits that restrict the attention of tokens to their own image."""
        return self._allowed(self.images[:, :, None] == self.images[:, None, :])

    def of_images(self) -> PairLogits:
        """Return the logits that restrict one query per image to the tokens of that image."""
        return self._allowed(self.slots[None, :, None] == self.images[:, None, :])

    def _allowed(self, allowed: Bool[Tensor, "S M N"]) -> PairLogits:
        allowed = allowed & self.is_token[:, None, :]
        return torch.where(allowed, 0.0, _OTHER_IMAGE)[:, None]


def pack_images(
    patches: Sequence[Float[Tensor, "P patch_dim"]], positions: Sequence[Int[Tensor, "P 2"]], groups: Sequence[range]
) -> Packing:
    """Concatenate the patches of the images of each group, and their positions."""
    device = patches[0].device
    numbers = [torch.cat([torch.full((len(patches[i]),), i - group.start) for i in group]) for group in groups]
    return Packing(
        patches=pad_sequence([torch.cat([patches[i] for i in group]) for group in groups], batch_first=True),
        positions=pad_sequence([torch.cat([positions[i] for i in group]) for group in groups], batch_first=True),
        images=pad_sequence(numbers, batch_first=True).to(device),
        lengths=torch.tensor([len(ids) for ids in numbers], device=device),
        num_images=torch.tensor([len(group) for group in groups], device=device),
        most_images=max(map(len, groups)),
    )
