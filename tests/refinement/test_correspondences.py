"""Patches are looked for in every other view, keep what was found before where nothing is, and tell who is who."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from page4d.geometry.camera import Cameras
from page4d.ground_truth import GroundTruth
from page4d.models.config import MatchTarget
from page4d.models.inputs.matching import Matches
from page4d.models.output import NetworkOutput
from page4d.refinement.correspondences import close_sightings, network_sightings
from page4d.refinement.matched_view import MatchedView
from page4d.synthetic.sampler import ShotRequest, sample_truth
from page4d.training.supervised.matching_losses import centered
from page4d.training.supervised.targets import targets_of
from page4d.training.supervised.true_matches import true_correspondences

PATCH, SIZE, GRID = 8, (96, 128), (12, 16)
TIMES, VIEWS = 2, 4


@pytest.fixture(scope="module")
def truth() -> GroundTruth:
    return sample_truth([5], ShotRequest(num_times=TIMES, num_views=VIEWS, image_size=SIZE, spacing_deg=(8, 9)))


def depths(truth: GroundTruth) -> Tensor:
    return torch.where(truth.depth > 0, truth.depth, 60)


def views_of(truth: GroundTruth, targets: tuple[MatchTarget, ...]) -> list[MatchedView]:
    """Return views of a network that knows the depth, and some of whose matches are wrong but half sure."""
    shape = (*truth.depth.shape[:3], len(targets), GRID[0] * GRID[1])
    found = torch.linspace(-0.5, 0.5, shape[-1] * 2).reshape(-1, 2).expand(*shape, 2)
    matches = Matches(likelihoods=None, expected=found, confidence=torch.full(shape, 0.25), targets=targets)
    return [
        MatchedView(
            output=NetworkOutput(depth=depths(truth)[:, :, view, None]),
            matches=matches.of_view(view),
            patch_size=PATCH,
        )
        for view in range(truth.depth.shape[2])
    ]


def looked(truth: GroundTruth, targets: tuple[MatchTarget, ...], views: list[MatchedView] | None = None):
    """Return what a network found, and what is found closely by true cameras and depth."""
    views = views or views_of(truth, targets)
    before = network_sightings(views, TIMES, 3.0)
    cameras = Cameras(
        world_to_camera=truth.cameras.world_to_camera.double(),
        intrinsics=truth.cameras.intrinsics.double(),
        image_size=SIZE,
    )
    images = [image[..., : view.size[0], :] for image, view in zip(truth.images.unbind(2), views, strict=True)]
    deep = [view.depth[:, :, 0] for view in views]
    return before, close_sightings(before, views, images, cameras, deep)


@pytest.mark.parametrize("targets", [(MatchTarget.NEXT_VIEW,), tuple(MatchTarget), (MatchTarget.NEXT_TIME,)])
def test_every_pair_of_views_is_looked_at_once(truth: GroundTruth, targets: tuple[MatchTarget, ...]) -> None:
    _, close = looked(truth, targets)
    later = sum(not target.at_same_instant for target in targets)
    assert close.images.shape == (TIMES * VIEWS, VIEWS - 1 + later)
    for image, others in enumerate(close.images.tolist()):
        time, view = divmod(image, VIEWS)
        there = [other for other in range(VIEWS) if other != view]
        assert sorted(others[: VIEWS - 1]) == [time * VIEWS + other for other in there]
        assert all(other % VIEWS == view for other in others[VIEWS - 1 :])


def test_pairs_that_no_network_looked_at_are_found_where_they_are(truth: GroundTruth) -> None:
    """The first and the third of four views: no target of a network is the view after the next."""
    _, close = looked(truth, (MatchTarget.NEXT_VIEW, MatchTarget.PREVIOUS_VIEW))
    slot = close.images[0].tolist().index(2)
    sure = close.weight[0, 0, slot] > 0
    assert sure.float().mean() > 0.1
    swapped = replace(  # views 0, 2, 1, 3: the third is now the next, which true correspondences can be asked for
        truth,
        images=truth.images[:, :, [0, 2, 1, 3]],
        depth=truth.depth[:, :, [0, 2, 1, 3]],
        valid=truth.valid[:, :, [0, 2, 1, 3]],
        dynamic=truth.dynamic[:, :, [0, 2, 1, 3]],
        cameras=truth.cameras[:, :, [0, 2, 1, 3]],
    )
    true = true_correspondences(targets_of(swapped), PATCH, (MatchTarget.NEXT_VIEW,))
    both = sure & true.seen[0, 0, 0, 0]
    assert both.sum() > 0.8 * sure.sum()
    off = (close.found[0, 0, slot] - true.position[0, 0, 0, 0] * PATCH).norm(dim=-1)
    assert off[both].median() < 0.7


def test_what_was_found_stays_where_nothing_looks_alike(truth: GroundTruth) -> None:
    targets = (MatchTarget.NEXT_VIEW, MatchTarget.FIRST_TIME)
    before, close = looked(truth, targets)
    for image in range(TIMES * VIEWS):
        asked = int(before.images[image, 0])
        slot = close.images[image].tolist().index(asked)
        anew = close.weight[0, image, slot] > before.weight[0, image, 0]
        assert 0 < anew.float().mean() < 1
        torch.testing.assert_close(close.found[0, image, slot][~anew], before.found[0, image, 0][~anew])
        assert not torch.isclose(close.found[0, image, slot][anew], before.found[0, image, 0][anew]).all(-1).any()
    torch.testing.assert_close(close.found[:, :, -1], before.found[:, :, 1])
    torch.testing.assert_close(close.weight[:, :, -1], before.weight[:, :, 1])
    blank = replace(truth, images=torch.full_like(truth.images, 0.5))
    before, nothing = looked(blank, targets)
    assert torch.equal(nothing.weight.sum(dim=2), before.weight.sum(dim=2))


def test_a_view_alone_is_left_as_it_is(truth: GroundTruth) -> None:
    alone = replace(
        truth,
        images=truth.images[:, :, :1],
        depth=truth.depth[:, :, :1],
        valid=truth.valid[:, :, :1],
        dynamic=truth.dynamic[:, :, :1],
        cameras=truth.cameras[:, :, :1],
    )
    before, after = looked(alone, tuple(MatchTarget))
    assert after is before


def test_a_smaller_view_has_fewer_patches(truth: GroundTruth) -> None:
    """The last view without its lowest rows: what is above them is found as in the whole."""
    targets = (MatchTarget.NEXT_VIEW,)
    views, rows = views_of(truth, targets), 9
    low, kept = views[3], rows * GRID[1]
    matches = replace(
        low.matches, expected=low.matches.expected[..., :kept, :], confidence=low.matches.confidence[..., :kept]
    )
    output = replace(low.output, depth=low.output.depth[..., : rows * PATCH, :])
    cut = looked(truth, targets, [*views[:3], replace(low, output=output, matches=matches)])[1]
    whole = looked(truth, targets)[1]
    assert cut.found.shape == whole.found.shape
    own = slice(3, None, VIEWS)  # images of the last view
    anew = whole.weight[:, own, 1:, :kept] > 0
    torch.testing.assert_close(cut.found[:, own, 1:, :kept][anew], whole.found[:, own, 1:, :kept][anew])
    assert not cut.weight[:, own, :, kept:].any()


def test_large_rigs_look_at_the_nearest_in_line() -> None:
    truth = sample_truth([6], ShotRequest(num_times=TIMES, num_views=8, image_size=(32, 40), spacing_deg=(5, 6)))
    targets = (MatchTarget.FIRST_VIEW, MatchTarget.NEXT_VIEW, MatchTarget.PREVIOUS_VIEW)
    true = true_correspondences(targets_of(truth), PATCH, targets)
    matches = Matches(
        likelihoods=None,
        expected=centered(true.position, (4, 5)),
        confidence=true.seen.float(),
        targets=targets,
    )
    views = [
        MatchedView(
            output=NetworkOutput(depth=depths(truth)[:, :, view, None]),
            matches=matches.of_view(view),
            patch_size=PATCH,
        )
        for view in range(8)
    ]
    cameras = replace(
        truth.cameras,
        world_to_camera=truth.cameras.world_to_camera.double(),
        intrinsics=truth.cameras.intrinsics.double(),
    )
    close = close_sightings(
        network_sightings(views, TIMES, 3.0),
        views,
        list(truth.images.unbind(2)),
        cameras,
        list(depths(truth).unbind(2)),
    )
    assert close.images.shape == (TIMES * 8, 5)
    assert sorted(close.images[12].tolist()) == [8, 10, 11, 13, 14]  # the fifth view at the second instant
