"""The state of a refinement: constant evidence, and the cameras and depth that its steps replace."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from page4d.geometry.camera import Cameras
from page4d.refinement.normal_equations import Correspondences, Priors
from page4d.refinement.view_prediction import ViewPrediction


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What does not change while steps run. N = T * V images.

    `images` are the views' images in [0, 1] if they may be compared. `prior_cameras` [B, N] and `prior_depth` of
    patches are the network's, with known intrinsics if they are given. `known_cameras` [B, N] are those of a
    calibration with poses.
    """

    views: tuple[ViewPrediction, ...]
    images: tuple[Float[Tensor, "B T 3 _ _"], ...] | None
    prior_cameras: Cameras
    prior_depth: Float[Tensor, "B N P"]
    known_cameras: Cameras | None
    matches: Correspondences
    priors: Priors

    @property
    def num_times(self) -> int:
        """T of the N = T * V images."""
        return self.prior_depth.shape[1] // len(self.views)

    @property
    def comparable_images(self) -> tuple[Float[Tensor, "B T 3 _ _"], ...] | None:
        """The images of a rig; None for a single view, which has no other view to compare with."""
        return self.images if len(self.views) > 1 else None


@dataclass(frozen=True, kw_only=True)
class RefinementState:
    """Cameras [B, N] and depth after some of the steps.

    `patch_depth` is that of patch centers after bundle adjustment; `log_correction` holds, view by view, the
    logarithm of refined over predicted depth. Depth fits `rig`: the cameras themselves, or known ones; `scale` is the
    unit of `cameras` in that of `rig`.
    """

    evidence: Evidence
    cameras: Cameras
    patch_depth: Float[Tensor, "B N P"]
    log_correction: tuple[Float[Tensor, "B T _ _"], ...]
    rig: Cameras
    scale: Float[Tensor, "B one one"]
    rig_is_known: bool = False

    @property
    def depth(self) -> list[Float[Tensor, "B T _ _"]]:
        """Refined depth of every view in float32, in the unit of `cameras`."""
        return [
            view.depth[:, :, 0].float() * correction.float().exp()
            for view, correction in zip(self.evidence.views, self.log_correction, strict=True)
        ]

    @property
    def rig_depth(self) -> list[Float[Tensor, "B T _ _"]]:
        """Refined depth of every view in float32, in the unit of `rig`."""
        return [depth * self.scale[..., None].to(depth) for depth in self.depth]

    @property
    def rig_by_time(self) -> Cameras:
        """The cameras [B, T, V] that depth fits."""
        return self.rig.by_time(self.evidence.num_times)

    def corrected(self, log_factors: Sequence[Float[Tensor, "B T _ _"]]) -> "RefinementState":
        """Multiply the depth of every view by factors given as logarithms."""
        pairs = zip(self.log_correction, log_factors, strict=True)
        return replace(self, log_correction=tuple(one + more.to(one) for one, more in pairs))


def upsample_patches(evidence: Evidence, depth: Float[Tensor, "B N P"]) -> tuple[Float[Tensor, "B T _ _"], ...]:
    """Return the log corrections of all pixels from the depth of patch centers, interpolated bilinearly."""
    of_views = torch.unflatten(depth / evidence.prior_depth, 1, (-1, len(evidence.views)))
    return tuple(_upsample(view, of_views[:, :, place]) for place, view in enumerate(evidence.views))


def _upsample(view: ViewPrediction, ratio: Float[Tensor, "B T P"]) -> Float[Tensor, "B T H W"]:
    rows, columns = view.grid
    of_patches = ratio[..., : rows * columns].log().reshape(-1, 1, rows, columns).to(view.depth)
    correction = functional.interpolate(of_patches, size=view.size, mode="bilinear", align_corners=False)
    return torch.unflatten(correction[:, 0], 0, ratio.shape[:2])
