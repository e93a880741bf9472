"""Packing of images of different sizes into sequences of one length (Patch n' Pack)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from page4d.errors import ShapeError
from page4d.layers.attention import PairLogits

_FORBIDDEN = -1e4
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

    @property
    def is_token(self) -> Bool[Tensor, "S N"]:
        """Whether an entry is a patch, not padding."""
        return torch.arange(self.images.shape[1], device=self.images.device) < self.lengths[:, None]

    @property
    def slots(self) -> Int[Tensor, " I"]:
        """Image indices of the sequence with the most images."""
        return torch.arange(int(self.num_images.max()), device=self.images.device)

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

    def unpacked(self, tokens: Float[Tensor, "S N C"]) -> list[Float[Tensor, "P C"]]:
        """Return the tokens of each image separately, in packing order."""
        return [
            tokens[sequence][(self.images[sequence] == image) & self.is_token[sequence]]
            for sequence, count in enumerate(self.num_images.tolist())
            for image in range(count)
        ]

    def _allowed(self, allowed: Bool[Tensor, "S M N"]) -> PairLogits:
        allowed = allowed & self.is_token[:, None, :]
        return torch.where(allowed, 0.0, _FORBIDDEN)[:, None]


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
    )
