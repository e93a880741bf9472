"""The state of a refinement: constant evidence, and the cameras and depth that its steps replace."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from page4d.geometry.camera import Cameras
from page4d.refinement.bundle_adjustment import BundleAdjustment
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


class Kept(NamedTuple):
    """Whether held-out evidence supports the adjusted poses, and the adjusted focal lengths, of each scene."""

    poses: Bool[Tensor, " B"]
    focal: Bool[Tensor, " B"]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parts that are kept in all scenes."""
        return tuple(name for name, kept in self._asdict().items() if bool(kept.all()))


@dataclass(frozen=True, kw_only=True)
class RefinementState:
    """Cameras [B, N] and depth after some of the steps.

    `patch_depth` is that of patch centers after bundle adjustment; `log_correction` holds, view by view, the
    logarithm of refined over predicted depth. Depth fits `rig`: the cameras themselves, or known ones; `scale` is the
    unit of `cameras` in that of `rig`. `kept` is None without a comparison with held-out evidence.
    """

    evidence: Evidence
    cameras: Cameras
    patch_depth: Float[Tensor, "B N P"]
    log_correction: tuple[Float[Tensor, "B T _ _"], ...]
    rig: Cameras
    scale: Float[Tensor, "B one one"]
    rig_is_known: bool = False
    kept: Kept | None = None

    @property
    def cameras_hold(self) -> Bool[Tensor, " B"]:
        """Whether depth may be refined under the cameras: those that evidence does not support are left out."""
        if self.rig_is_known or self.kept is None:
            return self.patch_depth.new_ones(len(self.patch_depth), dtype=torch.bool)
        return self.kept.poses

    @property
    def has_cameras(self) -> bool:
        """Whether depth may be refined in any scene."""
        return bool(self.cameras_hold.any())

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

    def adjusted(self, found: BundleAdjustment) -> "RefinementState":
        """Replace cameras and depth by the result of an adjustment."""
        correction = upsample_patches(self.evidence, found.depth)
        cameras = found.cameras
        return replace(self, cameras=cameras, patch_depth=found.depth, log_correction=correction, rig=cameras)

    def chosen(self, which: Bool[Tensor, " B"], other: "RefinementState") -> "RefinementState":
        """Return this state for some scenes, and another one for the rest."""

        def choose(own: Tensor, others: Tensor) -> Tensor:
            return torch.where(which.reshape(-1, *(1,) * (own.ndim - 1)), own, others)

        def choose_cameras(own: Cameras, others: Cameras) -> Cameras:
            pose = choose(own.world_to_camera, others.world_to_camera)
            return replace(own, world_to_camera=pose, intrinsics=choose(own.intrinsics, others.intrinsics))

        if bool(which.all()):
            return self
        pairs = zip(self.log_correction, other.log_correction, strict=True)
        return replace(
            self,
            cameras=choose_cameras(self.cameras, other.cameras),
            patch_depth=choose(self.patch_depth, other.patch_depth),
            log_correction=tuple(choose(*pair) for pair in pairs),
            rig=choose_cameras(self.rig, other.rig),
        )


def upsample_patches(evidence: Evidence, depth: Float[Tensor, "B N P"]) -> tuple[Float[Tensor, "B T _ _"], ...]:
    """Return the log corrections of all pixels from the depth of patch centers, interpolated bilinearly."""
    of_views = torch.unflatten(depth / evidence.prior_depth, 1, (-1, len(evidence.views)))
    return tuple(_upsample(view, of_views[:, :, place]) for place, view in enumerate(evidence.views))


def predicted_depth(evidence: Evidence, patch_depth: Float[Tensor, "B N P"]) -> list[Float[Tensor, "B T _ _"]]:
    """Return the depth of every pixel in float32: the network's, corrected to the depth of patch centers."""
    return [
        view.depth[:, :, 0].float() * correction.float().exp()
        for view, correction in zip(evidence.views, upsample_patches(evidence, patch_depth), strict=True)
    ]


def _upsample(view: ViewPrediction, ratio: Float[Tensor, "B T P"]) -> Float[Tensor, "B T H W"]:
    rows, columns = view.grid
    of_patches = ratio[..., : rows * columns].log().reshape(-1, 1, rows, columns).to(view.depth)
    correction = functional.interpolate(of_patches, size=view.size, mode="bilinear", align_corners=False)
    return torch.unflatten(correction[:, 0], 0, ratio.shape[:2])
