"""The encoder run on the images of all instants and views, and its levels read in place of a trunk."""

import torch
from jaxtyping import Float
from torch import Tensor

from page4d.encoders.base import Encoder, PatchTokens
from page4d.layers.embed import normalize_images
from page4d.layers.execution import each_part
from page4d.models.config import NetworkConfig
from page4d.models.trunk_state import TrunkOutput


def encode_images(encoder: Encoder, images: Float[Tensor, "B T V 3 H W"], max_images: int | None) -> PatchTokens:
    """Encode images in [0, 1], at most `max_images` at once; the result has one batch dimension."""
    frames = images.flatten(0, 2)
    parts = each_part(lambda part: encoder(normalize_images(frames[part])), len(frames), max_images)
    fine = [part.fine for part in parts if part.fine is not None]
    class_tokens = [part.class_tokens for part in parts if part.class_tokens is not None]
    return PatchTokens(
        tokens=torch.cat([part.tokens for part in parts]),
        grid=parts[0].grid,
        fine=torch.cat(fine) if fine else None,
        class_tokens=torch.cat(class_tokens) if class_tokens else None,
        levels=tuple(map(torch.cat, zip(*(part.levels for part in parts), strict=True))),
    )


def levels_as_trunk(config: NetworkConfig, encoded: PatchTokens, images: Float[Tensor, "B T V 3 H W"]) -> TrunkOutput:
    """Return the levels of the encoder as the output of a trunk without special tokens."""
    assert config.depth_head is not None
    levels = [torch.unflatten(level, 0, images.shape[:3]) for level in encoded.levels]
    return TrunkOutput(
        special_tokens=levels[-1][..., :0, :],
        levels=dict(zip(config.depth_head.layers, levels, strict=True)),
        dynamic_logit=None,
        memory=None,
    )


def as_images(
    values: Float[Tensor, "F ..."] | None, images: Float[Tensor, "B T V 3 H W"]
) -> Float[Tensor, "B T V ..."] | None:
    """Split the batch dimension of encoded values into that of images."""
    return None if values is None else torch.unflatten(values, 0, images.shape[:3])
