"""Selection of the reference image, which defines the world, from the class tokens of an encoder."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from page4d.encoders.base import PatchTokens
from page4d.layers.execution import full_precision
from page4d.models.config import ReferenceView
from page4d.models.size_groups import SizeGroups

_MIN_IMAGES = 3
_MIN_RANGE = 1e-8


def select_reference(rule: ReferenceView, class_tokens: Float[Tensor, "B S C"]) -> Int[Tensor, " B"]:
    """Return the index of the reference image of every scene; the first of fewer than 3 images.

    The first one of equal scores is selected. Otherwise, the rules on class tokens do not depend on the order of the
    images; the two most similar images often have equal ranges of similarity.

    Source: the public Depth Anything 3 code (reference facts).
    """
    batch, num_images = class_tokens.shape[:2]
    tokens = class_tokens.to(torch.promote_types(class_tokens.dtype, torch.float32))
    if num_images < _MIN_IMAGES:
        rule = ReferenceView.FIRST
    if rule is ReferenceView.SADDLE_BALANCED:
        return saddle_scores(tokens).argmin(dim=1)
    if rule is ReferenceView.SADDLE_SIMILARITY:
        others = _similarities(tokens)
        others = torch.triu(others, diagonal=1)  # without the rounding of ones, which would decide between equals
        others = others + others.transpose(1, 2)
        return (others.amax(dim=2) - others.amin(dim=2)).argmax(dim=1)
    return torch.full((batch,), num_images // 2 if rule is ReferenceView.MIDDLE else 0, device=tokens.device)


def reference_of_images(
    rule: ReferenceView, encoded: Sequence[PatchTokens], sizes: SizeGroups, batch: int
) -> Int[Tensor, " B"] | None:
    """Select the image that gets the first slot of the special tokens; None for the first image.

    `encoded` are the images of every group of views of one size.
    """
    if rule is ReferenceView.FIRST:
        return None
    tokens = [own.class_tokens for own in encoded if own.class_tokens is not None]
    shapes = [(batch, -1, len(views)) for views in sizes.members]
    together = sizes.stacked([torch.unflatten(own, 0, shape) for own, shape in zip(tokens, shapes, strict=True)])
    return select_reference(rule, together.flatten(1, 2))


def saddle_scores(class_tokens: Float[Tensor, "B S C"]) -> Float[Tensor, "B S"]:
    """Return the distance of every image from the middle of the ranges of three measures, summed.

    The measures of a class token are its mean cosine similarity to the others, its norm, and the variance of its
    channels at unit norm; each is scaled to the range 0 to 1 over the images of a scene.
    """
    similarities = _similarities(class_tokens)
    measures = torch.stack(
        [
            (similarities.sum(dim=2) - 1) / (similarities.shape[2] - 1),
            class_tokens.norm(dim=2),
            functional.normalize(class_tokens, dim=2).var(dim=2),
        ]
    )
    least, most = measures.amin(dim=2, keepdim=True), measures.amax(dim=2, keepdim=True)
    scaled = (measures - least) / (most - least + _MIN_RANGE)
    return (scaled - 0.5).abs().sum(dim=0)


def _similarities(class_tokens: Float[Tensor, "B S C"]) -> Float[Tensor, "B S S"]:
    unit = functional.normalize(class_tokens, dim=2)
    with full_precision(unit.device):  # near ties would be decided by rounding
        return unit @ unit.transpose(1, 2)
