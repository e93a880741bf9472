"""Depth Anything 3: symmetries of its inputs, the reference view, batches, memory limits, precision, gradients."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from page4d.geometry.camera import decode_pose
from page4d.geometry.rotation import matrix_from_rotation_vector
from page4d.geometry.transforms import camera_centers, invert_rigid, rigid
from page4d.networks.conditioning import Conditioning, SizeGroups
from page4d.networks.config_parts import ReferenceView
from page4d.networks.heads.camera import CameraMLP
from page4d.networks.inputs.known_cameras import scale_cameras
from page4d.networks.layers.execution import ForwardLimits
from page4d.networks.network import ViewTimeNetwork
from page4d.networks.output import NetworkOutput
from page4d.networks.tokens import saddle_scores, select_reference
from tests.networks.small_networks import SMALL_DA3, randomized_network
from tests.networks.test_every_option import assert_same, numbers

BATCH, TIMES, VIEWS, SIZE = 2, 2, 2, (16, 24)


@pytest.fixture(scope="module")
def network() -> ViewTimeNetwork:
    return randomized_network(SMALL_DA3).requires_grad_(False)


@pytest.fixture(scope="module")
def images() -> Tensor:
    generator = torch.Generator().manual_seed(6)
    return torch.rand(BATCH, TIMES, VIEWS, 3, *SIZE, generator=generator, dtype=torch.float64)


def poses(*leading: int) -> Tensor:
    turn, move = torch.randn(2, *leading, 3, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    return rigid(matrix_from_rotation_vector(turn), move)


@pytest.fixture(scope="module")
def cameras() -> Conditioning:
    lens = torch.tensor([[20.0, 0, 12], [0, 25, 8], [0, 0, 1]], dtype=torch.float64)
    leading = (BATCH, TIMES, VIEWS)
    return Conditioning(world_to_camera=poses(*leading), intrinsics=lens.expand(*leading, 3, 3))


def reordered(out: NetworkOutput, order: Tensor) -> dict[str, Tensor]:
    """Return predictions in another order of all images, as views of one instant."""
    found = numbers(out)
    maps = {name: value.flatten(1, 2)[:, order].unsqueeze(1) for name, value in found.items() if name != "reference"}
    return maps | ({"reference": order.argsort()[found["reference"]]} if "reference" in found else {})


def test_images_in_any_order_have_the_same_predictions(network: ViewTimeNetwork, images: Tensor):
    """By the default selection of the reference view; with the first one as reference they differ."""
    order = torch.tensor([2, 0, 3, 1])
    mixed = images.flatten(1, 2)[:, order].unsqueeze(1)
    assert_same(network(mixed), reordered(network(images), order), 1e-9)
    first = randomized_network(replace(SMALL_DA3, reference_view=ReferenceView.FIRST)).requires_grad_(False)
    assert not torch.allclose(first(mixed).depth, reordered(first(images), order)["depth"], rtol=1e-4)


def test_the_world_of_known_cameras_does_not_matter(network: ViewTimeNetwork, images: Tensor, cameras: Conditioning):
    out = network(images, conditioning=cameras)
    moved = replace(cameras, world_to_camera=cameras.world_to_camera @ poses(BATCH, 1, 1))
    assert_same(network(images, conditioning=moved), numbers(out), 1e-9)
    unit = moved.world_to_camera.clone()
    unit[..., :3, 3] *= 7
    assert_same(network(images, conditioning=replace(moved, world_to_camera=unit)), numbers(out), 1e-9)
    assert not torch.allclose(network(images).depth, out.depth, rtol=1e-4)


def test_intrinsics_alone_are_not_used(network: ViewTimeNetwork, images: Tensor, cameras: Conditioning):
    out = network(images, conditioning=replace(cameras, world_to_camera=None))
    assert_same(out, numbers(network(images)), 0)


def test_scenes_of_equal_cameras_are_independent_and_limits_change_nothing(
    network: ViewTimeNetwork, images: Tensor, cameras: Conditioning
):
    """The unit of length of known cameras is that of the batch."""
    given = replace(cameras, world_to_camera=cameras.world_to_camera[:1].expand(BATCH, -1, -1, -1, -1))
    together = network(images, conditioning=given)
    limits = ForwardLimits(max_images=3, max_tokens=20, max_queries=7)
    assert_same(network(images, conditioning=given, limits=limits), numbers(together), 1e-9)
    own = Conditioning(world_to_camera=given.world_to_camera[1:], intrinsics=given.intrinsics[1:])
    alone = network(images[1:], conditioning=own)
    assert_same(alone, {name: value[1:] for name, value in numbers(together).items()}, 1e-9)


def test_the_reference_view_is_selected_in_every_scene(network: ViewTimeNetwork, images: Tensor):
    found = network(images).reference.tolist()
    assert network(images.flip(1, 2)).reference.tolist() == [3 - image for image in found]
    assert len(set(found)) == BATCH


def test_the_ray_map_can_be_left_out(network: ViewTimeNetwork, images: Tensor):
    whole = network(images)
    assert whole.ray_map.shape == (BATCH, TIMES, VIEWS, 16, 24, 6)
    assert whole.ray_confidence.shape == (BATCH, TIMES, VIEWS, 16, 24)
    assert whole.ray_confidence.min() > 1
    network.predicts_ray_map = False
    out = network(images)
    network.predicts_ray_map = True
    assert out.ray_map is out.ray_confidence is None
    assert torch.equal(out.depth, whole.depth)


def test_cameras_and_the_reference_view_are_in_full_precision(images: Tensor, cameras: Conditioning):
    network = randomized_network(SMALL_DA3).float().requires_grad_(False)
    sizes = SizeGroups.of([(2, 3)] * VIEWS)
    given = (cameras.world_to_camera.float(), cameras.intrinsics.float(), sizes, 8)
    tokens = network.encoder(images.flatten(0, 2).float()).class_tokens[None]
    exact = (network.camera_encoder(*given), saddle_scores(tokens))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = (network.camera_encoder(*given), saddle_scores(tokens))
    for ours, theirs in zip(found, exact, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("count", [1, 3])
def test_cameras_at_one_place_are_encoded(network: ViewTimeNetwork, images: Tensor, count: int):
    """Also a single one; the unit of length is then at least 0.1."""
    world_to_camera = poses(1, 1, 1).expand(1, 1, count, 4, 4)
    assert scale_cameras(world_to_camera).isfinite().all()
    intrinsics = torch.tensor([[20.0, 0, 12], [0, 20, 8], [0, 0, 1]], dtype=torch.float64).expand(1, 1, count, 3, 3)
    frames = images[:1].flatten(1, 2).unsqueeze(1)[:, :, :count]
    out = network(frames, conditioning=Conditioning(world_to_camera=world_to_camera, intrinsics=intrinsics))
    assert all(value.isfinite().all() for value in numbers(out).values())


def test_cameras_are_scaled_by_the_lower_median_distance():
    """All images count, the first included: of 0, 1, 2, 9 the median is 1, of 0 and 9 it is 0, and 0.1 is used."""
    moves = torch.tensor([0.0, 2, 9, 1], dtype=torch.float64)
    centers = torch.stack([moves, torch.zeros(4), torch.zeros(4)], dim=-1).double()
    world = poses(1)[0]
    world_to_camera = invert_rigid(rigid(torch.eye(3).double().expand(4, 3, 3), centers)) @ world
    found = camera_centers(scale_cameras(world_to_camera[None, None])).norm(dim=-1)
    torch.testing.assert_close(found[0, 0], moves)
    found = camera_centers(scale_cameras(world_to_camera[None, :3:2, None])).norm(dim=-1)
    torch.testing.assert_close(found[0, :, 0], torch.tensor([0.0, 90]).double())


@pytest.mark.parametrize("cameras", ["extrinsics", "extrinsics_still"])
def test_known_cameras_of_a_batch_are_scaled_together(golden: Callable, agrees: Callable, cameras: str):
    """Also cameras that hardly move; all scenes of a batch have one unit of length."""
    recorded = golden("da3_ops").tensors
    scaled = scale_cameras(recorded[f"input/{cameras}"].double().unsqueeze(1))
    agrees(scaled[:, 0].float(), recorded[f"output/{cameras}_normalised"])


def test_the_camera_head_returns_the_inverse_of_what_its_layers_predict():
    torch.manual_seed(0)
    head, tokens = CameraMLP(16).double(), torch.randn(2, 3, 1, 16, dtype=torch.float64)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(torch.randn_like(parameter))
    raw = decode_pose(head.camera_to_world(tokens), SIZE, head.min_tangent)
    found = decode_pose(head(tokens)[-1], SIZE, head.min_tangent)
    torch.testing.assert_close(found.world_to_camera, invert_rigid(raw.world_to_camera))
    torch.testing.assert_close(found.intrinsics, raw.intrinsics)


def test_focal_lengths_are_finite_at_a_field_of_view_of_0():
    encoding = torch.tensor([0, 0, 0, 0, 0, 0, 1, 0, 0], dtype=torch.float64)
    focal = decode_pose(encoding, SIZE, CameraMLP.min_tangent).intrinsics.diagonal()[:2]
    torch.testing.assert_close(focal, torch.tensor([12e6, 8e6], dtype=torch.float64))


def scores_by_hand(tokens: Tensor) -> list[float]:
    """Return the balanced score of every image of one scene."""
    count = len(tokens)
    cosine = [[float(functional.cosine_similarity(one, two, dim=0)) for two in tokens] for one in tokens]
    measures = [
        [(sum(row) - 1) / (count - 1) for row in cosine],
        [float(token.norm()) for token in tokens],
        [float((token / token.norm()).var(unbiased=True)) for token in tokens],
    ]
    scaled = [[(value - min(row)) / (max(row) - min(row) + 1e-8) for value in row] for row in measures]
    return [sum(abs(row[image] - 0.5) for row in scaled) for image in range(count)]


@pytest.fixture
def tokens() -> Tensor:
    return torch.randn(4, 5, 16, generator=torch.Generator().manual_seed(2), dtype=torch.float64) + 0.5


def test_the_balanced_image_is_selected_in_every_scene(tokens: Tensor) -> None:
    balanced = [min(range(5), key=scores_by_hand(scene).__getitem__) for scene in tokens]
    assert len(set(balanced)) > 1
    assert select_reference(tokens).tolist() == balanced


def test_the_selected_image_does_not_depend_on_the_order(tokens: Tensor) -> None:
    order = torch.tensor([3, 0, 4, 2, 1])
    assert torch.equal(order[select_reference(tokens[:, order])], select_reference(tokens))


@pytest.mark.parametrize("count", [1, 2])
def test_the_first_of_up_to_two_images_is_the_reference(tokens: Tensor, count: int) -> None:
    assert select_reference(tokens[:, 1 : 1 + count]).tolist() == [0] * 4


def test_the_first_of_equal_images_is_the_reference(tokens: Tensor) -> None:
    equal = tokens[:, :1].expand(-1, 4, -1)
    assert select_reference(equal).tolist() == [0] * 4
