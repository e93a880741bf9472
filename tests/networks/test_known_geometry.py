"""Known intrinsics, depth and poses as inputs of the network like Pi3X."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from page4d.choices import FullAttention
from page4d.errors import ShapeError, UsageError
from page4d.geometry.rotation import matrix_from_rotation_vector
from page4d.geometry.transforms import rigid
from page4d.networks.conditioning import Conditioning
from page4d.networks.inputs.known_geometry import length_unit
from page4d.networks.network import build_network
from page4d.networks.output import NetworkOutput
from page4d.networks.presets import PRESETS
from page4d.weights.loading import LoadedNetwork
from tests.networks.small_networks import SMALL_PI3X, randomized_network

TIMES, VIEWS, SIZE = 2, 2, (28, 42)
MASKS = ("known_intrinsics", "known_poses", "known_depths")
LEADING = (1, TIMES, VIEWS)


def known(num_times: int = TIMES) -> Conditioning:
    """Return all inputs of known geometry, for all images."""
    generator = torch.Generator().manual_seed(3)
    leading = (1, num_times, VIEWS)
    turn, move = 0.3 * torch.randn(2, *leading, 3, generator=generator, dtype=torch.float64)
    lens = torch.tensor([[40.0, 0, 21], [0, 42, 14], [0, 0, 1]], dtype=torch.float64)
    return Conditioning(
        world_to_camera=rigid(matrix_from_rotation_vector(turn), move),
        intrinsics=lens.expand(*leading, 3, 3),
        depths=torch.rand(*leading, *SIZE, generator=generator, dtype=torch.float64) + 0.5,
    )


def images() -> Tensor:
    return torch.rand(*LEADING, 3, *SIZE, generator=torch.Generator().manual_seed(4), dtype=torch.float64)


def close(one: NetworkOutput, other: NetworkOutput, atol: float = 1e-10) -> bool:
    return all(
        torch.allclose(value, getattr(other, name), rtol=0, atol=atol)
        for name, value in vars(one).items()
        if isinstance(value, Tensor)
    )


def test_each_kind_of_value_matters_and_only_for_known_images() -> None:
    network, given = randomized_network(SMALL_PI3X).requires_grad_(False), known()
    mask = torch.tensor([[[True, False], [True, True]]])
    masks = dict.fromkeys(MASKS, mask)
    base = network(images(), conditioning=replace(given, **masks))
    for name in masks:
        assert not close(network(images(), conditioning=replace(given, **{**masks, name: None})), base)
    hidden = given.intrinsics.clone()
    hidden[~mask] = torch.nan
    assert close(network(images(), conditioning=replace(given, intrinsics=hidden, **masks)), base)
    turned = given.world_to_camera.clone()
    turned[0, 0, 1, :3, :3] = torch.eye(3)
    turned[0, 0, 1, :3, 3] = 100.0  # no part in the unit, which is the mean depth
    assert close(network(images(), conditioning=replace(given, world_to_camera=turned, **masks)), base)
    deeper = given.depths.clone()
    deeper[~mask] *= 2
    assert not close(network(images(), conditioning=replace(given, depths=deeper, **masks)), base)
    deeper[~mask] = given.depths[~mask].flip(-1)  # the same mean
    assert close(network(images(), conditioning=replace(given, depths=deeper, **masks)), base)


def test_lengths_of_any_unit_are_equivalent() -> None:
    network, given = randomized_network(SMALL_PI3X).requires_grad_(False), known()
    scaled = given.world_to_camera.clone()
    scaled[..., :3, 3] *= 1000
    base = network(images(), conditioning=given)
    assert close(
        network(images(), conditioning=replace(given, world_to_camera=scaled, depths=1000 * given.depths)), base, 1e-6
    )
    invalid = torch.full_like(given.depths, torch.nan)
    invalid[..., ::2] = -1.0
    cameras = replace(given, depths=None)
    for depths in (None, invalid, given.depths):
        none = None if depths is None else torch.zeros(LEADING, dtype=torch.bool)
        one = network(images(), conditioning=replace(cameras, depths=depths, known_depths=none))
        assert close(one, network(images(), conditioning=replace(cameras, world_to_camera=scaled)), 1e-6)


def test_cameras_at_rest_keep_their_unit() -> None:
    """The threshold is 2 % of the mean depth."""
    poses = torch.eye(4, dtype=torch.float64).repeat(1, 1, 3, 1, 1)
    poses[0, 0, 1:, 0, 3] = torch.tensor([0.0199, 0.01])
    depths = [torch.full((1, 1, 3, 2, 2), 2.0)]
    given = Conditioning(world_to_camera=poses, depths=depths, known_depths=torch.zeros(1, 1, 3, dtype=torch.bool))
    assert length_unit(given)[0].tolist() == [2.0]
    assert length_unit(replace(given, depths=None, known_depths=None))[0].tolist() == [1.0]
    poses[0, 0, 1, 0, 3] = 0.05
    assert length_unit(given)[0].tolist() == pytest.approx([0.03])
    assert length_unit(replace(given, known_depths=None))[0].tolist() == [2.0]


def test_images_as_one_instant_are_the_same_images() -> None:
    networks = [
        randomized_network(replace(SMALL_PI3X, full_attention=full))
        for full in (FullAttention.NEVER, FullAttention.ALWAYS)
    ]
    masks = dict.fromkeys(MASKS, torch.tensor([[[True, False], [True, True]]]))
    with torch.no_grad():
        one, other = (network(images(), conditioning=replace(known(), **masks)) for network in networks)
    assert close(one, other)
    assert one.metric_scale.shape == other.metric_scale.shape == (1,)


def test_a_single_image_has_no_relative_pose() -> None:
    network = randomized_network(SMALL_PI3X).requires_grad_(False)
    given = Conditioning(intrinsics=known().intrinsics[:, :1, :1], world_to_camera=known().world_to_camera[:, :1, :1])
    image = images()[:, :1, :1]
    posed = network(image, conditioning=given)
    assert close(posed, network(image, conditioning=replace(given, world_to_camera=None)))


def test_half_precision_covers_the_depth_encoder_and_the_pose_blocks() -> None:
    network = LoadedNetwork(SMALL_PI3X, torch.bfloat16)
    types = {name: part.weight.dtype for name, part in network.named_modules() if isinstance(part, nn.Linear)}
    assert types["known_geometry.depth_encoder.blocks.0.mlp.fc1"] is torch.bfloat16
    assert types["aggregator.pose_injection.blocks.1.attn.qkv"] is torch.bfloat16
    assert types["metric_head.blocks.0.attn.query"] is torch.float32


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            {"depths": None, "known_depths": torch.ones(LEADING, dtype=torch.bool)},
            ShapeError,
            "known_depths without depths",
        ),
        ({"known_poses": torch.ones(LEADING)}, ShapeError, "known_poses is torch.float32"),
        ({"known_poses": torch.ones(1, 4, dtype=torch.bool)}, ShapeError, r"of shape \(1, 4\)"),
        ({"depths": torch.ones(*LEADING, 28, 28)}, ShapeError, "depths have shapes"),
        ({"depths": [torch.ones(1, TIMES, *SIZE)] * VIEWS}, ShapeError, "depths have shapes"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(change: dict, error: type, message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        build_network(SMALL_PI3X)(images().float(), conditioning=replace(known(), **change))
    assert caught.value.hint


def test_other_networks_take_no_depth() -> None:
    network = build_network(PRESETS["mv-tiny"])
    given = known()
    for change in ({"depths": given.depths}, {"known_poses": torch.ones(LEADING, dtype=torch.bool)}):
        cameras = Conditioning(world_to_camera=given.world_to_camera, intrinsics=given.intrinsics, **change)
        with pytest.raises(UsageError, match="takes no depth maps"):
            network(images().float(), conditioning=cameras)


def test_poses_need_no_intrinsics() -> None:
    network, given = randomized_network(SMALL_PI3X).requires_grad_(False), known()
    alone = network(images(), conditioning=replace(given, intrinsics=None, depths=None))
    unused = torch.zeros(LEADING, dtype=torch.bool)
    masked = network(images(), conditioning=replace(given, depths=None, known_intrinsics=unused))
    assert close(alone, masked)
    assert not close(alone, network(images()))
