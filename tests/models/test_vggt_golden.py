"""VGGT reproduces recorded numbers of the public network, per module and as a whole."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from page4d.conventions import IMAGE_DEVIATION, IMAGE_MEAN
from page4d.networks.config import FRAME_GLOBAL, TIME_VIEW
from page4d.networks.layers.attention import rotary_tables
from page4d.networks.network import ViewTimeNetwork, build_network
from page4d.networks.tokens import token_positions
from page4d.weights.families.vggt import VGGT
from tests.keymaps import VGGT_TO_TIME_VIEW, rename
from tests.models.naive_twin import run_trunk


@dataclass(frozen=True)
class Case:
    """A network with recorded weights, images and outputs."""

    network: ViewTimeNetwork
    images: Tensor
    mid: dict[str, Tensor]
    output: dict[str, Tensor]
    grid: tuple[int, int]


@pytest.fixture(scope="module", params=["c", "a", "b"])
def case(request: pytest.FixtureRequest, golden: Callable, config_of: Callable) -> Case:
    loaded = golden(f"vggt_{request.param}")
    network = build_network(config_of(loaded.meta, FRAME_GLOBAL)).eval()
    network.load_state_dict(rename(loaded.part("weights/"), VGGT))
    images = loaded.tensors["input/images"]
    grid = (images.shape[-2] // 14, images.shape[-1] // 14)
    return Case(network.requires_grad_(False), images, loaded.part("mid/"), loaded.part("output/"), grid)


def normalised(images: Tensor) -> Tensor:
    mean, deviation = (torch.tensor(values)[:, None, None] for values in (IMAGE_MEAN, IMAGE_DEVIATION))
    return (images.flatten(0, 1) - mean) / deviation


def test_encoder(case: Case, agrees: Callable) -> None:
    encoder, images = case.network.encoder, normalised(case.images)
    agrees(encoder.position_table(case.grid), case.mid["encoder_pos_embed"])
    agrees(encoder.embed(images), case.mid["encoder_tokens_in"])
    encoded = encoder(images)
    agrees(encoded.tokens, case.mid["patch_tokens"])
    assert encoded.grid == case.grid


def test_tokens_and_positions(case: Case, agrees: Callable) -> None:
    batch, frames = case.images.shape[:2]
    special = case.network.aggregator.special(batch, 1, frames).flatten(0, 2)
    agrees(torch.cat([special, case.mid["patch_tokens"]], dim=1), case.mid["tokens_in"])
    positions = token_positions(case.grid, 5)
    assert torch.equal(positions.expand(batch * frames, -1, -1), case.mid["positions"].expand(batch * frames, -1, -1))


def test_first_blocks(case: Case, agrees: Callable) -> None:
    batch, frames = case.images.shape[:2]
    aggregator = case.network.aggregator
    head_dim = aggregator.config.encoder.embed_dim // aggregator.config.num_heads
    tables = rotary_tables(token_positions(case.grid, 5), head_dim)
    agrees(aggregator.blocks["frame"][0](case.mid["tokens_in"], tables), case.mid["frame_block_0"])
    together = case.mid["frame_block_0"].reshape(batch, -1, case.mid["frame_block_0"].shape[-1])
    agrees(aggregator.blocks["global"][0](together, tables.repeat(frames)), case.mid["global_block_0"])


def test_trunk(case: Case, agrees: Callable) -> None:
    batch, frames = case.images.shape[:2]
    patches = case.mid["patch_tokens"].unflatten(0, (batch, 1, frames))
    out = run_trunk(case.network.aggregator, patches, case.grid)
    recorded = {int(name.split("_")[1]): value for name, value in case.mid.items() if name.startswith("aggregated_")}
    assert set(out.levels) == set(recorded)
    for layer, reference in recorded.items():
        agrees(out.levels[layer][:, 0], reference)
    agrees(out.camera_tokens[:, 0], recorded[max(recorded)][:, :, 0])


def test_camera_head(case: Case, agrees: Callable) -> None:
    last = max(int(name.split("_")[1]) for name in case.mid if name.startswith("aggregated_"))
    iterations = case.network.camera_head(case.mid[f"aggregated_{last}"])
    assert len(iterations) == 4
    for index, pose in enumerate(iterations):
        agrees(pose, case.mid[f"pose_enc_iter_{index}"])
    clipped = sum(bool((pose[..., 7:] == 0).any()) for pose in iterations)
    assert clipped, "no field of view of the fixture is clipped"


@pytest.mark.parametrize("name", ["depth_head", "point_head"])
def test_dense_head_features(case: Case, agrees: Callable, name: str) -> None:
    layers = case.network.config.depth_head.layers
    levels = [case.mid[f"aggregated_{layer}"].flatten(0, 1)[:, 5:] for layer in layers]
    head = getattr(case.network, name)
    agrees(head.fuse(head.adapt(levels, case.grid)), case.mid[f"{name}_fused"])


@pytest.mark.parametrize("axis", ["views", "times"])
def test_whole_forward(case: Case, agrees: Callable, axis: str) -> None:
    """Frame and global attention treat views and instants equally."""
    where = 1 if axis == "views" else 2
    out = case.network(case.images.unsqueeze(where))
    agrees(out.pose_encoding.squeeze(where), case.output["pose_enc"])
    agrees(out.depth.squeeze(where)[..., None], case.output["depth"])
    agrees(out.depth_confidence.squeeze(where), case.output["depth_conf"])
    agrees(out.points.squeeze(where), case.output["world_points"])
    agrees(out.points_confidence.squeeze(where), case.output["world_points_conf"])
    assert out.dynamic is None


@pytest.mark.parametrize("name", ["c", "a", "b"])
def test_one_instant_of_the_time_view_schedule_equals_vggt(
    golden: Callable, config_of: Callable, agrees: Callable, name: str
) -> None:
    loaded = golden(f"vggt_{name}")
    network = build_network(config_of(loaded.meta, TIME_VIEW)).eval()
    network.load_state_dict(rename(loaded.part("weights/"), VGGT_TO_TIME_VIEW))
    with torch.no_grad():
        out = network(loaded.tensors["input/images"].unsqueeze(1))
    agrees(out.pose_encoding[:, 0], loaded.tensors["output/pose_enc"])
    agrees(out.depth[:, 0, ..., None], loaded.tensors["output/depth"])
    agrees(out.depth_confidence[:, 0], loaded.tensors["output/depth_conf"])
    agrees(out.points[:, 0], loaded.tensors["output/world_points"])
    agrees(out.points_confidence[:, 0], loaded.tensors["output/world_points_conf"])
