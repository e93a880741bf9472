"""What a network says of cameras and depth, made to agree with the matches that it found."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from page4d.geometry.averaging import baseline_ratio
from page4d.geometry.camera import Cameras
from page4d.geometry.rigid import invert_rigid, transform_points
from page4d.models.conditioning import NO_CONDITIONING, Conditioning
from page4d.models.network import ViewTimeNetwork
from page4d.models.output import MixedOutput, NetworkOutput
from page4d.refinement.bundle_adjustment import Adjusted, adjust
from page4d.refinement.correspondences import beside_each_other, close_sightings, network_sightings
from page4d.refinement.depth_fusion import agree
from page4d.refinement.edge_aware_filter import sharpen
from page4d.refinement.feature_sweep import sweep
from page4d.refinement.matched_view import MatchedView, matched_views
from page4d.refinement.normal_equations import Beliefs, Sightings
from page4d.refinement.plane_sweep import look_closer

_SIGMA_CELLS = 0.8
"""Standard deviation of where a sure match is found, in cells; a wide one, as errors of neighbours are alike."""

_BELIEFS = Beliefs(
    rotation_rad=0.2,
    position=0.2,
    log_focal=0.15,
    log_scale=0.1,
    log_depth=0.8,
    alike=0.1,
    of_one_camera=0.98,
    of_one_rig=0.65,
)
"""How a network's own answers are believed beside its matches: about the errors of the bundled one; that of depth is
where it is least sure."""

_LOG_FOCAL_ALONE = 0.05
"""The same for the focal length of a view without others: matches in time show little of it, and that wrongly."""

_SURER = 0.5
"""How large errors of depth are believed to be, beside that, after depth was looked for along known rays."""

_CLOSER_LOOKS = 3
"""How often patches that look alike are looked for where what was found shows them."""

_CONFIDENCE_POWER = 1.25
"""With which errors of depth become smaller: the confidence is 1 at least."""

Images = Float[Tensor, "B T V 3 H W"] | Sequence[Float[Tensor, "B T 3 _ _"]]
"""Of views of one size, or of each view."""


class _Rig(NamedTuple):
    """Cameras [B, N] that depth is to fit, and the unit of those that were found in theirs."""

    cameras: Cameras
    scale: Float[Tensor, "B one one"]


class _Evidence(NamedTuple):
    """Views, their images if these may be looked at, depths of patches, matches, and how far all this is believed."""

    views: Sequence[MatchedView]
    images: Sequence[Float[Tensor, "B T 3 _ _"]] | None
    depth: Float[Tensor, "B N P"]
    sightings: Sightings
    beliefs: Beliefs

    @property
    def num_times(self) -> int:
        """T of the N = T * V images."""
        return self.depth.shape[1] // len(self.views)

    def corrections(self, depth: Float[Tensor, "B N P"]) -> list[Float[Tensor, "B T _ _"]]:
        """Return the logarithms of the factors that lead to depths of patches, for every pixel of every view."""
        of_views = torch.unflatten(depth / self.depth, 1, (-1, len(self.views)))
        return [_enlarged(view, of_views[:, :, place]) for place, view in enumerate(self.views)]


Output = TypeVar("Output", bound=NetworkOutput | MixedOutput)


def refine_by(
    network: ViewTimeNetwork, output: Output, images: Images, conditioning: Conditioning = NO_CONDITIONING
) -> Output:
    """Return what a network said of images, refined if it looked for matches."""
    matches = network.config.matches
    if matches is None:
        return output
    return refine(output, network.config.patch_size, matches.finer, conditioning, images)


@torch.no_grad()
def refine(
    output: Output,
    patch_size: int,
    finer: int,
    conditioning: Conditioning = NO_CONDITIONING,
    images: Images | None = None,
    beliefs: Beliefs = _BELIEFS,
    sigma_cells: float = _SIGMA_CELLS,
) -> Output:
    """Return the output with better cameras and depth, as it is if there are no matches.

    It is worked out on the CPU, where sums always come in the same order, but for what is of pixels: numbers are few.
    If `images` of a rig are given, patches are looked for anew where what was found shows them, and then depths of
    pixels along their rays. Views of a rig agree on surfaces, and with `images`, depth steps where colours do. Known
    poses are not put in the place of what network and matches say, so that it can still be compared with them; but
    depth, in the unit of these predicted cameras, is the one that fits known ones.
    """
    views = matched_views(output, patch_size)
    if not views or output.world_to_camera is None or output.intrinsics is None:
        return output
    beliefs = _for_views(beliefs, views)
    if conditioning.intrinsics is not None:
        beliefs = replace(beliefs, log_focal=0.0)
    seen = None if images is None else _of_views(images, views)
    evidence = _Evidence(
        views=views,
        images=seen if len(views) > 1 else None,
        depth=beside_each_other([view.depth_at_middles for view in views]),
        sightings=network_sightings(views, output.world_to_camera.shape[1], sigma_cells * patch_size / finer),
        beliefs=beliefs,
    )
    matrix = output.intrinsics if conditioning.intrinsics is None else conditioning.intrinsics
    found = _adjusted(evidence, _cameras(output.world_to_camera, matrix, views), conditioning.world_to_camera is None)
    told = _told(conditioning, matrix, views, found.cameras)
    if told is None:
        rig, depth = _Rig(found.cameras, torch.ones_like(found.depth[:, :1, :1])), found.depth
    else:
        rig, depth = told, _depth_for(told, evidence, found.depth * told.scale) / told.scale
    corrections = evidence.corrections(depth)
    if evidence.images is not None:
        corrections = _along_rays(evidence, evidence.images, rig, corrections, told is not None)
    if len(views) > 1:
        corrections = _agreed(evidence, rig, corrections)
    if seen is not None:
        corrections = _sharpened(views, seen, corrections)
    return _corrected(output, views, found.cameras.by_time(evidence.num_times), corrections)


def _adjusted(evidence: _Evidence, guess: Cameras, closer: bool) -> Adjusted:
    """Return cameras and depths of patches that agree with matches, and, `closer`, with what looks alike."""
    found = adjust(guess, evidence.depth, evidence.sightings, evidence.beliefs)
    if evidence.images is not None and closer:
        for _ in range(_CLOSER_LOOKS):
            close = _looked_closer(evidence, evidence.images, found.cameras, found.depth)
            found = adjust(guess, evidence.depth, close, evidence.beliefs, earlier=found)
    return found


def _cameras(pose: Tensor, intrinsics: Tensor, views: Sequence[MatchedView]) -> Cameras:
    """Return all images' cameras [B, T*V] in float64; the size is that of an image that holds any view."""
    height, width = (max(view.size[axis] for view in views) for axis in (0, 1))
    return Cameras(
        world_to_camera=pose.flatten(1, 2).double().cpu(),
        intrinsics=intrinsics.flatten(1, 2).double().cpu(),
        image_size=(height, width),
    )


def _told(conditioning: Conditioning, matrix: Tensor, views: Sequence[MatchedView], found: Cameras) -> _Rig | None:
    """Return the cameras that are told; None if none are, or if they show no unit."""
    if conditioning.world_to_camera is None:
        return None
    told = _cameras(conditioning.world_to_camera, matrix, views)
    scales = [baseline_ratio(*centers) for centers in zip(found.centers, told.centers, strict=True)]
    sizes = [scale for scale in scales if scale is not None]
    return _Rig(told, torch.stack(sizes)[:, None, None]) if len(sizes) == len(scales) else None


def _depth_for(told: _Rig, evidence: _Evidence, depth: Float[Tensor, "B N P"]) -> Float[Tensor, "B N P"]:
    """Return the depth that fits known cameras, in their unit."""
    fixed = replace(evidence.beliefs, rotation_rad=0.0, position=0.0)
    swept = sweep(evidence.views, told.cameras, adjust(told.cameras, depth, evidence.sightings, fixed).depth)
    if evidence.images is None:
        return swept
    surer = replace(fixed, log_depth=_SURER * fixed.log_depth)
    for _ in range(_CLOSER_LOOKS):
        close = _looked_closer(evidence, evidence.images, told.cameras, swept)
        swept = adjust(told.cameras, swept, close, surer).depth
    return swept


def _looked_closer(
    evidence: _Evidence, images: Sequence[Float[Tensor, "B T 3 _ _"]], cameras: Cameras, depth: Float[Tensor, "B N P"]
) -> Sightings:
    """Return what looks alike where these cameras and depths show it."""
    depths = _depths(evidence.views, evidence.corrections(depth))
    return close_sightings(evidence.sightings, evidence.views, images, cameras.by_time(evidence.num_times), depths)


def _along_rays(
    evidence: _Evidence,
    images: Sequence[Float[Tensor, "B T 3 _ _"]],
    rig: _Rig,
    corrections: Sequence[Float[Tensor, "B T _ _"]],
    cameras_are_known: bool,
) -> list[Float[Tensor, "B T _ _"]]:
    """Return corrections that agree with what the images show at these corrected depths."""
    rigs, depths = _in_unit_of(rig, evidence, corrections)
    closer = look_closer(evidence.views, images, rigs, depths, cameras_are_known)
    return [one + more.to(one) for one, more in zip(corrections, closer, strict=True)]


def _agreed(
    evidence: _Evidence, rig: _Rig, corrections: Sequence[Float[Tensor, "B T _ _"]]
) -> list[Float[Tensor, "B T _ _"]]:
    """Return corrections with which views agree on surfaces."""
    closer = agree(evidence.views, *_in_unit_of(rig, evidence, corrections))
    return [one + more.to(one) for one, more in zip(corrections, closer, strict=True)]


def _in_unit_of(
    rig: _Rig, evidence: _Evidence, corrections: Sequence[Float[Tensor, "B T _ _"]]
) -> tuple[Cameras, list[Float[Tensor, "B T _ _"]]]:
    """Return cameras [B, T, V], and corrected depths in their unit."""
    depths = [depth * rig.scale[..., None].to(depth) for depth in _depths(evidence.views, corrections)]
    return rig.cameras.by_time(evidence.num_times), depths


def _sharpened(
    views: Sequence[MatchedView],
    images: Sequence[Float[Tensor, "B T 3 _ _"]],
    corrections: Sequence[Float[Tensor, "B T _ _"]],
) -> list[Float[Tensor, "B T _ _"]]:
    """Return corrections with which depth steps where the images do."""
    sharpened = []
    for view, image, depth, correction in zip(views, images, _depths(views, corrections), corrections, strict=True):
        log_depth = depth.log().flatten(0, 1)
        sharp = sharpen(log_depth, view.confidence_of_pixels.float().flatten(0, 1), image.flatten(0, 1))
        sharpened.append(correction + (sharp - log_depth).view_as(depth).to(correction))
    return sharpened


def _of_views(images: Images, views: Sequence[MatchedView]) -> list[Float[Tensor, "B T 3 _ _"]]:
    """Return the images view by view, in float32, where depth is."""
    of_views = images.unbind(2) if isinstance(images, Tensor) else images
    return [image.to(view.depth.device).float() for view, image in zip(views, of_views, strict=True)]


def _depths(
    views: Sequence[MatchedView], corrections: Sequence[Float[Tensor, "B T _ _"]]
) -> list[Float[Tensor, "B T _ _"]]:
    """Return corrected depths view by view, in float32."""
    return [
        view.depth[:, :, 0].float() * correction.float().exp()
        for view, correction in zip(views, corrections, strict=True)
    ]


def _enlarged(view: MatchedView, ratio: Float[Tensor, "B T P"]) -> Float[Tensor, "B T H W"]:
    """Return the logarithm of what was found for the middles of patches, for every pixel."""
    rows, columns = view.grid
    of_patches = ratio[..., : rows * columns].log().reshape(-1, 1, rows, columns).to(view.depth)
    correction = functional.interpolate(of_patches, size=view.size, mode="bilinear", align_corners=False)
    return torch.unflatten(correction[:, 0], 0, ratio.shape[:2])


def _corrected(
    output: Output, views: Sequence[MatchedView], cameras: Cameras, corrections: Sequence[Float[Tensor, "B T _ _"]]
) -> Output:
    """Return the output with other cameras [B, T, V] and depth."""
    assert output.world_to_camera is not None
    device = output.world_to_camera.device
    pose, intrinsics = cameras.world_to_camera.to(device), cameras.intrinsics.to(device)
    refined = [
        _corrected_view(view, pose[:, :, place, None], intrinsics[:, :, place, None], corrections[place][:, :, None])
        for place, view in enumerate(views)
    ]
    if isinstance(output, MixedOutput):
        return replace(output, views=tuple(refined))
    points = [view.points for view in refined if view.points is not None]
    return replace(
        output,
        world_to_camera=pose,
        intrinsics=intrinsics,
        depth=torch.cat([view.depth for view in refined if view.depth is not None], dim=2),
        points=torch.cat(points, dim=2) if points else None,
    )


def _corrected_view(
    view: MatchedView,
    pose: Float[Tensor, "B T one 4 4"],
    intrinsics: Float[Tensor, "B T one 3 3"],
    correction: Float[Tensor, "B T one H W"],
) -> NetworkOutput:
    """Multiply depth by a factor whose logarithm is given; points follow their depth and camera."""
    output = view.output
    assert output.depth is not None
    assert output.world_to_camera is not None
    factor, points = correction.exp(), output.points
    if points is not None:
        local = transform_points(output.world_to_camera.to(points.dtype), points) * factor[..., None]
        points = transform_points(invert_rigid(pose).to(points.dtype), local)
    return replace(output, world_to_camera=pose, intrinsics=intrinsics, depth=output.depth * factor, points=points)


def _for_views(beliefs: Beliefs, views: Sequence[MatchedView]) -> Beliefs:
    """Believe the depth of a patch the more the surer the network is of it; say what is of one view."""
    doubt = beside_each_other([view.confidence for view in views]) ** -_CONFIDENCE_POWER
    taken_by = torch.arange(doubt.shape[1]) % len(views)
    log_focal = beliefs.log_focal if len(views) > 1 else min(beliefs.log_focal, _LOG_FOCAL_ALONE)
    return replace(beliefs, log_depth=beliefs.log_depth * doubt, log_focal=log_focal, taken_by=taken_by)
