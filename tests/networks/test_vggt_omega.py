"""Properties of VGGT-Omega's parts: register layers, camera head, dense head, mixed sizes."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from page4d.networks.config_parts import CameraTransformerConfig
from page4d.networks.heads.camera import CameraTransformer
from page4d.networks.network import ViewTimeNetwork
from page4d.networks.output import NetworkOutput
from page4d.networks.profile.network import profile_network
from tests.networks.small_networks import OMEGA_LIKE, randomized_network
from tests.networks.test_recorded_tensors import Recorder

RIG = ((24, 16), (16, 24), (16, 24), (8, 16))
"""(Height, width) of a portrait view and three landscape ones, two of one size."""


@pytest.fixture(scope="module")
def network() -> ViewTimeNetwork:
    network = randomized_network(OMEGA_LIKE)
    with torch.no_grad():
        network.camera_head.pose_branch.fc2.bias[7:] += 2  # away from the clipping at 0
    return network.requires_grad_(False)


def frames(sizes: Sequence[tuple[int, int]], batch: int = 1, times: int = 1) -> list[Tensor]:
    torch.manual_seed(1)
    return [torch.rand(batch, times, 3, *size, dtype=torch.float64) for size in sizes]


def assert_close(one: NetworkOutput, other: NetworkOutput) -> None:
    for name in ("world_to_camera", "intrinsics", "pose_encoding", "depth", "depth_confidence"):
        torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=1e-9, atol=1e-11, msg=name)


def test_register_layers_leave_patches_unchanged_bit_for_bit(network: ViewTimeNetwork) -> None:
    recorder = Recorder(network, torch.rand(2, 3, 3, 16, 24, dtype=torch.float64))
    special = network.aggregator.special.count
    for layer, tokens in recorder.of("aggregator")[0].levels.items():
        within, across = tokens.chunk(2, dim=-1)
        assert torch.equal(within[..., special:, :], across[..., special:, :]) == (
            layer in OMEGA_LIKE.register_layers
        )
        assert not torch.equal(within[..., :special, :], across[..., :special, :])
    attended = recorder.into("aggregator.blocks.global.1")
    assert attended.shape == (2, 3 * special, 16), "all special tokens of a scene, and nothing else"
    assert recorder.into("aggregator.blocks.global.3").shape == (2, 3 * (special + 6), 16)


def test_views_of_mixed_sizes_in_any_order_have_their_own_size(network: ViewTimeNetwork) -> None:
    images = frames(RIG)
    out = network(images)
    order = [0, 3, 1, 2]  # the first view has the first slot
    reordered = network([images[view] for view in order])
    for place, view in enumerate(order):
        assert_close(reordered.views[place], out.views[view])
    for own, (height, width) in zip(out.views, RIG, strict=True):
        assert own.depth.shape == (1, 1, 1, height, width)
        half = torch.tensor([width / 2, height / 2], dtype=torch.float64)
        focal = own.intrinsics.diagonal(dim1=-2, dim2=-1)[..., :2]
        torch.testing.assert_close(2 * torch.atan(half / focal), own.pose_encoding[..., [8, 7]])


def test_positions_of_a_view_do_not_depend_on_other_views() -> None:
    """Without steps across views, views of mixed sizes are predicted as single views."""
    apart = randomized_network(OMEGA_LIKE).requires_grad_(False)
    for block in apart.aggregator.blocks["global"]:
        for part in (block.attn.proj, block.mlp.fc2):
            part.weight.zero_()
            part.bias.zero_()
    for token in apart.aggregator.special.parameters():
        token[:, 1] = token[:, 0]
    images = frames(RIG)
    out = apart(images)
    for view, alone in enumerate(images):
        torch.testing.assert_close(out.views[view].depth, apart(alone[:, :, None]).depth)


def test_the_camera_head_reads_the_special_tokens_of_all_images() -> None:
    torch.manual_seed(0)
    head = CameraTransformer(CameraTransformerConfig(depth=1, num_heads=2, layer_scale=None), 8).double()
    tokens = torch.randn(1, 3, 4, 8, dtype=torch.float64)
    (encoding,) = head(tokens)
    for image in range(3):
        for place in range(4):
            changed = tokens.clone()
            changed[0, image, place] += torch.randn(8, dtype=torch.float64)
            assert ((head(changed)[0] - encoding).abs().amax(dim=(0, 2)) > 1e-9).all(), (image, place)
    assert (encoding[..., 7:] >= 0.01).all()
    with torch.no_grad():
        head.pose_branch.fc2.bias[7:] = -100
    assert (head(tokens)[0][..., 7:] == 0.01).all()


def test_special_tokens_alone_are_a_stage_of_the_profile() -> None:
    profile = profile_network(OMEGA_LIKE, times=1, views=2, batch=1, size=(16, 24))
    (special,) = [stage for stage in profile.stages if "special tokens alone, layers 1, 2" in stage.name]
    assert special.shape == (1, 1, 2, 3, 16)
