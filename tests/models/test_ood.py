"""A network's signs of being out of its depth are what they say, where the answer is known."""

import math
from dataclasses import replace

import pytest
import torch

from page4d.errors import WeightsError
from page4d.geometry.camera import resize_intrinsics
from page4d.models.config import MatchTarget
from page4d.models.inputs.matching import Matches
from page4d.models.inputs.rays import patch_directions
from page4d.models.ood import OOD_MESSAGES, OODIndicators, OODLimits, fit_ood_limits, measure_ood
from page4d.models.output import NetworkOutput
from page4d.synthetic.sampler import ShotRequest, sample_truth

PATCH = 8
GRID = (6, 8)


def matches(confidence: float) -> Matches:
    """Patches that are found somewhere, all as surely."""
    patches = GRID[0] * GRID[1]
    expected = torch.zeros(1, 2, 3, 2, patches, 2)
    sure = torch.full((1, 2, 3, 2, patches), confidence)
    sure[:, :, :, 1] = 0.3  # between instants: says nothing of the views
    return Matches(
        likelihoods=None,
        expected=expected,
        confidence=sure,
        targets=(MatchTarget.NEXT_VIEW, MatchTarget.NEXT_TIME),
    )


@pytest.fixture(scope="module")
def perfect() -> NetworkOutput:
    """The truth of three near views at two instants, told with confidence."""
    truth = sample_truth([1], ShotRequest(num_times=2, num_views=3, image_size=(48, 64), spacing_deg=(5, 6)))
    rays = patch_directions(truth.cameras.intrinsics, GRID, PATCH).unflatten(3, GRID)
    return NetworkOutput(
        world_to_camera=truth.cameras.world_to_camera,
        intrinsics=truth.cameras.intrinsics,
        depth=truth.depth,
        depth_confidence=torch.full_like(truth.depth, 1e6),
        rays=rays,
        matches=matches(1.0),
    )


def test_the_truth_shows_no_sign(perfect):
    found = measure_ood(perfect)
    assert found.doubt == pytest.approx(0, abs=1e-5)
    assert found.ray_gap_deg == pytest.approx(0, abs=1e-3)
    assert found.match_doubt == 0
    assert found.depth_gap == pytest.approx(0, abs=0.02)  # nearest pixels are compared


def test_depth_gap_is_how_far_one_view_contradicts_the_next(perfect):
    scales = torch.tensor([1.0, 1.5, 2.25])[:, None, None]
    found = measure_ood(replace(perfect, depth=perfect.depth * scales)).depth_gap
    assert found == pytest.approx(math.log(1.5), rel=0.2)


def test_ray_gap_grows_with_the_error_of_the_focal_length(perfect):
    wider = resize_intrinsics(perfect.intrinsics, 0.8, 0.8)
    wider[..., :2, 2] = perfect.intrinsics[..., :2, 2]
    slight, strong = (
        measure_ood(replace(perfect, intrinsics=torch.lerp(perfect.intrinsics, wider, share))).ray_gap_deg
        for share in (0.5, 1.0)
    )
    assert 0.5 < slight < strong < 10


def test_match_doubt_is_one_minus_the_confidence_of_matches_between_views(perfect):
    assert measure_ood(replace(perfect, matches=matches(0.25))).match_doubt == 0.75


def test_doubt_is_one_minus_the_confidence_that_is_written(perfect):
    assert measure_ood(replace(perfect, depth_confidence=torch.full_like(perfect.depth, 4.0))).doubt == 0.25


def test_one_view_has_no_neighbour_to_contradict_it(perfect):
    alone = replace(
        perfect,
        **{name: getattr(perfect, name)[:, :, :1] for name in ("world_to_camera", "intrinsics", "depth", "rays")},
    )
    found = measure_ood(alone)
    assert (found.depth_gap, found.match_doubt) == (None, None)
    assert found.ray_gap_deg is not None


def test_what_a_network_does_not_say_is_no_sign(perfect):
    assert measure_ood(NetworkOutput(depth=perfect.depth)) == OODIndicators()


class TestDomain:
    LIMITS = OODLimits(limits={"doubt": 0.5, "depth_gap": 0.2})

    def test_it_names_what_is_worse_than_its_limits(self):
        assert self.LIMITS.beyond(OODIndicators(doubt=0.5, depth_gap=0.3, ray_gap_deg=90)) == ("depth_gap",)
        assert self.LIMITS.beyond(OODIndicators(doubt=0.6)) == ("doubt",)
        assert self.LIMITS.beyond(OODIndicators(depth_gap=math.nan)) == ("depth_gap",)
        assert self.LIMITS.beyond(OODIndicators()) == ()

    def test_limits_hold_a_share_of_what_was_measured(self):
        measured = [OODIndicators(doubt=number / 100) for number in range(101)]
        assert fit_ood_limits(measured, 0.98).limits == {"doubt": pytest.approx(0.98)}

    def test_it_survives_its_file(self):
        assert OODLimits.from_json(self.LIMITS.to_json()) == self.LIMITS

    @pytest.mark.parametrize(
        "text", ["", "{}", '{"limits": 3}', '{"limits": {"doubt": "high"}}', '{"limits": {"x": 1}}']
    )
    def test_damage_is_said(self, text):
        with pytest.raises(WeightsError, match="the weights' domain"):
            OODLimits.from_json(text)

    def test_every_sign_has_words(self):
        assert OOD_MESSAGES.keys() == vars(OODIndicators()).keys()
