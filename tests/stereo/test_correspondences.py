"""Guided correspondences: every pair of neighbouring views, accurate positions, fallback to the network's matches."""

from dataclasses import replace

import pytest
import torch

from page4d.geometry.camera import Cameras
from page4d.lab.synthetic.capture import SceneRequest, sample_truth
from page4d.networks.config_parts import MatchTarget
from page4d.networks.inputs.matching import Matches
from page4d.networks.output import NetworkOutput
from page4d.records import GroundTruth
from page4d.stereo.bundle_adjustment import Correspondences
from page4d.stereo.correspondences import guided_correspondences, network_correspondences
from page4d.stereo.views import ViewPrediction
from tests.geometry.geometry_samples import se3_exp
from tests.stereo.synthetic_rigs import (
    PATCH,
    filled_depth,
    true_cameras,
    true_matches,
    true_patch_positions,
    with_views,
)

SIZE, GRID = (96, 128), (12, 16)
TIMES, VIEWS = 2, 4


@pytest.fixture(scope="module")
def truth() -> GroundTruth:
    return sample_truth([5], SceneRequest(num_times=TIMES, num_views=VIEWS, image_size=SIZE, spacing_deg=(8, 9)))


def views_with(truth: GroundTruth, matches: Matches) -> list[ViewPrediction]:
    """Return views with true depth and these matches."""
    depth = filled_depth(truth)
    return [
        ViewPrediction(
            output=NetworkOutput(depth=depth[:, :, view, None], matches=matches.of_view(view)), patch_size=PATCH
        )
        for view in range(depth.shape[2])
    ]


def views_with_wrong_matches(truth: GroundTruth, targets: tuple[MatchTarget, ...]) -> list[ViewPrediction]:
    """Return views with true depth, most of whose matches are wrong, of confidence 0.25."""
    shape = (*truth.depth.shape[:3], len(targets), GRID[0] * GRID[1])
    expected = torch.linspace(-0.5, 0.5, shape[-1] * 2).reshape(-1, 2).expand(*shape, 2)
    return views_with(truth, Matches(expected=expected, confidence=torch.full(shape, 0.25), targets=targets))


def matched(
    truth: GroundTruth, views: list[ViewPrediction], cameras: Cameras | None = None, reduction: int = 1
) -> tuple[Correspondences, Correspondences]:
    """Return the network's correspondences and the guided ones, given true depth and, by default, true cameras."""
    before = network_correspondences(views, TIMES, 3.0)
    images = [image[..., : view.size[0], :] for image, view in zip(truth.images.unbind(2), views, strict=True)]
    depth = [view.depth[:, :, 0] for view in views]
    return before, guided_correspondences(before, views, images, cameras or true_cameras(truth), depth, reduction)


@pytest.mark.parametrize("targets", [(MatchTarget.NEXT_VIEW,), tuple(MatchTarget), (MatchTarget.NEXT_TIME,)])
def test_every_pair_of_views_is_matched_once(truth: GroundTruth, targets: tuple[MatchTarget, ...]) -> None:
    _, guided = matched(truth, views_with_wrong_matches(truth, targets))
    num_in_time = sum(not target.at_same_instant for target in targets)
    assert guided.targets.shape == (TIMES * VIEWS, VIEWS - 1 + num_in_time)
    for image, others in enumerate(guided.targets.tolist()):
        time, view = divmod(image, VIEWS)
        expected = [time * VIEWS + other for other in range(VIEWS) if other != view]
        assert sorted(others[: VIEWS - 1]) == expected
        assert all(other % VIEWS == view for other in others[VIEWS - 1 :])


def test_pairs_that_the_network_did_not_match_get_accurate_positions(truth: GroundTruth) -> None:
    """The first and the third of four views: the view after the next is no target of a network."""
    _, guided = matched(truth, views_with_wrong_matches(truth, (MatchTarget.NEXT_VIEW, MatchTarget.PREVIOUS_VIEW)))
    slot = guided.targets[0].tolist().index(2)
    found = guided.weight[0, 0, slot] > 0
    assert found.float().mean() > 0.1
    reordered = with_views(truth, [0, 2, 1, 3])  # the third view is now the next one
    true = true_patch_positions(reordered, (MatchTarget.NEXT_VIEW,))
    both = found & true.seen[0, 0, 0, 0]
    assert both.sum() > 0.8 * found.sum()
    error_px = (guided.positions[0, 0, slot] - true.position[0, 0, 0, 0] * PATCH).norm(dim=-1)
    assert error_px[both].median() < 0.7


def test_reduced_images_reach_twice_as_far(truth: GroundTruth) -> None:
    """One camera is turned by about 8 px: beyond the reach of whole images, within that of halved ones."""
    cameras = true_cameras(truth)
    pose = cameras.world_to_camera.clone()
    turn = 8 / float(cameras.intrinsics[0, 0, 0, 0, 0])
    pose[:, :, 1] = se3_exp(torch.tensor([0, 0, 0, 0, turn, 0], dtype=torch.float64)) @ pose[:, :, 1]
    cameras = replace(cameras, world_to_camera=pose)
    targets = (MatchTarget.NEXT_VIEW,)
    true = true_patch_positions(truth, targets)
    position, seen = true.position[:, 0, 0, 0] * PATCH, true.seen[:, 0, 0, 0]

    def right(reduction: int) -> float:
        guided = matched(truth, views_with_wrong_matches(truth, targets), cameras, reduction)[1]
        slot = guided.targets[0].tolist().index(1)
        error_px = (guided.positions[:, 0, slot] - position).norm(dim=-1)
        return float(((error_px < 1.5) & (guided.weight[:, 0, slot] > 0))[seen].float().mean())

    assert right(1) < 0.02
    assert right(2) > 0.2


def test_network_matches_remain_where_guided_matching_fails(truth: GroundTruth) -> None:
    targets = (MatchTarget.NEXT_VIEW, MatchTarget.FIRST_TIME)
    before, guided = matched(truth, views_with_wrong_matches(truth, targets))
    for image in range(TIMES * VIEWS):
        slot = guided.targets[image].tolist().index(int(before.targets[image, 0]))
        old, new = before.positions[0, image, 0], guided.positions[0, image, slot]
        replaced = guided.weight[0, image, slot] > before.weight[0, image, 0]
        assert 0 < replaced.float().mean() < 1
        torch.testing.assert_close(new[~replaced], old[~replaced])
        assert not torch.isclose(new[replaced], old[replaced]).all(-1).any()
    torch.testing.assert_close(guided.positions[:, :, -1], before.positions[:, :, 1])
    torch.testing.assert_close(guided.weight[:, :, -1], before.weight[:, :, 1])
    blank = replace(truth, images=torch.full_like(truth.images, 0.5))
    before, guided = matched(blank, views_with_wrong_matches(blank, targets))
    assert torch.equal(guided.weight.sum(dim=2), before.weight.sum(dim=2))


def test_a_single_view_is_compared_between_instants(truth: GroundTruth) -> None:
    """A static one, of which patches without moving pixels stay where they are."""
    single = with_views(truth, [0])
    view, *_ = views_with_wrong_matches(single, tuple(MatchTarget))
    view = replace(view, output=replace(view.output, dynamic=single.dynamic.float()))
    before, guided = matched(single, [view])
    assert guided.targets.tolist() == [[0, 1], [0, 0]]  # the first instant, the next one
    found = (guided.weight > 1)[0, 0, 1]
    assert found.float().mean() > 0.3
    assert (guided.positions[0, 0, 1] - before.pixels[0, 0])[found].norm(dim=-1).median() < 0.1
    moving = view.static_probability(MatchTarget.NEXT_TIME)[0, 0] == 0
    assert moving.any()
    assert not found[moving].any()
    in_space, unchanged = matched(single, views_with_wrong_matches(single, (MatchTarget.NEXT_VIEW,)))
    torch.testing.assert_close(unchanged.weight, in_space.weight)


def test_a_smaller_view_has_fewer_patches(truth: GroundTruth) -> None:
    """The last view without its lowest rows has the same correspondences above them."""
    views, rows = views_with_wrong_matches(truth, (MatchTarget.NEXT_VIEW,)), 9
    last, kept = views[3], rows * GRID[1]
    matches = replace(
        last.matches, expected=last.matches.expected[..., :kept, :], confidence=last.matches.confidence[..., :kept]
    )
    output = replace(last.output, depth=last.output.depth[..., : rows * PATCH, :], matches=matches)
    cut = matched(truth, [*views[:3], replace(last, output=output)])[1]
    whole = matched(truth, views)[1]
    assert cut.positions.shape == whole.positions.shape
    own = slice(3, None, VIEWS)  # images of the last view
    found = whole.weight[:, own, 1:, :kept] > 0
    torch.testing.assert_close(cut.positions[:, own, 1:, :kept][found], whole.positions[:, own, 1:, :kept][found])
    assert not cut.weight[:, own, :, kept:].any()


def test_views_of_large_rigs_are_matched_with_their_nearest_neighbours() -> None:
    truth = sample_truth([6], SceneRequest(num_times=TIMES, num_views=8, image_size=(32, 40), spacing_deg=(5, 6)))
    targets = (MatchTarget.FIRST_VIEW, MatchTarget.NEXT_VIEW, MatchTarget.PREVIOUS_VIEW)
    _, guided = matched(truth, views_with(truth, true_matches(truth, targets)))
    assert guided.targets.shape == (TIMES * 8, 5)
    assert sorted(guided.targets[12].tolist()) == [8, 10, 11, 13, 14]  # the fifth view at the second instant
