"""Explicit inputs (matches, rays, triangulation): correct geometry, gradients, and no effect at initialisation."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from page4d.errors import UsageError
from page4d.geometry.camera import Cameras, camera_rays, project
from page4d.geometry.rotation import matrix_from_rotation_vector
from page4d.geometry.transforms import rigid, transform_points
from page4d.networks.conditioning import Conditioning, Grid, SizeGroups
from page4d.networks.config_parts import MatchConfig, MatchTarget
from page4d.networks.inputs.known_cameras import patch_directions, plucker_lines, relative_cameras
from page4d.networks.inputs.matching import (
    Matches,
    PatchMatching,
    intersect_rays,
    match_likelihoods,
    patch_centers,
    target_images,
)
from page4d.networks.network import ViewTimeNetwork, build_network
from tests.networks.small_networks import EXPLICIT_INPUTS as CONFIG
from tests.networks.small_networks import fill_zeros

SHAPE = (2, 3, 2)
SIZE = (16, 24)
GRID = (2, 3)


@pytest.fixture
def network() -> ViewTimeNetwork:
    torch.manual_seed(0)
    return build_network(CONFIG).double()


@pytest.fixture
def images() -> Tensor:
    return torch.rand(*SHAPE, 3, *SIZE, dtype=torch.float64)


@pytest.fixture
def cameras() -> Cameras:
    torch.manual_seed(1)
    rotation = matrix_from_rotation_vector(0.3 * torch.randn(*SHAPE, 3, dtype=torch.float64))
    intrinsics = torch.tensor([[20.0, 0, 12], [0, 21, 8], [0, 0, 1]], dtype=torch.float64).expand(*SHAPE, 3, 3)
    return Cameras(
        world_to_camera=rigid(rotation, torch.randn(*SHAPE, 3, dtype=torch.float64)),
        intrinsics=intrinsics,
        image_size=SIZE,
    )


def conditioning_of(cameras: Cameras) -> Conditioning:
    return Conditioning(world_to_camera=cameras.world_to_camera, intrinsics=cameras.intrinsics)


def test_inputs_have_no_effect_at_initialisation(network: ViewTimeNetwork, images: Tensor, cameras: Cameras) -> None:
    bare = build_network(replace(CONFIG, matches=None, known_cameras=False)).double()
    own = network.state_dict()
    bare.load_state_dict({name: own[name] for name in bare.state_dict()})
    with_inputs, without = network(images, conditioning=conditioning_of(cameras)), bare(images)
    for name in ("pose_encoding", "depth", "points", "dynamic"):
        torch.testing.assert_close(getattr(with_inputs, name), getattr(without, name), rtol=0, atol=1e-12)
    assert without.matches is None


def test_known_cameras_change_the_outputs(network: ViewTimeNetwork, images: Tensor, cameras: Cameras) -> None:
    fill_zeros(network)
    results = [
        network(images, conditioning=conditioning)
        for conditioning in (Conditioning(), Conditioning(intrinsics=cameras.intrinsics), conditioning_of(cameras))
    ]
    for name in ("pose_encoding", "depth", "points", "rays"):
        values = [getattr(result, name) for result in results]
        assert (values[0] - values[1]).abs().max() > 1e-6
        assert (values[1] - values[2]).abs().max() > 1e-6


def test_predictions_are_independent_of_the_world_and_unit_of_known_cameras(
    network: ViewTimeNetwork, images: Tensor, cameras: Cameras
) -> None:
    move = rigid(
        matrix_from_rotation_vector(torch.tensor([0.4, -1.1, 0.2], dtype=torch.float64)),
        torch.tensor([3.0, -2.0, 5.0], dtype=torch.float64),
    )
    moved = cameras.world_to_camera @ move
    moved[..., :3, 3] *= 40
    one = fill_zeros(network)(images, conditioning=conditioning_of(cameras))
    other = network(images, conditioning=conditioning_of(replace(cameras, world_to_camera=moved)))
    for name in ("pose_encoding", "depth", "points"):
        torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=0, atol=1e-9)


def test_a_single_known_camera_gives_finite_predictions_and_gradients(
    network: ViewTimeNetwork, images: Tensor, cameras: Cameras
) -> None:
    pose = cameras.world_to_camera[:, :1, :1].expand(-1, 3, 1, -1, -1)
    conditioning = Conditioning(world_to_camera=pose, intrinsics=cameras.intrinsics[:, :, :1])
    out = fill_zeros(network)(images[:, :, :1], conditioning=conditioning)
    out.depth.mean().backward()
    assert out.depth.isfinite().all()
    assert all(value.grad.isfinite().all() for value in network.parameters() if value.grad is not None)


def test_the_same_weights_run_for_other_sizes_and_numbers_of_views(network: ViewTimeNetwork) -> None:
    out = network(torch.rand(1, 1, 4, 3, 32, 8).double())
    assert out.depth.shape == (1, 1, 4, 32, 8)
    assert out.rays.shape == (1, 1, 4, 4, 1, 3)
    torch.testing.assert_close(out.rays.norm(dim=-1), torch.ones(1, 1, 4, 4, 1).double())


def test_target_images_by_name() -> None:
    times, views = torch.meshgrid(torch.arange(3), torch.arange(4), indexing="ij")
    expected = {
        MatchTarget.FIRST_VIEW: (times, 0 * views),
        MatchTarget.NEXT_VIEW: (times, torch.tensor([1, 2, 3, 0]).expand(3, 4)),
        MatchTarget.PREVIOUS_VIEW: (times, torch.tensor([3, 0, 1, 2]).expand(3, 4)),
        MatchTarget.FIRST_TIME: (0 * times, views),
        MatchTarget.NEXT_TIME: (torch.tensor([1, 2, 0])[:, None].expand(3, 4), views),
    }
    for target in MatchTarget:
        found = target_images(target, 3, 4)
        assert all(torch.equal(one, other) for one, other in zip(found, expected[target], strict=True))


def with_identity_descriptors(matching: PatchMatching) -> PatchMatching:
    """Make tokens their own descriptors, equal in all cells and with high sharpness."""
    with torch.no_grad():
        described = matching.descriptors
        described.unfold.weight.copy_(torch.eye(32).repeat(described.finer**2, 1))
        described.unfold.bias.fill_(4)  # where the activation is linear
        described.mix.weight.zero_()
        described.mix.weight[:, :, 1, 1] = torch.eye(32)
        described.mix.bias.fill_(-4)
        described.join.weight.copy_(torch.eye(32).repeat(1, described.finer**2) / described.finer**2)
        matching.log_sharpness.fill_(6)
    return matching


def matched(matching: PatchMatching, patches: Tensor, grid: Grid) -> Matches:
    """Return the matches of views of one size."""
    _, matches = matching([patches], SizeGroups.of([grid] * patches.shape[2]), [None])
    return matches[0]


@pytest.mark.parametrize("finer", [1, 2])
def test_shifted_patches_are_matched_at_their_new_positions(finer: int) -> None:
    torch.manual_seed(0)
    grid = (4, 6)
    config = MatchConfig(dim=32, finer=finer, targets=(MatchTarget.NEXT_VIEW,))
    matching = with_identity_descriptors(PatchMatching(config, 32, 8).double())
    maps = torch.randn(1, 1, 1, *grid, 32).double() / 4
    patches = torch.cat([maps, maps.roll(2, dims=4)], dim=2).flatten(3, 4)
    matches = matched(matching, patches, grid)
    likelihoods = matches.likelihoods
    total = likelihoods.cell.exp().sum(dim=-1) + likelihoods.unseen.exp()
    torch.testing.assert_close(total, torch.ones(1, 1, 2, 1, 24).double())
    assert (matches.confidence > 0.99).all()
    own = patch_centers(grid).double().unflatten(0, grid)
    found = matches.expected[0, 0, 0, 0].unflatten(0, grid)
    torch.testing.assert_close(found, own.roll(-2, dims=1), rtol=0, atol=1e-2)
    with torch.no_grad():
        without_grad = matched(matching, patches, grid)
    assert without_grad.likelihoods is None
    torch.testing.assert_close(without_grad.expected, matches.expected)


def test_dissimilar_patches_are_not_visible() -> None:
    torch.manual_seed(0)
    grid = (4, 6)
    matching = with_identity_descriptors(
        PatchMatching(MatchConfig(dim=32, targets=(MatchTarget.NEXT_VIEW,)), 32, 8).double()
    )
    patches = torch.cat([torch.randn(1, 1, 1, 24, 16).double(), torch.zeros(1, 1, 1, 24, 16).double()], dim=-1)
    others = patches.roll(16, dims=-1)
    matches = matched(matching, torch.cat([patches, others], dim=2), grid)
    assert (matches.confidence < 0.01).all()


def test_matches_are_independent_of_the_chunk_size(monkeypatch: pytest.MonkeyPatch, images: Tensor) -> None:
    network = build_network(CONFIG).double()
    with torch.no_grad():
        whole = network(images).matches
        monkeypatch.setattr("page4d.networks.inputs.matching._MAX_PAIRS", 100)
        parts = network(images).matches
    torch.testing.assert_close(parts.expected, whole.expected)
    torch.testing.assert_close(parts.confidence, whole.confidence)


def test_match_features_reproduce_the_likelihoods(images: Tensor) -> None:
    network = build_network(CONFIG).double()
    learned = network(images).matches
    assert learned.features is None
    with torch.no_grad():
        kept = network(images).matches.features
    for index, target in enumerate(learned.targets):
        times, views = target_images(target, *images.shape[1:3])
        again = match_likelihoods(kept.patches, kept.cells[:, times, views], kept.unseen)
        torch.testing.assert_close(again.cell, learned.likelihoods.cell[:, :, :, index])
        torch.testing.assert_close(again.unseen, learned.likelihoods.unseen[:, :, :, index])


def test_find_matches_equals_the_matches_of_the_forward_pass(network: ViewTimeNetwork, images: Tensor) -> None:
    torch.testing.assert_close(network.find_matches(images).matches.expected, network(images).matches.expected)
    with pytest.raises(UsageError, match="no matching"):
        build_network(replace(CONFIG, matches=None, known_cameras=False)).find_matches(images)


def test_pluecker_moments_match_points_on_the_rays(cameras: Cameras) -> None:
    directions = patch_directions(cameras.intrinsics, GRID, 8)
    relative = relative_cameras(cameras.world_to_camera)
    lines = plucker_lines(directions, relative)
    to_world = torch.linalg.inv(relative)
    point = transform_points(to_world, 3.7 * directions)
    torch.testing.assert_close(torch.linalg.cross(point, lines[..., :3]), lines[..., 3:], rtol=0, atol=1e-12)
    torch.testing.assert_close(relative[:, 0, 0], torch.eye(4).double().expand(2, 4, 4))
    pixels, _ = project(directions, cameras.intrinsics)
    assert camera_rays(cameras.intrinsics, (16, 24)).shape == (*SHAPE, 16, 24, 3)
    torch.testing.assert_close(pixels[0, 0, 0, 0], torch.tensor([4.0, 4.0]).double())


def test_rays_intersect_at_their_common_point() -> None:
    torch.manual_seed(0)
    points, origin, other = (torch.randn(5, 7, 3, dtype=torch.float64) for _ in range(3))
    origin, other = origin[:, :1], other[:, :1]
    directions = [(points - start) / (points - start).norm(dim=-1, keepdim=True) for start in (origin, other)]
    nearness, sine, miss = intersect_rays(*directions, origin - other).unbind(-1)
    torch.testing.assert_close(1 / nearness.tan(), (points - origin).norm(dim=-1), rtol=1e-6, atol=0)
    torch.testing.assert_close(sine, torch.linalg.cross(*directions).norm(dim=-1), rtol=1e-6, atol=1e-9)
    assert miss.abs().max() < 1e-12
    skew = intersect_rays(directions[0], directions[1].roll(1, dims=1), origin - other)
    assert (skew[..., 2].abs() > 1e-3).any()
    assert intersect_rays(directions[0], directions[0], 0 * origin).isfinite().all()
