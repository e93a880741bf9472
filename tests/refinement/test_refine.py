"""Cameras and depth that are made to agree with matches come closer to the truth, and stay where nothing is known."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from page4d.evaluation.camera_pairs import pair_errors
from page4d.geometry.rigid import se3_exp
from page4d.ground_truth import GroundTruth
from page4d.models.conditioning import Conditioning
from page4d.models.config import MatchTarget
from page4d.models.inputs.matching import Matches, ViewMatches, target_images
from page4d.models.output import MixedOutput, NetworkOutput
from page4d.refinement.refine import refine
from page4d.synthetic.sampler import ShotRequest, sample_truth
from page4d.training.supervised.matching_losses import centered
from page4d.training.supervised.targets import targets_of
from page4d.training.supervised.true_matches import true_correspondences

PATCH = 8
SIZE = (64, 80)
GRID = (8, 10)
KINDS = tuple(MatchTarget)


@pytest.fixture(scope="module")
def truth() -> GroundTruth:
    return sample_truth([1, 2], ShotRequest(num_times=2, num_views=3, image_size=SIZE, spacing_deg=(15, 16)))


@pytest.fixture(scope="module")
def matches(truth: GroundTruth) -> Matches:
    """Where patches truly are, and that they are seen."""
    true = true_correspondences(targets_of(truth), PATCH, KINDS)
    return Matches(
        likelihoods=None,
        expected=centered(true.position, GRID),
        confidence=true.seen.float(),
        targets=KINDS,
    )


@pytest.fixture(scope="module")
def output(truth: GroundTruth, matches: Matches) -> NetworkOutput:
    """What a network may say that is wrong by some degrees and some percent, in another unit than the truth."""
    torch.manual_seed(0)
    twist = torch.randn(2, 2, 3, 6).double() * torch.tensor([0.1, 0.1, 0.1, 0.1, 0.1, 0.1])
    pose = se3_exp(twist) @ truth.cameras.world_to_camera.double()
    pose[..., :3, 3] /= 3
    slope = torch.linspace(0.8, 1.2, SIZE[1])
    return NetworkOutput(
        world_to_camera=pose,
        intrinsics=truth.cameras.intrinsics.double() * torch.tensor([1.05, 1.05, 1])[:, None],
        depth=torch.where(truth.depth > 0, truth.depth, 60) / 3 * slope,
        depth_confidence=torch.full_like(truth.depth, 2.0),
        dynamic=truth.dynamic.float(),
        matches=matches,
    )


def of_views(output: NetworkOutput, views: slice) -> NetworkOutput:
    """Return what is said of some of the views."""
    matches = replace(
        output.matches,
        expected=output.matches.expected[:, :, views],
        confidence=output.matches.confidence[:, :, views],
    )
    names = ("world_to_camera", "intrinsics", "depth", "depth_confidence", "dynamic")
    return replace(output, matches=matches, **{name: getattr(output, name)[:, :, views] for name in names})


def rotation_error(output: NetworkOutput, truth: GroundTruth) -> float:
    errors = [
        pair_errors(found.flatten(0, 1).double(), true.flatten(0, 1).double()).rotation_deg
        for found, true in zip(output.world_to_camera, truth.cameras.world_to_camera, strict=True)
    ]
    return float(torch.cat(errors).median())


def depth_error(output: NetworkOutput, truth: GroundTruth) -> float:
    known = truth.depth > 0
    slip = (output.depth / truth.depth).log()
    return float((slip - slip[known].median())[known].abs().median())


def test_cameras_and_depth_come_closer_to_the_truth(output: NetworkOutput, truth: GroundTruth) -> None:
    better = refine(output, PATCH, 2, sigma_cells=0.2)
    assert rotation_error(output, truth) > 5
    assert rotation_error(better, truth) < 2.2
    assert depth_error(better, truth) < 0.7 * depth_error(output, truth)  # some patches are seen by one view only
    focal, guessed, true = (
        one[..., 0, 0] for one in (better.intrinsics, output.intrinsics, truth.cameras.intrinsics)
    )
    assert (focal / true).log().abs().median() < 0.65 * (guessed / true).log().abs().median()
    assert better.depth.shape == output.depth.shape
    assert better.depth.dtype == output.depth.dtype


def test_known_cameras_make_depth_better_and_are_left_to_be_compared(
    output: NetworkOutput, truth: GroundTruth
) -> None:
    conditioning = Conditioning(world_to_camera=truth.cameras.world_to_camera, intrinsics=truth.cameras.intrinsics)
    better = refine(output, PATCH, 2, conditioning, sigma_cells=0.2)
    assert depth_error(better, truth) < 0.5 * depth_error(output, truth)
    torch.testing.assert_close(better.intrinsics, truth.cameras.intrinsics.double())
    assert 0 < rotation_error(better, truth) < 2.2
    # The depth is in the unit of the cameras that come with it.
    ratio = (better.depth / truth.depth)[truth.depth > 0].median()
    assert ratio == pytest.approx(1 / 3, rel=0.1)


def test_what_a_network_is_sure_of_moves_the_least(output: NetworkOutput) -> None:
    """Where it says nothing of its confidence, depth moves as if that were middling."""
    moves = []
    for confidence in (1.0, None, 5.0):
        told = None if confidence is None else torch.full_like(output.depth, confidence)
        better = refine(replace(output, depth_confidence=told), PATCH, 2)
        slip = (better.depth / output.depth).log().flatten(3)
        moves.append(float((slip - slip.median(dim=-1, keepdim=True).values).abs().mean()))
    assert moves[0] > 1.1 * moves[1]
    assert moves[1] > 1.3 * moves[2]


def test_other_units_change_nothing(output: NetworkOutput) -> None:
    pose = output.world_to_camera.clone()
    pose[..., :3, 3] *= 50
    here, there = (
        refine(output, PATCH, 2),
        refine(replace(output, world_to_camera=pose, depth=output.depth * 50), PATCH, 2),
    )
    torch.testing.assert_close(there.depth / 50, here.depth, rtol=1e-4, atol=0)


def test_what_moves_says_nothing_of_other_instants(
    output: NetworkOutput, matches: Matches, truth: GroundTruth
) -> None:
    """Wrong matches in time of what is known to move do no harm."""
    expected = matches.expected.clone()
    moving = torch.nn.functional.max_pool2d(truth.dynamic.float().flatten(0, 2)[:, None], PATCH).bool()
    moving = moving.reshape(*truth.depth.shape[:3], 1, -1).expand(-1, -1, -1, 2, -1)
    assert moving.any()
    confidence = matches.confidence.clone()
    expected[:, :, :, -2:][moving] = 0.1
    confidence[:, :, :, -2:][moving] = 1.0
    wrong = replace(output, matches=replace(matches, expected=expected, confidence=confidence))
    clean = replace(output, matches=replace(matches, confidence=torch.where(confidence > 1, 0.0, matches.confidence)))
    clean.matches.confidence[:, :, :, -2:][moving] = 0.0
    torch.testing.assert_close(refine(wrong, PATCH, 2).depth, refine(clean, PATCH, 2).depth)


def test_without_matches_cameras_and_what_no_other_view_sees_stay(output: NetworkOutput, matches: Matches) -> None:
    alone = replace(output, matches=None)
    assert refine(alone, PATCH, 2) is alone
    unsure = replace(output, matches=replace(matches, confidence=torch.zeros_like(matches.confidence)))
    found = refine(unsure, PATCH, 2)
    torch.testing.assert_close(found.world_to_camera, output.world_to_camera)
    torch.testing.assert_close(found.intrinsics, output.intrinsics)
    lone = of_views(unsure, slice(0, 1))
    torch.testing.assert_close(refine(lone, PATCH, 2).depth, lone.depth)


def test_views_of_different_sizes_are_refined_together(
    output: NetworkOutput, matches: Matches, truth: GroundTruth
) -> None:
    """Views apart, with fewer patches told of one, come as close to the truth."""
    views = tuple(output.of_view(view) for view in range(3))
    mixed = MixedOutput(views=views, matches=tuple(matches.of_view(view) for view in range(3)))
    whole, apart = refine(output, PATCH, 2), refine(mixed, PATCH, 2)
    torch.testing.assert_close(apart.world_to_camera, whole.world_to_camera)
    torch.testing.assert_close(torch.cat([view.depth for view in apart.views], dim=2), whole.depth)
    # The last view without its lowest rows of patches: an image of another size, whose middle is another.
    rows, shift = 6, (SIZE[0] - 6 * PATCH) / 2
    cut = slice(0, rows * GRID[1])
    matrix = views[2].intrinsics.clone()
    lower = replace(
        views[2],
        intrinsics=matrix,
        depth=views[2].depth[..., : rows * PATCH, :],
        depth_confidence=views[2].depth_confidence[..., : rows * PATCH, :],
        dynamic=views[2].dynamic[..., : rows * PATCH, :],
    )
    step = shift / (max(SIZE) / 2)

    def seen_from(view: int) -> ViewMatches:
        """Return matches in which positions in the cut image are counted from its own middle."""
        own = matches.of_view(view)
        expected, confidence = own.expected.clone(), own.confidence.clone()
        for index, kind in enumerate(KINDS):
            if int(target_images(kind, 2, 3)[1][0, view]) == 2:
                expected[:, :, index, :, 1] += step
                below = expected[:, :, index, :, 1] * max(SIZE) / 2 > rows * PATCH / 2
                confidence[:, :, index] *= ~below
        chosen = cut if view == 2 else slice(None)
        return replace(own, expected=expected[..., chosen, :], confidence=confidence[..., chosen])

    mixed = MixedOutput(views=(*views[:2], lower), matches=tuple(seen_from(view) for view in range(3)))
    better = refine(mixed, PATCH, 2, sigma_cells=0.2)
    assert better.views[2].depth.shape[-2:] == (rows * PATCH, SIZE[1])
    assert rotation_error(better, truth) < 2.5


def test_a_view_alone_nearly_keeps_its_focal_length(output: NetworkOutput, matches: Matches) -> None:
    """Matches in time that show everything further from the middle would make any focal length longer."""
    wider = replace(
        matches,
        expected=1.3 * matches.expected[:, :, :1, -1:],
        confidence=torch.ones_like(matches.confidence[:, :, :1, -1:]),
        targets=KINDS[-1:],
    )
    alone = replace(of_views(output, slice(0, 1)), matches=wider)
    alone = replace(alone, dynamic=torch.zeros_like(alone.dynamic))
    found = refine(alone, PATCH, 2)
    change = (found.intrinsics / alone.intrinsics)[..., 0, 0].log().abs()
    assert 0 < change.max() < 0.1
    assert (found.world_to_camera - alone.world_to_camera).abs().max() > 0.01


def test_depth_steps_where_the_colours_of_images_do(truth: GroundTruth, output: NetworkOutput) -> None:
    """Depth that is unsure, and wide, around the edges of things ends where these do; of a view alone, too."""
    known, log_depth = truth.depth > 0, torch.where(truth.depth > 0, truth.depth, 60).log()
    frames = log_depth.flatten(0, 2)[:, None]
    wide, slim = (functional.max_pool2d(sign * frames, 3, stride=1, padding=1) * sign for sign in (-1, 1))
    wide, apart = wide.view_as(log_depth), (slim - wide).view_as(log_depth)
    said = replace(output, depth=wide.exp(), depth_confidence=1 + 3 * (apart < 0.05).float(), points=None)
    for views in (slice(0, 1), slice(0, 3)):
        found = _sharpened_alone(said, truth, views)
        edges = (known & (apart > 0.3))[:, :, views]
        before, after = ((depth.log() - log_depth[:, :, views]).abs() for depth in (said.depth[:, :, views], found))
        assert after[edges].mean() < 0.8 * before[edges].mean()


def _sharpened_alone(said: NetworkOutput, truth: GroundTruth, views: slice) -> Tensor:
    """Return refined depth of some views, of known cameras, where matches tell nothing."""
    some = of_views(said, views)
    nothing = replace(some.matches, confidence=torch.zeros_like(some.matches.confidence))
    cameras = truth.cameras[:, :, views]
    some = replace(
        some,
        world_to_camera=cameras.world_to_camera.double(),
        intrinsics=cameras.intrinsics.double(),
        matches=nothing,
    )
    return refine(some, PATCH, 2, images=truth.images[:, :, views]).depth
