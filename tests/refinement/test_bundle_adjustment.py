"""Bundle adjustment: exact on exact finds, robust to false ones, and never worse than the guess."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from page4d.errors import ShapeError
from page4d.geometry.camera import Cameras, normalize_pixels, project
from page4d.geometry.rigid import camera_centers, invert_rigid, rigid, se3_exp, transform_points
from page4d.geometry.rotation import matrix_from_rotation_vector, rotation_angle
from page4d.refinement.bundle_adjustment import adjust
from page4d.refinement.normal_equations import Beliefs, Bundle, Guess, Sightings

SIZE = (60, 80)
NUM_IMAGES, NUM_PIXELS = 4, 60
OTHERS = torch.tensor([[0, 1, 3], [0, 2, 0], [0, 3, 1], [0, 0, 2]])
ALL = slice(None)
WIDE = Beliefs(rotation_rad=10.0, position=10.0, log_focal=10.0, log_scale=10.0, log_depth=10.0)


def capture(seed: int, batch: int = 2) -> tuple[Cameras, Tensor, Sightings]:
    """Cameras around a cloud of points, true depths of their pixels, and where others see these points."""
    random = torch.Generator().manual_seed(seed)
    angles = torch.linspace(-0.5, 0.5, NUM_IMAGES, dtype=torch.float64)
    turn = matrix_from_rotation_vector(torch.stack([0 * angles, angles, 0.1 * angles], dim=-1))
    pose = rigid(turn, torch.tensor([0.0, 0.1, 4.0]).double().expand(NUM_IMAGES, 3)).expand(batch, -1, -1, -1)
    pose = pose @ invert_rigid(pose[:, :1])
    matrix = torch.tensor([[70.0, 0.5, 41.0], [0.0, 68.0, 29.0], [0.0, 0.0, 1.0]]).double()
    matrices = matrix.expand(batch, NUM_IMAGES, 3, 3)
    pixels = torch.rand(batch, NUM_IMAGES, NUM_PIXELS, 2, generator=random, dtype=torch.float64) * 60
    depth = 3 + 2 * torch.rand(batch, NUM_IMAGES, NUM_PIXELS, generator=random, dtype=torch.float64)
    rays = torch.nn.functional.pad(normalize_pixels(pixels, matrices), (0, 1), value=1.0)
    world = transform_points(invert_rigid(pose), rays * depth[..., None])
    found = torch.stack(
        [
            project(transform_points(pose[:, others], world), matrices[:, others])[0]
            for others in OTHERS.unbind(dim=1)
        ],
        dim=2,
    )
    cameras = Cameras(world_to_camera=pose, intrinsics=matrices, image_size=SIZE)
    weight = torch.ones(batch, NUM_IMAGES, OTHERS.shape[1], NUM_PIXELS)
    return cameras, depth, Sightings(pixels=pixels, images=OTHERS, found=found, weight=weight, sigma_px=0.3)


def without_the_last(sightings: Sightings) -> Sightings:
    """What is left if the last image finds nothing, and nothing is found in it."""
    weight = sightings.weight.clone()
    weight[:, 3], weight[:, OTHERS == 3] = 0, 0
    return replace(sightings, weight=weight)


def disturbed(cameras: Cameras, depth: Tensor, seed: int) -> tuple[Cameras, Tensor]:
    random = torch.Generator().manual_seed(seed)
    twist = torch.randn(*depth.shape[:2], 6, generator=random, dtype=torch.float64)
    twist = twist * torch.tensor([0.3, 0.3, 0.3, 0.12, 0.12, 0.12])
    twist[:, 0] = 0
    focal = (0.05 * torch.randn(depth.shape[:2], generator=random, dtype=torch.float64)).exp()
    matrices = cameras.intrinsics.clone()
    matrices[..., :2, :2] *= focal[..., None, None]
    pose = se3_exp(twist) @ cameras.world_to_camera
    noise = (0.15 * torch.randn(depth.shape, generator=random, dtype=torch.float64)).exp()
    return Cameras(world_to_camera=pose, intrinsics=matrices, image_size=SIZE), depth * noise


def rotation_errors(found: Cameras, true: Cameras) -> Tensor:
    return torch.rad2deg(rotation_angle(found.world_to_camera[..., :3, :3], true.world_to_camera[..., :3, :3]))


def test_slopes_are_those_of_the_residual():
    cameras, depth, sightings = capture(0, batch=1)
    bundle = Bundle(*disturbed(cameras, depth, 1), sightings, Beliefs(alike=0.3))
    guess = bundle.start._replace(
        log_focal=torch.full((1, NUM_IMAGES), 0.1).double(),
        log_scale=torch.full((1, NUM_IMAGES), -0.2).double(),
        shared=0.3 * torch.ones_like(bundle.start.shared),
    )
    slopes = bundle.slopes(guess, ALL)

    def residual(step: Tensor, deeper: Tensor) -> Tensor:
        turn = matrix_from_rotation_vector(step[..., :3])
        return bundle.slopes(
            Guess(
                rotation=turn @ guess.rotation,
                translation=(turn @ guess.translation[..., None])[..., 0] + step[..., 3:6],
                log_focal=guess.log_focal + step[..., 6],
                log_scale=guess.log_scale + step[..., 7],
                log_depth=guess.log_depth + deeper,
                shared=guess.shared,
            ),
            ALL,
        ).residual

    still = torch.full((1, NUM_IMAGES, 8), 1e-13).double(), torch.zeros_like(depth)
    by_camera, by_depth = torch.autograd.functional.jacobian(residual, still)
    by_camera, by_depth = by_camera[..., 0, :, :], by_depth[..., 0, :, :]
    image, pixel = 1, 7
    for place, other in enumerate(OTHERS[image].tolist()):
        found = by_camera[0, image, place, pixel]
        torch.testing.assert_close(slopes.own[0, image, place, pixel], found[:, image], atol=1e-6, rtol=1e-6)
        torch.testing.assert_close(slopes.other[0, image, place, pixel], found[:, other], atol=1e-6, rtol=1e-6)
        assert found[:, [one for one in range(NUM_IMAGES) if one not in (image, other)]].abs().max() == 0
        depths = by_depth[0, image, place, pixel]
        torch.testing.assert_close(slopes.depth[0, image, place, pixel], depths[:, image, pixel])


@pytest.mark.parametrize("seed", range(3))
def test_exact_finds_bring_back_cameras_and_depths(seed):
    true, depth, sightings = capture(seed)
    start, guessed = disturbed(true, depth, seed + 10)
    found = start, guessed
    for _ in range(3):  # wide beliefs hardly hold it back, but a little each time
        adjusted = adjust(*found, sightings, WIDE)
        found = adjusted.cameras, adjusted.depth
    cameras, deep = found
    assert rotation_errors(cameras, true).max() < 1e-3
    scale = (depth / deep).flatten(1).median(dim=1).values[:, None, None]
    torch.testing.assert_close(deep * scale, depth, rtol=1e-3, atol=0)
    torch.testing.assert_close(cameras.intrinsics, true.intrinsics, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(cameras.centers * scale, camera_centers(true.world_to_camera), rtol=0, atol=2e-3)


def test_false_finds_among_noisy_ones_are_left_out():
    true, depth, sightings = capture(5, batch=4)
    random = torch.Generator().manual_seed(6)
    noisy = sightings.found + 0.4 * torch.randn(sightings.found.shape, generator=random, dtype=torch.float64)
    false = torch.rand(noisy.shape[:-1], generator=random) < 0.35
    anywhere = torch.rand(noisy.shape, generator=random, dtype=torch.float64) * torch.tensor([80.0, 60.0])
    sightings = replace(sightings, found=torch.where(false[..., None], anywhere, noisy))
    start, guessed = disturbed(true, depth, 7)
    adjusted = adjust(start, guessed, sightings)
    assert rotation_errors(start, true)[:, 1:].median() > 5
    assert rotation_errors(adjusted.cameras, true)[:, 1:].median() < 1.5
    assert (adjusted.gain > 0.1).all()  # what false finds cost stays


def test_the_first_pose_and_what_is_known_stay():
    true, depth, sightings = capture(2)
    start, guessed = disturbed(true, depth, 3)
    adjusted = adjust(start, guessed, sightings, Beliefs(log_focal=0))
    torch.testing.assert_close(adjusted.cameras.intrinsics, start.intrinsics)
    torch.testing.assert_close(adjusted.cameras.world_to_camera[:, 0], start.world_to_camera[:, 0])
    known = adjust(true, guessed, sightings, Beliefs(rotation_rad=0, position=0, log_focal=0, log_scale=0))
    torch.testing.assert_close(known.cameras.world_to_camera, true.world_to_camera)
    torch.testing.assert_close(known.depth, depth, rtol=0.02, atol=0)


@pytest.mark.parametrize(("alike", "of_one_camera"), [(0.0, 0.0), (0.2, 0.0), (0.0, 0.9)])
def test_steps_end_where_nothing_gets_likelier(monkeypatch, alike, of_one_camera):
    """The slopes of the likelihood vanish there, whatever was eliminated on the way."""
    monkeypatch.setattr("page4d.refinement.normal_equations._DAMPING", 1e-9)
    true, depth, sightings = capture(3)
    deviation = 0.1 + 0.2 * torch.rand(depth.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    beliefs = Beliefs(
        rotation_rad=100,
        position=100,
        log_focal=0.1,
        log_depth=deviation,
        alike=alike,
        of_one_camera=of_one_camera,
        taken_by=torch.tensor([0, 1, 0, 1]),
    )
    bundle = Bundle(*disturbed(true, depth, 4), sightings, beliefs)
    guess = bundle.start
    for _ in range(100):
        guess = bundle.improved(guess, 3.0)

    def cost(step: Tensor, log_depth: Tensor, shared: Tensor) -> Tensor:
        turn = matrix_from_rotation_vector(step[..., :3])
        moved = Guess(
            rotation=turn @ guess.rotation,
            translation=(turn @ guess.translation[..., None])[..., 0] + step[..., 3:6],
            log_focal=guess.log_focal + step[..., 6],
            log_scale=guess.log_scale + step[..., 7],
            log_depth=log_depth,
            shared=shared,
        )
        return bundle.cost(moved, 3.0).sum()

    place = torch.full((*depth.shape[:2], 8), 1e-13).double(), guess.log_depth, guess.shared
    by_camera, by_depth, by_shared = torch.autograd.functional.jacobian(cost, place)
    assert (by_camera * bundle.free).abs().max() < 1e-4
    assert by_depth.abs().max() < 1e-5
    assert (by_shared.shape[-1] > 0) == (alike > 0)
    assert by_shared.abs().sum() < 1e-4


def test_what_is_found_nowhere_follows_what_is_around_it_if_errors_are_alike():
    true, depth, sightings = capture(6)
    wrong = (0.3 * (sightings.pixels[..., 0] / SIZE[1] - 0.5)).exp()  # further to the right than to the left
    found = torch.arange(NUM_PIXELS) % 2 == 0
    half = replace(sightings, weight=sightings.weight * found)
    known = Beliefs(rotation_rad=0, position=0, log_focal=0, log_scale=0, log_depth=0.2)
    alone, together = (
        (adjust(true, depth * wrong, half, replace(known, alike=alike)).depth / depth).log().abs()[..., ~found]
        for alike in (0.0, 0.3)
    )
    torch.testing.assert_close(alone, wrong.log().abs()[..., ~found])
    assert together.median() < 0.4 * alone.median()


def test_an_image_that_is_seen_by_none_follows_the_others_of_its_camera():
    true, depth, sightings = capture(7)
    twist = torch.tensor([0.1, -0.1, 0.1, 0.03, 0.05, -0.04]).double()
    pose, matrices = true.world_to_camera.clone(), true.intrinsics.clone()
    pose[:, 2:] = se3_exp(twist) @ pose[:, 2:]
    matrices[:, 2:, :2, :2] *= 1.06
    wrong = replace(true, world_to_camera=pose, intrinsics=matrices)
    blind = without_the_last(sightings)
    alone, together = (
        adjust(wrong, depth, blind, Beliefs(of_one_camera=0.999, taken_by=taken_by)).cameras
        for taken_by in (None, torch.tensor([0, 1, 2, 2]))
    )
    torch.testing.assert_close(alone.world_to_camera[:, 3], wrong.world_to_camera[:, 3])
    assert rotation_errors(together, true)[:, 2:].max() < 0.3 * rotation_errors(wrong, true)[:, 3].min()
    assert ((together.intrinsics / true.intrinsics)[:, 3, 0, 0] - 1).abs().max() < 0.03


def test_focal_lengths_of_views_that_nobody_sees_follow_the_others_of_their_rig():
    true, depth, sightings = capture(7)
    matrices = true.intrinsics.clone()
    matrices[..., :2, :2] *= 1.06
    wrong = replace(true, intrinsics=matrices)
    blind = without_the_last(sightings)
    alone, together = (
        adjust(wrong, depth, blind, Beliefs(of_one_rig=of_one_rig, taken_by=torch.arange(4)))
        for of_one_rig in (0.0, 0.95)
    )
    torch.testing.assert_close(alone.cameras.intrinsics[:, 3], wrong.intrinsics[:, 3])
    torch.testing.assert_close(together.cameras.world_to_camera[:, 3], wrong.world_to_camera[:, 3])
    focal = (together.cameras.intrinsics / true.intrinsics)[..., 0, 0].log()
    assert (focal[:, :3].mean(dim=1) < 0.03).all()  # it was .058
    torch.testing.assert_close(focal[:, 3], focal[:, :3].mean(dim=1), atol=0.01, rtol=0)


def test_better_finds_lead_on_from_an_earlier_adjustment():
    true, depth, sightings = capture(9, batch=4)
    random = torch.Generator().manual_seed(10)
    rough = sightings.found + 2 * torch.randn(sightings.found.shape, generator=random, dtype=torch.float64)
    false = torch.rand(rough.shape[:-1], generator=random) < 0.2
    better = torch.where(false[..., None], rough, sightings.found)
    start, guessed = disturbed(true, depth, 11)
    first = adjust(start, guessed, replace(sightings, found=rough))
    second = adjust(start, guessed, replace(sightings, found=better), earlier=first)
    wide = adjust(start, guessed, replace(sightings, found=better))
    errors = [rotation_errors(one.cameras, true)[:, 1:] for one in (first, second, wide)]
    assert errors[1].median() < 0.3 * errors[0].median()
    assert errors[1].median() < 1.2 * errors[2].median()
    # What is believed is what was given, wherever the steps begin.
    nothing = replace(sightings, weight=torch.zeros_like(sightings.weight))
    torch.testing.assert_close(adjust(start, guessed, nothing, earlier=first).depth, guessed)


def test_finds_that_say_nothing_change_nothing():
    true, depth, sightings = capture(4)
    nothing = replace(sightings, weight=torch.zeros_like(sightings.weight))
    adjusted = adjust(true, depth, nothing)
    torch.testing.assert_close(adjusted.cameras.world_to_camera, true.world_to_camera)
    torch.testing.assert_close(adjusted.depth, depth)
    assert adjusted.gain.tolist() == [0, 0]


def test_other_units_of_length_give_the_same_adjustment():
    true, depth, sightings = capture(8)
    start, guessed = disturbed(true, depth, 9)
    pose = start.world_to_camera.clone()
    pose[..., :3, 3] *= 1000
    here, there = (
        adjust(start, guessed, sightings),
        adjust(replace(start, world_to_camera=pose), guessed * 1000, sightings),
    )
    torch.testing.assert_close(there.depth / 1000, here.depth)
    torch.testing.assert_close(there.cameras.centers / 1000, here.cameras.centers)


@pytest.mark.parametrize("alike", [0.0, 0.2])
def test_many_finds_are_worked_on_in_parts(monkeypatch, alike):
    true, depth, sightings = capture(1)
    start, guessed = disturbed(true, depth, 2)
    whole = adjust(start, guessed, sightings, Beliefs(alike=alike))
    monkeypatch.setattr("page4d.refinement.normal_equations._AT_ONCE", 200)
    parts = adjust(start, guessed, sightings, Beliefs(alike=alike))
    torch.testing.assert_close(parts.depth, whole.depth)
    torch.testing.assert_close(parts.cameras.world_to_camera, whole.cameras.world_to_camera)


def test_what_is_of_other_images_is_refused():
    true, depth, sightings = capture(0)
    with pytest.raises(ShapeError, match="finds"):
        adjust(true, depth, replace(sightings, found=sightings.found[:, :, :2]))
    with pytest.raises(ShapeError, match="cameras"):
        adjust(true[:, :3], depth, sightings)
