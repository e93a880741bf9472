"""Out-of-distribution indicators have their defined values on known predictions."""

import math
from dataclasses import replace

import pytest
import torch

from page4d.errors import WeightsError
from page4d.geometry.camera import resize_intrinsics
from page4d.lab.synthetic.capture import SceneRequest, sample_truth
from page4d.networks.config_parts import MatchTarget
from page4d.networks.inputs.known_cameras import patch_directions
from page4d.networks.inputs.matching import Matches
from page4d.networks.ood import OOD_MESSAGES, OODIndicators, OODLimits, fit_ood_limits, measure_ood
from page4d.networks.output import NetworkOutput, RigOutput

PATCH = 8
GRID = (6, 8)


def matches(confidence: float) -> Matches:
    """Return matches of constant confidence between views."""
    patches = GRID[0] * GRID[1]
    expected = torch.zeros(1, 2, 3, 2, patches, 2)
    confidences = torch.full((1, 2, 3, 2, patches), confidence)
    confidences[:, :, :, 1] = 0.3  # between instants: ignored
    return Matches(expected=expected, confidence=confidences, targets=(MatchTarget.NEXT_VIEW, MatchTarget.NEXT_TIME))


def measured(output: NetworkOutput) -> OODIndicators:
    return measure_ood(RigOutput.of(output))


@pytest.fixture(scope="module")
def perfect() -> NetworkOutput:
    """The ground truth of three close views at two instants, with high confidence."""
    truth = sample_truth([1], SceneRequest(num_times=2, num_views=3, image_size=(48, 64), spacing_deg=(5, 6)))
    rays = patch_directions(truth.cameras.intrinsics, GRID, PATCH).unflatten(3, GRID)
    return NetworkOutput(
        world_to_camera=truth.cameras.world_to_camera,
        intrinsics=truth.cameras.intrinsics,
        depth=truth.depth,
        depth_confidence=torch.full_like(truth.depth, 1e6),
        rays=rays,
        matches=matches(1.0),
    )


def test_indicators_of_the_ground_truth_are_zero(perfect):
    found = measured(perfect)
    assert found.doubt == pytest.approx(0, abs=1e-5)
    assert found.ray_gap_deg == pytest.approx(0, abs=1e-3)
    assert found.match_doubt == 0
    assert found.depth_gap == pytest.approx(0, abs=0.02)  # nearest pixels are compared


def test_depth_gap_is_the_log_ratio_of_depths_in_neighbouring_views(perfect):
    scales = torch.tensor([1.0, 1.5, 2.25])[:, None, None]
    found = measured(replace(perfect, depth=perfect.depth * scales)).depth_gap
    assert found == pytest.approx(math.log(1.5), rel=0.2)


def test_ray_gap_grows_with_the_error_of_the_focal_length(perfect):
    wider = resize_intrinsics(perfect.intrinsics, 0.8, 0.8)
    wider[..., :2, 2] = perfect.intrinsics[..., :2, 2]
    slight, strong = (
        measured(replace(perfect, intrinsics=torch.lerp(perfect.intrinsics, wider, share))).ray_gap_deg
        for share in (0.5, 1.0)
    )
    assert 0.5 < slight < strong < 10


def test_match_doubt_is_one_minus_the_match_confidence_between_views(perfect):
    assert measured(replace(perfect, matches=matches(0.25))).match_doubt == 0.75


def test_doubt_is_one_minus_the_exported_confidence(perfect):
    assert measured(replace(perfect, depth_confidence=torch.full_like(perfect.depth, 4.0))).doubt == 0.25


def test_single_views_have_no_indicators_between_views(perfect):
    single = replace(
        perfect,
        **{name: getattr(perfect, name)[:, :, :1] for name in ("world_to_camera", "intrinsics", "depth", "rays")},
    )
    found = measured(single)
    assert (found.depth_gap, found.match_doubt) == (None, None)
    assert found.ray_gap_deg is not None


def test_missing_outputs_have_no_indicators(perfect):
    assert measured(NetworkOutput(depth=perfect.depth)) == OODIndicators()


class TestOODLimits:
    LIMITS = OODLimits(limits={"doubt": 0.5, "depth_gap": 0.2})

    def test_ratios_are_those_to_the_limits_of_all_measured_indicators(self):
        limits = OODLimits(limits={**self.LIMITS.limits, "match_doubt": 0.0})
        found = limits.ratios(OODIndicators(doubt=0.75, depth_gap=0.1, match_doubt=0.0, ray_gap_deg=90))
        assert found == {"doubt": 1.5, "depth_gap": 0.5, "match_doubt": 0.0}
        assert limits.ratios(OODIndicators(depth_gap=math.nan, match_doubt=0.1)) == {
            "depth_gap": math.inf,
            "match_doubt": math.inf,
        }
        assert limits.ratios(OODIndicators()) == {}

    @pytest.mark.parametrize("value", [0.1, 0.2, 0.20001, math.inf, math.nan])
    def test_ratios_above_one_are_the_exceeded_limits(self, value):
        ratios = self.LIMITS.ratios(OODIndicators(doubt=0.5, depth_gap=value))
        assert {name: ratio > 1 for name, ratio in ratios.items()} == {"doubt": False, "depth_gap": not value <= 0.2}

    def test_limits_are_quantiles_of_measured_indicators(self):
        measured = [OODIndicators(doubt=number / 100) for number in range(101)]
        assert fit_ood_limits(measured, 0.98).limits == {"doubt": pytest.approx(0.98)}

    def test_limits_survive_json(self):
        assert OODLimits.from_json(self.LIMITS.to_json()) == self.LIMITS

    @pytest.mark.parametrize(
        "text", ["", "{}", '{"limits": 3}', '{"limits": {"doubt": "high"}}', '{"limits": {"x": 1}}']
    )
    def test_damaged_text_is_refused(self, text):
        with pytest.raises(WeightsError, match="the weights' domain"):
            OODLimits.from_json(text)

    def test_every_indicator_has_a_message(self):
        assert OOD_MESSAGES.keys() == vars(OODIndicators()).keys()
