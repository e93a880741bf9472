"""Metric depth of single images, and its transfer to predictions of arbitrary scale."""

from jaxtyping import Float
from torch import Tensor


def metric_depth(
    depth: Float[Tensor, "*batch H W"], intrinsics: Float[Tensor, "*batch 3 3"], metric_focal: float
) -> Float[Tensor, "*batch H W"]:
    """Return depth in metres from that for a focal length of `metric_focal` px, to which it is proportional.

    Source: Yin et al. (2023), Metric3D, section 3.1; the constant 300 px of the public Depth Anything 3 code
    (reference facts).
    """
    focal = (intrinsics[..., 0, 0] + intrinsics[..., 1, 1]) / 2
    return depth * (focal / metric_focal).to(depth)[..., None, None]
