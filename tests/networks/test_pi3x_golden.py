"""Pi3X: masks, symmetries, and recorded numbers of its parts."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from page4d.geometry.transforms import invert_rigid
from page4d.networks.conditioning import Conditioning
from page4d.networks.inputs.known_geometry import CameraFrames, depth_channels, length_unit, ray_channels
from page4d.networks.layers.attention import attend, grid_positions, rotary_tables
from page4d.networks.network import build_network
from page4d.networks.presets import PRESETS
from page4d.weights.families.pi3 import PI3X, PI3X_READER
from tests.keymaps import rename
from tests.networks.test_recorded_tensors import Run, read_run
from tests.weights.checkpoints import manifest

CONDITIONING = ("depth_encoder.", "depth_emb", "ray_embed.", "pose_inject_blk.")


@pytest.fixture(scope="module", params=["c", "a", "b"])
def case(request: pytest.FixtureRequest, golden: Callable) -> Run:
    return read_run(golden, "pi3x", request.param, "_partial")


def test_masks_without_known_images_add_nothing(case: Run) -> None:
    """Also a single known pose in a sequence: poses are relative."""
    images, given = case.images.unsqueeze(1), case.conditioning(1)
    plain = case.network(images)
    for known in (False, True):
        masks = {name: torch.zeros(images.shape[:3], dtype=torch.bool) for name in vars(given) if "known" in name}
        masks["known_poses"][:, 0, -1] = known
        out = case.network(images, conditioning=Conditioning(**vars(given) | masks))
        assert torch.equal(out.points, plain.points)
        assert torch.equal(out.metric_scale, plain.metric_scale)


def test_the_world_of_known_poses_does_not_matter(case: Run, agrees: Callable) -> None:
    images, given = case.images.unsqueeze(1), case.conditioning(1)
    moved = given.world_to_camera @ torch.linalg.inv(given.world_to_camera[:1, :1, 1:2])
    one, other = (
        case.network(images, conditioning=Conditioning(**vars(given) | {"world_to_camera": poses}))
        for poses in (given.world_to_camera, moved)
    )
    agrees(other.points, one.points)


@pytest.fixture(scope="module")
def ops(golden: Callable) -> dict[str, Tensor]:
    return golden("pi3x_ops").tensors


def test_known_geometry(ops: dict[str, Tensor], agrees: Callable) -> None:
    """Known depth, none known, and cameras at rest with a single known pose."""
    depths = ops["input/depths"].unsqueeze(1)
    given = Conditioning(
        world_to_camera=invert_rigid(ops["input/poses"].double()).unsqueeze(1),
        depths=[depths],
        known_poses=ops["input/mask_pose"].unsqueeze(1),
        known_depths=ops["input/mask_depth"].unsqueeze(1),
    )
    unit, poses = length_unit(given)
    agrees(unit.float(), ops["output/scale_factor"])
    agrees(invert_rigid(poses.world_to_camera).squeeze(1).float(), ops["output/poses_normalised"])
    assert torch.equal(poses.known.squeeze(1), ops["output/pose_mask_used"])
    expected = ops["output/depth_and_mask"].flatten(0, 1)
    agrees(depth_channels(depths.flatten(0, 2), unit.repeat_interleave(3)), expected)
    rays = ray_channels(ops["input/intrinsics"].flatten(0, 1), tuple(expected.shape[-2:]))
    agrees(rays, ops["output/ray_map"].flatten(0, 1))


def test_attention_in_camera_frames(ops: dict[str, Tensor], agrees: Callable) -> None:
    """Two images of 2 x 3 patches."""
    poses = ops["input/prope_world_to_camera"].repeat_interleave(6, dim=1)
    columns_rows = grid_positions((2, 3)).flip(-1).repeat(2, 1)
    rope, inverse = (rotary_tables(sign * columns_rows, 8) for sign in (1, -1))
    frames = CameraFrames(world_to_camera=poses, camera_to_world=invert_rigid(poses), rope=rope, inverse_rope=inverse)
    query, key, value = (
        frames.of_queries(ops["input/prope_q"]),
        *map(frames.of_keys, (ops["input/prope_k"], ops["input/prope_v"])),
    )
    agrees(query, ops["output/prope_q"])
    agrees(key, ops["output/prope_k"])
    agrees(value, ops["output/prope_v"])
    agrees(frames.of_outputs(ops["input/prope_o"]), ops["output/prope_o"])
    agrees(frames.of_outputs(attend(query, key, value)), ops["output/prope_attention"])
    agrees(frames.of_tokens(slice(4, 9)).of_keys(ops["input/prope_k"][:, :, 4:9]), key[:, :, 4:9])


def test_the_preset_is_the_public_network() -> None:
    specs = manifest("pi3x")
    assert PI3X_READER.build(specs, PI3X_READER.published[0]) == PRESETS["pi3x"]
    alone = {name: spec for name, spec in specs.items() if not name.startswith(CONDITIONING)}
    assert len(specs) - len(alone) == 436
    assert PI3X_READER.build(alone, PI3X_READER.published[0]) == replace(PRESETS["pi3x"], known_geometry=None)
    with torch.device("meta"):
        networks = [build_network(PI3X_READER.build(given, PI3X_READER.published[0])) for given in (specs, alone)]
    for network, given in zip(networks, (specs, alone), strict=True):
        renamed = rename({name: torch.empty(spec.shape, device="meta") for name, spec in given.items()}, PI3X)
        ours = network.state_dict()
        assert {name: value.shape for name, value in renamed.items()} == {
            name: value.shape for name, value in ours.items()
        }
