"""Guided matching: sub-pixel positions of textured patches, and no match for flat, occluded or distant ones."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import Tensor

from page4d.evaluation.cameras import pair_errors
from page4d.geometry.camera import Cameras
from page4d.lab.synthetic.capture import SceneRequest, sample_truth
from page4d.networks.config_parts import MatchTarget
from page4d.networks.inputs.matching import patch_centers, to_pixels
from page4d.networks.output import NetworkOutput
from page4d.records import GroundTruth
from page4d.stereo.correspondences import GuidedMatches, _peak, match_guided
from tests.geometry.geometry_samples import se3_exp
from tests.stereo.synthetic_rigs import PATCH, filled_depth, refined, true_cameras, true_matches, true_patch_positions

SIZE, GRID = (96, 128), (12, 16)
CENTERS = to_pixels(patch_centers(GRID), GRID, PATCH)
TARGETS = (MatchTarget.NEXT_VIEW, MatchTarget.PREVIOUS_VIEW)


@pytest.fixture(scope="module")
def truth() -> GroundTruth:
    """One instant of two scenes with three cameras."""
    return sample_truth([1, 2], SceneRequest(num_times=1, num_views=3, image_size=SIZE, spacing_deg=(10, 11)))


def shifted(shift: tuple[float, float]) -> tuple[Tensor, Cameras, Tensor]:
    """Return two images [1, 1, 2] of waves, the second shifted by (x, y) px, with equal cameras.

    Waves are shorter than patches and of several directions, so that correlation has a distinct peak.
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


def matched(images: Tensor | Sequence[Tensor], cameras: Cameras, depth: Tensor) -> GuidedMatches:
    """Match the patches of the first view in the second."""
    source, target = (images[:, :, 0], images[:, :, 1]) if isinstance(images, Tensor) else images[:2]
    return match_guided(source, target, cameras[:, :, 0], cameras[:, :, 1], depth[:, :, 0], PATCH)


@pytest.mark.parametrize("shift", [(0.0, 0.0), (2.0, -1.0), (-0.4, 2.6), (1.3, 0.7)])
def test_shifts_are_found_to_a_fraction_of_a_pixel(shift: tuple[float, float]) -> None:
    matches = matched(*shifted(shift))
    inner = torch.ones(GRID, dtype=torch.bool)
    inner[[0, -1]] = inner[:, [0, -1]] = False
    error_px = (matches.positions[0, 0] - CENTERS - torch.tensor(shift)).abs()[inner.flatten()]
    assert error_px.max() < 0.12  # correlation is only approximately quadratic
    assert (matches.score[0, 0][inner.flatten()] > 0.75).all()


def test_shifts_beyond_the_search_radius_are_not_found() -> None:
    matches = matched(*shifted((5.0, 0.0)))
    is_correct = (matches.positions[0, 0] - CENTERS - torch.tensor([5.0, 0])).norm(dim=-1) < 0.5
    assert not (is_correct & (matches.score[0, 0] > 0)).any()


def test_a_peak_at_the_border_of_the_search_is_no_match() -> None:
    steps = torch.arange(5.0)
    for row, column in product(range(5), repeat=2):
        correlation = 1 - 0.1 * ((steps[:, None] - row) ** 2 + (steps - column) ** 2)
        score = float(_peak(correlation[None, None])[2])
        assert (score > 0) == (0 < row < 4 and 0 < column < 4), (row, column)


def test_windows_with_a_margin_match_patches_with_little_texture_of_their_own() -> None:
    """Waves are blanked in every second patch; the pixels around such a patch have texture."""
    images, cameras, depth = shifted((1.3, -0.6))
    blank = ((torch.arange(SIZE[0])[:, None] // PATCH + torch.arange(SIZE[1]) // PATCH) % 2).bool()
    moved = blank.roll((-1, 1), dims=(0, 1))
    images = torch.where(torch.stack([blank, moved])[:, None], torch.tensor(0.5), images)
    source, target = images[:, :, 0], images[:, :, 1]
    inner = torch.zeros(GRID, dtype=torch.bool)
    inner[1:-1, 1:-1] = blank[::PATCH, ::PATCH][1:-1, 1:-1]
    alone, wide = (
        match_guided(source, target, cameras[:, :, 0], cameras[:, :, 1], depth[:, :, 0], PATCH, margin).score[0, 0]
        for margin in (0, 4)
    )
    assert (alone[inner.flatten()] > 0).float().mean() < 0.1
    assert (wide[inner.flatten()] > 0).float().mean() > 0.9


def test_edges_and_flat_patches_are_not_matched() -> None:
    images, cameras, depth = shifted((0.0, 0.0))
    for some in (images[..., :1, :], images[..., :1], images[..., :1, :1]):
        assert not matched(some.expand(images.shape), cameras, depth).score.any()


def test_patches_outside_the_target_image_are_not_matched() -> None:
    images, cameras, depth = shifted((0.0, 0.0))
    pose = cameras.world_to_camera.clone()
    for angle in (torch.pi, torch.pi / 2):
        pose[:, :, 1] = se3_exp(torch.tensor([0.0, 0, 0, 0, angle, 0], dtype=torch.float64))
        assert not matched(images, replace(cameras, world_to_camera=pose), depth).score.any()


def test_patches_of_rendered_scenes_are_found_at_their_true_positions(truth: GroundTruth) -> None:
    """The target cameras are rotated by about two pixels, which the search corrects."""
    depth, cameras = filled_depth(truth), true_cameras(truth)
    turn = se3_exp(torch.tensor([0, 0, 0, 0.012, -0.014, 0.02], dtype=torch.float64))
    pose = cameras.world_to_camera.clone()
    pose[:, :, 1] = turn @ pose[:, :, 1]
    cameras = replace(cameras, world_to_camera=pose)
    matches = matched(truth.images, cameras, depth)
    true = true_patch_positions(truth, TARGETS)
    position, seen = true.position[:, :, 0, 0] * PATCH, true.seen[:, :, 0, 0]
    found = matches.score > 0
    assert found.float().mean() > 0.15
    assert seen[found].float().mean() > 0.8
    error_px = (matches.positions - position).norm(dim=-1)[found & seen]
    assert error_px.median() < 0.5
    assert (error_px < 1).float().mean() > 0.75
    # NCC is invariant to exposure, except where low contrast falls below the minimum variance.
    darker = [truth.images[:, :, 0], 0.6 * truth.images[:, :, 1] + 0.1, truth.images[:, :, 2]]
    again = matched(darker, cameras, depth)
    both = found & (again.score > 0)
    assert both.sum() > 0.9 * found.sum()
    assert ((matches.positions - again.positions).norm(dim=-1)[both] < 0.2).float().mean() > 0.9


def test_results_are_independent_of_the_chunk_size(monkeypatch: pytest.MonkeyPatch) -> None:
    images, cameras, depth = shifted((1.0, 2.0))
    whole = matched(images, cameras, depth)
    monkeypatch.setattr("page4d.stereo.correspondences._MAX_SAMPLES", 7 * 64 * 25)
    torch.testing.assert_close(matched(images, cameras, depth), whole)


def test_matches_are_independent_of_the_unit_and_of_the_size_of_the_target(truth: GroundTruth) -> None:
    depth, cameras = filled_depth(truth), true_cameras(truth)
    matches = matched(truth.images, cameras, depth)
    pose = cameras.world_to_camera.clone()
    pose[..., :3, 3] *= 50
    scaled = matched(truth.images, replace(cameras, world_to_camera=pose), 50 * depth)
    apart_px = (matches.positions - scaled.positions).norm(dim=-1)
    assert (apart_px[matches.score > 0] < 1e-2).float().mean() > 0.99
    # The target without its lowest rows.
    lower = [truth.images[:, :, 0], truth.images[:, :, 1, :, :72], truth.images[:, :, 2]]
    cut = matched(lower, cameras, depth)
    above = (matches.score > 0) & (matches.positions[..., 1] < 60)
    torch.testing.assert_close(cut.positions[above], matches.positions[above], rtol=0, atol=5e-3)


def test_refined_cameras_are_more_accurate_with_images(truth: GroundTruth) -> None:
    torch.manual_seed(0)
    pose = se3_exp(0.03 * torch.randn(2, 1, 3, 6).double()) @ truth.cameras.world_to_camera.double()
    matches = true_matches(truth, TARGETS)
    noise = 0.05 * torch.randn(matches.expected.shape)  # about 3 px
    matches = replace(matches, expected=matches.expected + noise, confidence=0.5 * matches.confidence)
    output = NetworkOutput(
        world_to_camera=pose,
        intrinsics=truth.cameras.intrinsics.double() * torch.tensor([1.05, 1.05, 1])[:, None],
        depth=filled_depth(truth) * torch.linspace(0.9, 1.1, SIZE[1]),
        depth_confidence=torch.full_like(truth.depth, 2.0),
        matches=matches,
    )

    def errors(found: NetworkOutput) -> tuple[float, float]:
        pairs = [
            pair_errors(own.flatten(0, 1).double(), true.flatten(0, 1).double())
            for own, true in zip(found.world_to_camera, truth.cameras.world_to_camera, strict=True)
        ]
        focal = (found.intrinsics / truth.cameras.intrinsics)[..., 0, 0].log().abs().mean()
        return float(torch.cat([pair.rotation_deg for pair in pairs]).mean()), float(focal)

    without, with_images = errors(refined(output)), errors(refined(output, images=truth.images))
    assert with_images[0] < 0.75 * without[0]
    assert with_images[1] < 0.9 * without[1]
