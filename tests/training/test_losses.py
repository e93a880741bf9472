"""Losses: zero for the truth, positive for errors, restricted to known pixels."""

from dataclasses import fields, replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from page4d.errors import UsageError
from page4d.geometry.camera import Cameras, camera_rays
from page4d.geometry.rotation import matrix_from_rotation_vector
from page4d.geometry.transforms import rigid
from page4d.lab.synthetic.capture import SyntheticCapture
from page4d.lab.training.losses import (
    LossConfig,
    SceneUnit,
    Targets,
    bilinear_weights,
    centered,
    confidence_weighted,
    losses,
    mask_loss,
    targets_of,
    true_correspondences,
)
from page4d.networks.config_parts import MatchTarget
from page4d.networks.inputs.known_cameras import patch_directions
from page4d.networks.inputs.matching import Likelihoods, Matches
from page4d.networks.output import NetworkOutput
from page4d.records import GroundTruth
from tests.synthetic.scenes import predictions_of

PATCH = 8
GRID = (6, 8)
KINDS = tuple(MatchTarget)
CONFIG = LossConfig()


@pytest.fixture(scope="module")
def truth() -> GroundTruth:
    capture = SyntheticCapture(seed=3, num_views=3, num_times=2, image_size=(48, 64), spacing_deg=15, fps=3)
    exact = predictions_of(capture)
    return GroundTruth(
        images=exact.images,
        valid=exact.valid,
        depth=exact.depth,
        dynamic=exact.dynamic > 0.5,
        cameras=exact.cameras,
        times=exact.times[None],
    )


@pytest.fixture(scope="module")
def targets(truth: GroundTruth) -> Targets:
    return targets_of(truth)


def perfect(truth: GroundTruth) -> NetworkOutput:
    """Return the output of a network without errors."""
    targets = targets_of(truth)
    true = true_correspondences(targets, PATCH, KINDS)
    rays = patch_directions(targets.cameras.intrinsics, GRID, PATCH).unflatten(-2, GRID)
    moving = functional.avg_pool2d(truth.dynamic.float().flatten(0, 2)[:, None], PATCH)
    return NetworkOutput(
        pose_encoding=targets.pose_encoding,
        pose_encoding_iterations=(targets.pose_encoding,),
        depth=targets.depth,
        depth_confidence=torch.ones_like(targets.depth),
        points=targets.points,
        points_confidence=torch.ones_like(targets.depth),
        rays=rays.float(),
        dynamic_logit=torch.logit(moving.reshape(*targets.depth.shape[:3], *GRID), eps=1e-6),
        motion_logit=torch.where(truth.dynamic, 20.0, -20.0),
        matches=Matches(
            likelihoods=Likelihoods(
                cell=(bilinear_weights(2 * true.position, (2 * GRID[0], 2 * GRID[1])) + 1e-12).log(),
                unseen=(true.hidden + 1e-12).log(),
            ),
            expected=centered(true.position, GRID),
            confidence=true.seen.float(),
            targets=KINDS,
        ),
    )


def test_losses_of_the_truth_are_zero(truth: GroundTruth) -> None:
    parts = losses(perfect(truth), truth, CONFIG)
    assert set(parts) == {field.name for field in fields(LossConfig)} - {
        "refinement",
        "confidence",
        "moving_weight",
        "unit",
    } | {"total"}
    for name, value in parts.items():
        if name not in ("match_probability", "mask", "total"):  # entropy of positions between patches and of edges
            assert value.abs() < 1e-5, name


ERRORS = {
    "rotation": lambda output: turned(output, 0.1),
    "translation": lambda output: posed(output, slice(0, 3), 0.1),
    "focal": lambda output: posed(output, slice(7, 9), 0.1),
    "depth": lambda output: replace(output, depth=output.depth * 1.2),
    "gradient": lambda output: replace(output, depth=output.depth * torch.linspace(1, 1.5, 64)),
    "points": lambda output: replace(output, points=output.points + 0.1),
    "rays": lambda output: replace(
        output, rays=functional.normalize(output.rays + torch.tensor([0.1, 0, 0]), dim=-1)
    ),
    "match_probability": lambda output: likely(output, cell=output.matches.likelihoods.cell.roll(1, dims=-1)),
    "match_position": lambda output: matched(output, expected=output.matches.expected + 0.1),
    "reprojection": lambda output: replace(output, depth=output.depth * 1.2),
    "mask": lambda output: replace(output, dynamic_logit=output.dynamic_logit + 2),
    "motion": lambda output: replace(output, motion_logit=output.motion_logit * 0.1),
}


def turned(output: NetworkOutput, angle: float) -> NetworkOutput:
    quaternion = functional.normalize(output.pose_encoding[..., 3:7] + angle * torch.tensor([1.0, 0, 0, 0]), dim=-1)
    return posed(output, slice(3, 7), quaternion - output.pose_encoding[..., 3:7])


def posed(output: NetworkOutput, where: slice, change: Tensor | float) -> NetworkOutput:
    pose = output.pose_encoding.clone()
    pose[..., where] += change
    return replace(output, pose_encoding=pose, pose_encoding_iterations=(pose,))


def matched(output: NetworkOutput, **change: Tensor) -> NetworkOutput:
    return replace(output, matches=replace(output.matches, **change))


def likely(output: NetworkOutput, **change: Tensor) -> NetworkOutput:
    return matched(output, likelihoods=replace(output.matches.likelihoods, **change))


def test_matches_of_hidden_patches_increase_the_loss(truth: GroundTruth) -> None:
    right = perfect(truth)
    before = losses(right, truth, CONFIG)["match_probability"]
    everywhere = likely(right, unseen=torch.full_like(right.matches.likelihoods.unseen, -3.0))
    assert losses(everywhere, truth, CONFIG)["match_probability"] > before + 0.1


@pytest.mark.parametrize("name", list(ERRORS))
def test_every_error_increases_its_loss(name: str, truth: GroundTruth) -> None:
    right = perfect(truth)
    before, after = losses(right, truth, CONFIG)[name], losses(ERRORS[name](right), truth, CONFIG)[name]
    assert after > before + 1e-3


def test_the_total_is_the_weighted_sum(truth: GroundTruth) -> None:
    parts = losses(ERRORS["depth"](perfect(truth)), truth, CONFIG)
    expected = sum(getattr(CONFIG, name) * value for name, value in parts.items() if name != "total")
    torch.testing.assert_close(parts["total"], expected)


def test_the_sign_of_a_quaternion_is_ignored(truth: GroundTruth) -> None:
    right = perfect(truth)
    pose = right.pose_encoding.clone()
    pose[..., 3:7] *= -1
    assert losses(replace(right, pose_encoding_iterations=(pose,)), truth, CONFIG)["rotation"] < 1e-6


def test_later_iterations_of_the_camera_head_have_larger_weights(truth: GroundTruth) -> None:
    right = perfect(truth)
    wrong = posed(right, slice(0, 3), 0.5).pose_encoding
    early, late = (
        losses(replace(right, pose_encoding_iterations=order), truth, CONFIG)["translation"]
        for order in ((wrong, right.pose_encoding), (right.pose_encoding, wrong))
    )
    torch.testing.assert_close(early, late * CONFIG.refinement)


def test_unknown_pixels_are_ignored(truth: GroundTruth) -> None:
    right = perfect(truth)
    hole = torch.zeros_like(truth.valid)
    hole[..., 10:20, 30:40] = True
    holed = replace(truth, depth=truth.depth.masked_fill(hole, 0))
    seen = perfect(holed)
    corrupted = replace(
        seen,
        depth=seen.depth.masked_fill(hole, 7.0),
        points=seen.points.masked_fill(hole[..., None], 7.0),
        depth_confidence=right.depth_confidence.masked_fill(hole, 50.0),
        points_confidence=right.points_confidence.masked_fill(hole, 50.0),
    )
    parts = losses(corrupted, holed, CONFIG)
    assert parts["depth"].abs() < 1e-5
    assert parts["points"].abs() < 1e-5
    assert parts["gradient"].abs() < 1e-5


def test_targets_are_invariant_to_the_world_and_unit_of_the_truth(truth: GroundTruth, targets: Targets) -> None:
    move = rigid(
        matrix_from_rotation_vector(torch.tensor([0.3, 1.0, -0.4], dtype=torch.float64)),
        torch.tensor([4.0, -1.0, 2.0], dtype=torch.float64),
    )
    poses = truth.cameras.world_to_camera.double() @ move
    poses[..., :3, 3] *= 30
    other = targets_of(replace(truth, depth=truth.depth * 30, cameras=replace(truth.cameras, world_to_camera=poses)))
    for name in ("pose_encoding", "depth", "points"):
        torch.testing.assert_close(getattr(other, name), getattr(targets, name), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(targets.points.norm(dim=-1)[targets.known].mean(), torch.tensor(1.0))


def test_the_typical_depth_is_robust_to_distant_ground(truth: GroundTruth) -> None:
    near = targets_of(truth, SceneUnit.TYPICAL_DEPTH)
    torch.testing.assert_close(near.depth[near.known].log().mean(), torch.tensor(0.0), rtol=0, atol=1e-5)
    depth = truth.depth.clone()
    depth[..., :2, :] = 1000.0  # a twenty-fourth of every image
    far = replace(truth, depth=depth)
    assert targets_of(far, SceneUnit.TYPICAL_DEPTH).unit < 1.4 * near.unit
    assert targets_of(far).unit > 5 * targets_of(truth).unit
    known = torch.zeros_like(truth.valid)
    assert targets_of(replace(truth, valid=known), SceneUnit.TYPICAL_DEPTH).unit == 1


def test_points_reproject_to_their_pixels(truth: GroundTruth, targets: Targets) -> None:
    rays = camera_rays(targets.cameras.intrinsics, (48, 64))
    local = targets.points[..., None, :] @ targets.cameras.world_to_camera[..., None, None, :3, :3].float().mT
    local = local[..., 0, :] + targets.cameras.world_to_camera[..., None, None, :3, 3].float()
    torch.testing.assert_close(local / targets.depth[..., None], rays.float(), rtol=0, atol=1e-4)
    assert truth.depth.min() > 0


def test_a_patch_corresponds_to_itself_in_the_same_image(targets: Targets) -> None:
    true = true_correspondences(targets, PATCH, (MatchTarget.FIRST_VIEW, MatchTarget.FIRST_TIME))
    rows, columns = torch.meshgrid(torch.arange(GRID[0]), torch.arange(GRID[1]), indexing="ij")
    middles = torch.stack([columns, rows], dim=-1).flatten(0, 1) + 0.5
    torch.testing.assert_close(true.position[0, :, 0, 0], middles.expand(2, -1, 2), rtol=0, atol=1e-3)
    assert true.seen[0, :, 0, 0].all()
    assert true.seen[0, 0, :, 1].float().mean() > 0.6


def test_moving_patches_have_no_correspondence_in_time(targets: Targets) -> None:
    true = true_correspondences(targets, PATCH, (MatchTarget.NEXT_VIEW, MatchTarget.NEXT_TIME))
    moving = targets.dynamic[..., PATCH // 2 :: PATCH, PATCH // 2 :: PATCH].flatten(3)
    assert moving.any()
    assert not true.seen[:, :, :, 1][moving].any()
    assert true.seen[:, :, :, 0][moving].any()


def test_occluded_points_are_hidden() -> None:
    """A wall at depth 2, occluded in the second camera by a screen at depth 1."""
    depth = torch.full((1, 1, 2, 16, 16), 2.0)
    depth[:, :, 1] = 1.0
    intrinsics = torch.tensor([[16.0, 0, 8], [0, 16, 8], [0, 0, 1]]).expand(1, 1, 2, 3, 3)
    cameras = Cameras(world_to_camera=torch.eye(4).expand(1, 1, 2, 4, 4), intrinsics=intrinsics, image_size=(16, 16))
    truth = GroundTruth(
        images=torch.zeros(1, 1, 2, 3, 16, 16),
        valid=torch.ones(1, 1, 2, 16, 16, dtype=torch.bool),
        depth=depth,
        dynamic=None,
        cameras=cameras,
        times=torch.zeros(1, 1),
    )
    true = true_correspondences(targets_of(truth), 8, (MatchTarget.NEXT_VIEW, MatchTarget.NEXT_TIME))
    assert not true.seen[:, :, 0, 0].any()
    assert true.hidden[:, :, 0, 0].all()
    assert true.seen[:, :, :, 1].all()
    assert not true.hidden[:, :, :, 1].any()


def test_bilinear_weights_interpolate_the_position() -> None:
    torch.manual_seed(0)
    position = 0.5 + torch.rand(50, 2) * torch.tensor([7.0, 5.0])
    weights = bilinear_weights(position, GRID)
    rows, columns = torch.meshgrid(torch.arange(6.0), torch.arange(8.0), indexing="ij")
    middles = torch.stack([columns, rows], dim=-1).flatten(0, 1) + 0.5
    torch.testing.assert_close(weights @ middles, position)
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(50))


def test_the_optimal_confidence_is_the_reward_over_the_error() -> None:
    error = torch.tensor([0.05, 0.1])
    raw = torch.zeros(2, requires_grad=True)
    descent = torch.optim.Adam([raw], lr=0.05)
    for _ in range(400):
        descent.zero_grad()
        confidence_weighted(error, 1 + raw.exp(), torch.ones(2, dtype=torch.bool), 0.2).backward()
        descent.step()
    torch.testing.assert_close(1 + raw.exp().detach(), 0.2 / error, rtol=0.02, atol=0)


def test_the_mask_loss_falls_with_the_overlap() -> None:
    dynamic = torch.zeros(1, 2, 1, 32, 32, dtype=torch.bool)
    dynamic[..., 8:24, 8:16] = True
    valid = torch.ones_like(dynamic)
    share = functional.avg_pool2d(dynamic.float().flatten(0, 2)[:, None], 8).reshape(1, 2, 1, 4, 4)
    logits = [8 * (2 * moving - 1) for moving in (share, share.roll(1, dims=-1), 1 - share)]
    costs = [mask_loss(logit, dynamic, valid, 3.0) for logit in logits]
    assert costs[0] < 0.01 < costs[1] < costs[2]
    nothing = mask_loss(torch.full_like(share, -8.0), torch.zeros_like(dynamic), valid, 3.0)
    assert nothing < 0.01


def test_every_prediction_has_a_gradient(truth: GroundTruth) -> None:
    right = perfect(truth)
    torch.manual_seed(0)
    outputs = {
        name: (value + 0.05 * torch.rand_like(value)).requires_grad_()
        for name, value in vars(right).items()
        if isinstance(value, Tensor)
    }
    matches = replace(
        right.matches,
        likelihoods=Likelihoods(
            cell=functional.log_softmax(right.matches.likelihoods.cell, dim=-1).detach().requires_grad_(),
            unseen=right.matches.likelihoods.unseen.clamp(min=-5).detach().requires_grad_(),
        ),
        expected=(right.matches.expected + 0.05).requires_grad_(),
    )
    output = replace(right, **outputs, matches=matches, pose_encoding_iterations=(outputs["pose_encoding"],))
    losses(output, truth, CONFIG)["total"].backward()
    of_matches = {
        "cells": matches.likelihoods.cell,
        "unseen": matches.likelihoods.unseen,
        "expected": matches.expected,
    }
    for name, value in (outputs | of_matches).items():
        assert value.grad is not None, name
        assert value.grad.isfinite().all(), name
        assert value.grad.any(), name


@pytest.mark.parametrize("change", [{"depth": -1.0}, {"refinement": 1.5}])
def test_weights_out_of_range_are_refused(change: dict) -> None:
    with pytest.raises(UsageError) as caught:
        LossConfig(**change)
    assert caught.value.hint
