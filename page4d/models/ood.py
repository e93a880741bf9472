"""Out-of-distribution indicators: confidence, and the consistency of depth, rays and matches across views."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from page4d.errors import WeightsError
from page4d.geometry.camera import Cameras, project, world_points
from page4d.geometry.rigid import transform_points
from page4d.models.inputs.matching import Matches, ViewMatches
from page4d.models.inputs.rays import patch_directions
from page4d.models.output import MixedOutput, NetworkOutput

_STEP = 4
"""Every so many pixels in both directions depth is compared."""


@dataclass(frozen=True, kw_only=True)
class OODIndicators:
    """What the answers to one batch say of the network, larger being worse; None where it does not say it.

    `doubt` is the mean of 1 - confidence of depth, `ray_gap_deg` the median angle between the rays that it predicts
    and those of the intrinsics that it predicts. Between neighbouring views, `match_doubt` is the mean of
    1 - confidence of matches, and `depth_gap` the median of |log| of how far depths of one view are from those of the
    next where they meet.
    """

    doubt: float | None = None
    ray_gap_deg: float | None = None
    match_doubt: float | None = None
    depth_gap: float | None = None


OOD_MESSAGES = {
    "doubt": "its confidence is low",
    "ray_gap_deg": "its focal lengths contradict each other",
    "match_doubt": "it hardly finds one view in another",
    "depth_gap": "its views contradict each other",
}
"""What a sign means to a user."""


@torch.no_grad()
def measure_ood(output: NetworkOutput | MixedOutput) -> OODIndicators:
    """Measure the signs of one output, over all its scenes, instants and views."""
    pairs = _with_next(output)
    parts = [part for part, _ in pairs]
    several = sum(part.depth.shape[2] for part in parts if part.depth is not None) > 1
    return OODIndicators(
        doubt=_mean([1 / part.depth_confidence.float() for part in parts if part.depth_confidence is not None]),
        ray_gap_deg=_median([_ray_angles(part) for part in parts]),
        match_doubt=_mean(_match_doubts(output.matches)) if several else None,
        depth_gap=_median([_depth_gaps(*pair) for pair in pairs]) if several else None,
    )


def _mean(parts: Sequence[Tensor]) -> float | None:
    return float(torch.cat([part.flatten() for part in parts]).mean()) if parts else None


def _median(parts: Sequence[Tensor | None]) -> float | None:
    known = [part.flatten() for part in parts if part is not None and part.numel()]
    return float(torch.cat(known).median()) if known else None


def _with_next(output: NetworkOutput | MixedOutput) -> list[tuple[NetworkOutput, NetworkOutput]]:
    """Pair views, all of one size at once, with the next ones, the last with the first."""
    if isinstance(output, MixedOutput):
        return list(zip(output.views, (*output.views[1:], output.views[0]), strict=True))
    known = {name: getattr(output, name) for name in ("depth", "world_to_camera", "intrinsics")}
    rolled: dict[str, Any] = {name: part.roll(-1, dims=2) for name, part in known.items() if part is not None}
    return [(output, NetworkOutput(**rolled))]


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
    said = patch_directions(cameras.intrinsics, grid, cameras.image_size[0] // grid[0])
    apart: Tensor = torch.linalg.cross(said, output.rays.double().flatten(3, 4)).norm(dim=-1).clamp(max=1).asin()
    return torch.rad2deg(apart)


def _match_doubts(matches: Matches | tuple[ViewMatches, ...] | None) -> list[Float[Tensor, "B T P"]]:
    """Return how unsure it is where patches are found in other views."""
    if isinstance(matches, Matches):
        matches = tuple(matches.of_view(view) for view in range(matches.expected.shape[2]))
    return [
        1 - view.confidence[:, :, index].float()
        for view in matches or ()
        for index, target in enumerate(view.targets)
        if target.at_same_instant
    ]


def _depth_gaps(output: NetworkOutput, onlooker: NetworkOutput) -> Float[Tensor, " N"] | None:
    """Compare the depths of points of every view with those that its onlooker has where it sees them."""
    cameras, onlooking = _cameras(output), _cameras(onlooker)
    if output.depth is None or onlooker.depth is None or cameras is None or onlooking is None:
        return None
    inner = slice(_STEP // 2, None, _STEP)
    points = world_points(output.depth.double(), cameras)[:, :, :, inner, inner].flatten(3, 4)
    pixels, expected = project(transform_points(onlooking.world_to_camera, points), onlooking.intrinsics)
    height, width = onlooking.image_size
    column, row = pixels.floor().nan_to_num(-1).clamp(-1, max(height, width)).long().unbind(-1)
    met = (expected > 0) & (column >= 0) & (column < width) & (row >= 0) & (row < height)
    place = row.clamp(0, height - 1) * width + column.clamp(0, width - 1)
    found = onlooker.depth.double().flatten(3).gather(3, place)
    met &= found > 0
    return (expected[met] / found[met]).log().abs()


@dataclass(frozen=True, kw_only=True)
class OODLimits:
    """Where a network is at home: the worst signs that are usual on scenes like those of its training.

    `limits` has the names of `OODIndicators`; a sign without a limit is not looked at.
    """

    limits: Mapping[str, float]

    def beyond(self, signs: OODIndicators) -> tuple[str, ...]:
        """Name the signs that are worse than their limits."""
        found = asdict(signs)
        return tuple(
            name
            for name, limit in self.limits.items()
            if (value := found[name]) is not None and not value <= limit  # NaN is worse than any limit
        )

    def to_json(self) -> str:
        """Write it on one line."""
        return json.dumps({"limits": dict(self.limits)}, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> "OODLimits":
        """Read what `to_json` wrote.

        Raises:
            WeightsError: if it is something else.
        """
        known = {field.name for field in fields(OODIndicators)}
        try:
            limits = {str(name): float(value) for name, value in json.loads(text)["limits"].items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise WeightsError(f"the weights' domain is damaged: {error}", "fetch the file again") from error
        if not limits.keys() <= known:
            raise WeightsError(
                f"the weights' domain has unknown signs: {', '.join(sorted(limits.keys() - known))}", "update page4d"
            )
        return OODLimits(limits=limits)


def fit_ood_limits(signs: Sequence[OODIndicators], share: float) -> OODLimits:
    """Return the limits within which a share of what was measured lies, sign by sign."""
    limits = {}
    for field in fields(OODIndicators):
        values = [value for one in signs if (value := getattr(one, field.name)) is not None]
        if values:
            limits[field.name] = float(torch.tensor(values, dtype=torch.float64).quantile(share))
    return OODLimits(limits=limits)
