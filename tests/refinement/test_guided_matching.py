"""Patches are found where images look alike, to a fraction of a pixel, and nowhere where nothing can be told."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from page4d.evaluation.camera_pairs import pair_errors
from page4d.geometry.camera import Cameras
from page4d.geometry.rigid import se3_exp
from page4d.ground_truth import GroundTruth
from page4d.models.config import MatchTarget
from page4d.models.inputs.matching import Matches, patch_centers, to_pixels
from page4d.models.output import NetworkOutput
from page4d.refinement.guided_matching import CloseMatches, match_closely
from page4d.refinement.refine import refine
from page4d.synthetic.sampler import ShotRequest, sample_truth
from page4d.training.supervised.matching_losses import centered
from page4d.training.supervised.targets import targets_of
from page4d.training.supervised.true_matches import Correspondences, true_correspondences

PATCH, SIZE, GRID = 8, (96, 128), (12, 16)
MIDDLES = to_pixels(patch_centers(GRID), GRID, PATCH)
KINDS = (MatchTarget.NEXT_VIEW, MatchTarget.PREVIOUS_VIEW)


def shifted(shift: tuple[float, float]) -> tuple[Tensor, Cameras, Tensor]:
    """Return two images [1, 1, 2] of waves, the second moved by (x, y) px; cameras know nothing of it.

    Waves are shorter than patches and of several directions, so that their places are clear.
    """
    y, x = torch.meshgrid(*(torch.arange(side, dtype=torch.float64) for side in SIZE), indexing="ij")

    def waves(x: Tensor, y: Tensor) -> Tensor:
        parts = ((0.9, 0.2, 0.0), (-0.3, 0.8, 1.0), (0.55, -0.6, 2.0))
        return 0.5 + sum(torch.sin(a * x + b * y + c) for a, b, c in parts) / 8

    pair = torch.stack([waves(x, y), waves(x - shift[0], y - shift[1])]).float()
    matrix = torch.tensor([[100.0, 0, 64], [0, 100, 48], [0, 0, 1]], dtype=torch.float64)
    cameras = Cameras(
        world_to_camera=torch.eye(4, dtype=torch.float64).expand(1, 1, 2, 4, 4),
        intrinsics=matrix.expand(1, 1, 2, 3, 3),
        image_size=SIZE,
    )
    return pair[None, None, :, None].expand(1, 1, 2, 3, *SIZE), cameras, torch.full((1, 1, 2, *SIZE), 3.0)


def looked(images: Tensor | Sequence[Tensor], cameras: Cameras, depth: Tensor) -> CloseMatches:
    """Look for the patches of the first view in the second."""
    mine, theirs = (images[:, :, 0], images[:, :, 1]) if isinstance(images, Tensor) else images[:2]
    return match_closely(mine, theirs, cameras[:, :, 0], cameras[:, :, 1], depth[:, :, 0], PATCH)


@pytest.mark.parametrize("shift", [(0.0, 0.0), (2.0, -1.0), (-0.4, 2.6), (1.3, 0.7)])
def test_a_shift_is_found_to_a_fraction_of_a_pixel(shift: tuple[float, float]) -> None:
    images, cameras, depth = shifted(shift)
    close = looked(images, cameras, depth)
    there = close.found[0, 0] - MIDDLES
    away_from_borders = torch.ones(GRID, dtype=torch.bool)
    away_from_borders[[0, -1]] = away_from_borders[:, [0, -1]] = False
    off = (there - torch.tensor(shift)).abs()[away_from_borders.flatten()]
    assert off.max() < 0.12  # correlation is no parabola, but nearly
    assert (close.sure[0, 0][away_from_borders.flatten()] > 0.75).all()


def test_what_is_further_away_is_not_found() -> None:
    images, cameras, depth = shifted((5.0, 0.0))
    found = looked(images, cameras, depth)
    at_its_place = (found.found[0, 0] - MIDDLES - torch.tensor([5.0, 0])).norm(dim=-1) < 0.5
    assert not (at_its_place & (found.sure[0, 0] > 0)).any()


def test_edges_and_flat_things_tell_nothing() -> None:
    images, cameras, depth = shifted((0.0, 0.0))
    for some in (images[..., :1, :], images[..., :1], images[..., :1, :1]):
        assert not looked(some.expand(images.shape), cameras, depth).sure.any()


def test_what_another_camera_does_not_see_is_not_found() -> None:
    images, cameras, depth = shifted((0.0, 0.0))
    pose = cameras.world_to_camera.clone()
    for turn in (torch.pi, torch.pi / 2):
        pose[:, :, 1] = se3_exp(torch.tensor([0.0, 0, 0, 0, turn, 0], dtype=torch.float64))
        assert not looked(images, replace(cameras, world_to_camera=pose), depth).sure.any()


def test_patches_of_captures_are_found_where_they_truly_are() -> None:
    """Cameras are turned by what moves images by two pixels: what is found is right all the same."""
    truth, true = capture()
    depth = torch.where(truth.depth > 0, truth.depth, 60)
    turn = se3_exp(torch.tensor([0, 0, 0, 0.012, -0.014, 0.02], dtype=torch.float64))
    pose = truth.cameras.world_to_camera.double().clone()
    pose[:, :, 1] = turn @ pose[:, :, 1]
    cameras = replace(truth.cameras, world_to_camera=pose, intrinsics=truth.cameras.intrinsics.double())
    close = looked(truth.images, cameras, depth)
    position, seen = true.position[:, :, 0, 0] * PATCH, true.seen[:, :, 0, 0]
    sure = close.sure > 0
    assert sure.float().mean() > 0.15
    assert seen[sure].float().mean() > 0.8
    off = (close.found - position).norm(dim=-1)[sure & seen]
    assert off.median() < 0.5
    assert (off < 1).float().mean() > 0.75
    # Exposure does not matter, but what is nearly flat becomes flatter.
    darker = [truth.images[:, :, 0], 0.6 * truth.images[:, :, 1] + 0.1, truth.images[:, :, 2]]
    again = looked(darker, cameras, depth)
    both = sure & (again.sure > 0)
    assert both.sum() > 0.9 * sure.sum()
    assert ((close.found - again.found).norm(dim=-1)[both] < 0.2).float().mean() > 0.9


def test_a_few_patches_at_a_time_say_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    images, cameras, depth = shifted((1.0, 2.0))
    whole = looked(images, cameras, depth)
    monkeypatch.setattr("page4d.refinement.guided_matching._AT_ONCE", 7 * 64 * 81)
    parts = looked(images, cameras, depth)
    torch.testing.assert_close(parts, whole)


def test_other_units_and_views_of_other_sizes_change_nothing() -> None:
    truth, _ = capture()
    depth = torch.where(truth.depth > 0, truth.depth, 60)
    cameras = replace(
        truth.cameras,
        world_to_camera=truth.cameras.world_to_camera.double(),
        intrinsics=truth.cameras.intrinsics.double(),
    )
    here = looked(truth.images, cameras, depth)
    pose = cameras.world_to_camera.clone()
    pose[..., :3, 3] *= 50
    there = looked(truth.images, replace(cameras, world_to_camera=pose), 50 * depth)
    assert ((here.found - there.found).norm(dim=-1)[here.sure > 0] < 1e-2).float().mean() > 0.99
    # The next view without its lowest rows: what is above them is found as before.
    lower = [truth.images[:, :, 0], truth.images[:, :, 1, :, :72], truth.images[:, :, 2]]
    cut = looked(lower, cameras, depth)
    above = (here.sure > 0) & (here.found[..., 1] < 60)
    torch.testing.assert_close(cut.found[above], here.found[above], rtol=0, atol=1e-3)


def test_cameras_come_closer_to_the_truth_if_images_are_given() -> None:
    truth, true = capture()
    torch.manual_seed(0)
    pose = se3_exp(0.03 * torch.randn(2, 1, 3, 6).double()) @ truth.cameras.world_to_camera.double()
    noise = 0.05 * torch.randn(true.position.shape)  # some 3 px
    matches = Matches(
        likelihoods=None,
        expected=centered(true.position, GRID) + noise,
        confidence=0.5 * true.seen.float(),
        targets=KINDS,
    )
    output = NetworkOutput(
        world_to_camera=pose,
        intrinsics=truth.cameras.intrinsics.double() * torch.tensor([1.05, 1.05, 1])[:, None],
        depth=torch.where(truth.depth > 0, truth.depth, 60) * torch.linspace(0.9, 1.1, SIZE[1]),
        depth_confidence=torch.full_like(truth.depth, 2.0),
        matches=matches,
    )

    def errors(said: NetworkOutput) -> tuple[float, float]:
        pairs = [
            pair_errors(found.flatten(0, 1).double(), known.flatten(0, 1).double())
            for found, known in zip(said.world_to_camera, truth.cameras.world_to_camera, strict=True)
        ]
        focal = (said.intrinsics / truth.cameras.intrinsics)[..., 0, 0].log().abs().mean()
        return float(torch.cat([pair.rotation_deg for pair in pairs]).mean()), float(focal)

    plain, closer = refine(output, PATCH, 2), refine(output, PATCH, 2, images=truth.images)
    assert errors(closer)[0] < 0.75 * errors(plain)[0]
    assert errors(closer)[1] < 0.9 * errors(plain)[1]


def capture() -> tuple[GroundTruth, Correspondences]:
    """Return an instant of two scenes that three cameras see, and where patches truly are."""
    truth = sample_truth([1, 2], ShotRequest(num_times=1, num_views=3, image_size=SIZE, spacing_deg=(10, 11)))
    return truth, true_correspondences(targets_of(truth), PATCH, KINDS)
