"""Out-of-distribution indicators: confidence, and the consistency of depth, rays and matches across views."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from math import inf, isnan

import torch
from jaxtyping import Float
from torch import Tensor

from page4d.errors import WeightsError, listed, shortened
from page4d.geometry.camera import Cameras, project, world_points
from page4d.geometry.statistics import median
from page4d.geometry.transforms import transform_points
from page4d.io.documents import parse_json
from page4d.networks.inputs.known_cameras import patch_directions
from page4d.networks.output import NetworkOutput, RigOutput

_STRIDE = 4
"""Depth is compared at every fourth pixel in both directions."""


@dataclass(frozen=True, kw_only=True)
class OODIndicators:
    """Indicators of one batch, larger is worse; None where the network has no such output.

    `doubt` is the mean of 1 - confidence of depth, `ray_gap_deg` the median angle between predicted rays and those of
    the predicted intrinsics. Between each view and the next, `match_doubt` is the mean of 1 - confidence of matches,
    and `depth_gap` the median |log| ratio of the depths of one surface point.
    """

    doubt: float | None = None
    ray_gap_deg: float | None = None
    match_doubt: float | None = None
    depth_gap: float | None = None


OOD_MESSAGES = {
    "doubt": "low depth confidence",
    "ray_gap_deg": "inconsistent focal lengths",
    "match_doubt": "few matches between views",
    "depth_gap": "inconsistent depth between views",
}
"""Reasons in warnings, by indicator."""


@torch.no_grad()
def measure_ood(output: RigOutput) -> OODIndicators:
    """Compute the indicators over all scenes, instants and views."""
    views = output.views
    several = len(views) > 1
    next_views = (*views[1:], *views[:1])
    gaps = [_depth_gaps(*pair) for pair in zip(views, next_views, strict=True)] if several else []
    return OODIndicators(
        doubt=_mean([1 / view.depth_confidence.float() for view in views if view.depth_confidence is not None]),
        ray_gap_deg=_median([_ray_angles(view) for view in views]),
        match_doubt=_mean([doubt for view in views for doubt in _match_doubts(view)]) if several else None,
        depth_gap=_median(gaps),
    )


def _mean(parts: Sequence[Tensor]) -> float | None:
    return float(torch.cat([part.flatten() for part in parts]).mean()) if parts else None


def _median(parts: Sequence[Tensor | None]) -> float | None:
    known = [part.flatten() for part in parts if part is not None and part.numel()]
    return median(torch.cat(known)) if known else None


def _cameras(output: NetworkOutput) -> Cameras | None:
    if output.depth is None or output.world_to_camera is None or output.intrinsics is None:
        return None
    return Cameras(
        world_to_camera=output.world_to_camera.double(),
        intrinsics=output.intrinsics.double(),
        image_size=(output.depth.shape[-2], output.depth.shape[-1]),
    )


def _ray_angles(output: NetworkOutput) -> Float[Tensor, "B T V P"] | None:
    cameras = _cameras(output)
    if output.rays is None or cameras is None:
        return None
    grid = (output.rays.shape[3], output.rays.shape[4])
    expected = patch_directions(cameras.intrinsics, grid, cameras.image_size[0] // grid[0])
    angle: Tensor = torch.linalg.cross(expected, output.rays.double().flatten(3, 4)).norm(dim=-1).clamp(max=1).asin()
    return torch.rad2deg(angle)


def _match_doubts(view: NetworkOutput) -> list[Float[Tensor, "B T W P"]]:
    """Return 1 - confidence of matches with other views at the same instant."""
    if view.matches is None:
        return []
    targets = enumerate(view.matches.targets)
    return [1 - view.matches.confidence[:, :, :, i].float() for i, target in targets if target.at_same_instant]


def _depth_gaps(view: NetworkOutput, other: NetworkOutput) -> Float[Tensor, " N"] | None:
    """Return |log| ratios of a view's depth, warped into another view, to that view's own depth."""
    cameras, target = _cameras(view), _cameras(other)
    if view.depth is None or other.depth is None or cameras is None or target is None:
        return None
    sampled = slice(_STRIDE // 2, None, _STRIDE)
    points = world_points(view.depth.double(), cameras)[:, :, :, sampled, sampled].flatten(3, 4)
    pixels, expected = project(transform_points(target.world_to_camera, points), target.intrinsics)
    height, width = target.image_size
    column, row = pixels.floor().nan_to_num(-1).clamp(-1, max(height, width)).long().unbind(-1)
    visible = (expected > 0) & (column >= 0) & (column < width) & (row >= 0) & (row < height)
    place = row.clamp(0, height - 1) * width + column.clamp(0, width - 1)
    found = other.depth.double().flatten(3).gather(3, place)
    visible &= found > 0
    return (expected[visible] / found[visible]).log().abs()


@dataclass(frozen=True, kw_only=True)
class OODLimits:
    """Thresholds of the indicators on scenes like those of the training set, by name; others are not tested."""

    limits: Mapping[str, float]

    def ratios(self, indicators: OODIndicators) -> dict[str, float]:
        """Return the measured indicators in units of their thresholds; infinite for NaN, and above one of 0."""
        found = asdict(indicators)
        values = {name: value for name in self.limits if (value := found[name]) is not None}
        return {name: _ratio(value, self.limits[name]) for name, value in values.items()}

    def to_json(self) -> str:
        """Write the thresholds as one line of JSON."""
        return json.dumps({"limits": dict(self.limits)}, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> "OODLimits":
        """Read what `to_json` wrote.

        Raises:
            WeightsError: if the text is something else.
        """
        known = {field.name for field in fields(OODIndicators)}
        try:
            limits = {str(name): float(value) for name, value in parse_json(text)["limits"].items()}
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            reason = shortened(str(error))
            raise WeightsError(f"the weights' domain is damaged: {reason}", "fetch the file again") from error
        if not limits.keys() <= known:
            unknown = listed(sorted(limits.keys() - known))
            raise WeightsError(f"the weights' domain has unknown indicators: {unknown}", "update page4d")
        return OODLimits(limits=limits)


def _ratio(value: float, limit: float) -> float:
    if isnan(value) or (limit == 0 and value > 0):
        return inf
    return value / limit if limit else 0.0


def fit_ood_limits(indicators: Sequence[OODIndicators], quantile: float) -> OODLimits:
    """Return the quantiles of measured indicators as thresholds."""
    limits = {}
    for field in fields(OODIndicators):
        values = [value for one in indicators if (value := getattr(one, field.name)) is not None]
        if values:
            limits[field.name] = float(torch.tensor(values, dtype=torch.float64).quantile(quantile))
    return OODLimits(limits=limits)
