"""Signs that a network is out of its depth: how unsure it is, and how far its answers contradict each other."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields

import torch
from jaxtyping import Float
from torch import Tensor

from page4d.errors import WeightsError
from page4d.geometry.camera import Cameras, project, world_points
from page4d.geometry.rigid import transform_points
from page4d.models.input_config import MatchTarget
from page4d.models.matching import Matches
from page4d.models.network import NetworkOutput
from page4d.models.rays import patch_directions

_ACROSS_VIEWS = (MatchTarget.NEXT_VIEW, MatchTarget.PREVIOUS_VIEW, MatchTarget.FIRST_VIEW)
_STEP = 4
"""Every so many pixels in both directions depth is compared."""


@dataclass(frozen=True, kw_only=True)
class Signs:
    """What the answers to one batch say of the network, larger being worse; None where it does not say it.

    `doubt` is the mean of 1 - confidence of depth, `ray_gap_deg` the median angle between the rays that it predicts
    and those of the intrinsics that it predicts. Between neighbouring views, `match_spread` is the mean entropy of
    where patches are found over that of no idea, and `depth_gap` the median of |log| of how far depths of one view
    are from those of the next where they meet.
    """

    doubt: float | None = None
    ray_gap_deg: float | None = None
    match_spread: float | None = None
    depth_gap: float | None = None


SAID = {
    "doubt": "its confidence is low",
    "ray_gap_deg": "its focal lengths contradict each other",
    "match_spread": "it hardly finds one view in another",
    "depth_gap": "its views contradict each other",
}
"""What a sign means to a user."""


@torch.no_grad()
def signs_of(output: NetworkOutput) -> Signs:
    """Measure the signs of one output, over all its scenes, instants and views."""
    cameras = _cameras(output)
    doubt = ray_gap = match_spread = depth_gap = None
    if output.depth_confidence is not None:
        doubt = float((1 / output.depth_confidence.float()).mean())
    if output.rays is not None and cameras is not None:
        ray_gap = _ray_gap(output.rays, cameras)
    if output.depth is not None and output.depth.shape[2] > 1:
        if output.matches is not None:
            match_spread = _match_spread(output.matches)
        if cameras is not None:
            depth_gap = _depth_gap(output.depth.double(), cameras)
    return Signs(doubt=doubt, ray_gap_deg=ray_gap, match_spread=match_spread, depth_gap=depth_gap)


def _cameras(output: NetworkOutput) -> Cameras | None:
    if output.depth is None or output.world_to_camera is None or output.intrinsics is None:
        return None
    return Cameras(
        world_to_camera=output.world_to_camera.double(),
        intrinsics=output.intrinsics.double(),
        image_size=(output.depth.shape[-2], output.depth.shape[-1]),
    )


def _ray_gap(rays: Float[Tensor, "B T V rows columns 3"], cameras: Cameras) -> float:
    grid = (rays.shape[3], rays.shape[4])
    said = patch_directions(cameras.intrinsics, grid, cameras.image_size[0] // grid[0])
    apart = torch.linalg.cross(said, rays.double().flatten(3, 4)).norm(dim=-1).clamp(max=1).asin()
    return math.degrees(float(apart.median()))


def _match_spread(matches: Matches) -> float | None:
    chosen = [index for index, target in enumerate(matches.targets) if target in _ACROSS_VIEWS]
    if not chosen:
        return None
    log_probability = matches.log_probability[:, :, :, chosen].float()
    entropy = -(log_probability.exp() * log_probability).sum(dim=-1)
    return float(entropy.mean()) / math.log(log_probability.shape[-1])


def _depth_gap(depth: Float[Tensor, "B T V H W"], cameras: Cameras) -> float | None:
    """Compare every view with the next one, the last with the first."""
    inner = slice(_STEP // 2, None, _STEP)
    points = world_points(depth, cameras)[:, :, :, inner, inner].flatten(3, 4)
    onlooking = cameras.world_to_camera.roll(-1, dims=2)
    pixels, expected = project(transform_points(onlooking, points), cameras.intrinsics.roll(-1, dims=2))
    height, width = cameras.image_size
    column, row = pixels.floor().nan_to_num(-1).clamp(-1, max(height, width)).long().unbind(-1)
    met = (expected > 0) & (column >= 0) & (column < width) & (row >= 0) & (row < height)
    place = row.clamp(0, height - 1) * width + column.clamp(0, width - 1)
    found = depth.roll(-1, dims=2).flatten(3).gather(3, place)
    met &= found > 0
    if not met.any():
        return None
    return float((expected[met] / found[met]).log().abs().median())


@dataclass(frozen=True, kw_only=True)
class Domain:
    """Where a network is at home: the worst signs that are usual on scenes like those of its training.

    `limits` has the names of `Signs`; a sign without a limit is not looked at.
    """

    limits: Mapping[str, float]

    def beyond(self, signs: Signs) -> tuple[str, ...]:
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
    def from_json(text: str) -> "Domain":
        """Read what `to_json` wrote.

        Raises:
            WeightsError: if it is something else.
        """
        known = {field.name for field in fields(Signs)}
        try:
            limits = {str(name): float(value) for name, value in json.loads(text)["limits"].items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise WeightsError(f"the weights' domain is damaged: {error}", "fetch the file again") from error
        if not limits.keys() <= known:
            raise WeightsError(
                f"the weights' domain has unknown signs: {', '.join(sorted(limits.keys() - known))}", "update page4d"
            )
        return Domain(limits=limits)


def measure_domain(signs: Sequence[Signs], share: float) -> Domain:
    """Return the limits within which a share of what was measured lies, sign by sign."""
    limits = {}
    for field in fields(Signs):
        values = [value for one in signs if (value := getattr(one, field.name)) is not None]
        if values:
            limits[field.name] = float(torch.tensor(values, dtype=torch.float64).quantile(share))
    return Domain(limits=limits)
