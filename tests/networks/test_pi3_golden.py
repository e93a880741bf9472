"""Pi3 and Pi3X: symmetries, masks, fitted intrinsics, gradients, and recorded numbers of their parts."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from page4d.geometry.camera import Cameras, fit_intrinsics, move_pixel_center, world_points
from page4d.geometry.rotation import rotation_defect
from page4d.geometry.transforms import invert_rigid
from page4d.networks.conditioning import Conditioning
from page4d.networks.inputs.known_geometry import CameraFrames, depth_channels, length_unit, ray_channels
from page4d.networks.layers.attention import attend, grid_positions, rotary_tables
from page4d.networks.network import build_network
from page4d.networks.presets import PRESETS
from page4d.weights.families.family import Family
from page4d.weights.families.pi3 import PI3X
from page4d.weights.families.table import read_network
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


def test_files_for_images_alone_lack_the_inputs_of_known_geometry() -> None:
    specs = manifest("pi3x")
    alone = {name: spec for name, spec in specs.items() if not name.startswith(CONDITIONING)}
    assert len(specs) - len(alone) == 436
    configs = [read_network(Family.PI3X, given, "x").config for given in (specs, alone)]
    assert configs == [PRESETS["pi3x"], replace(PRESETS["pi3x"], known_geometry=None)]
    with torch.device("meta"):
        networks = [build_network(config) for config in configs]
    for network, given in zip(networks, (specs, alone), strict=True):
        renamed = rename({name: torch.empty(spec.shape, device="meta") for name, spec in given.items()}, PI3X)
        ours = network.state_dict()
        assert {name: value.shape for name, value in renamed.items()} == {
            name: value.shape for name, value in ours.items()
        }


INSIDE = Path(__file__).parents[1] / "golden"


@pytest.mark.parametrize("family", ["pi3", "pi3x"])
@pytest.mark.parametrize("case", ["c", "a", "b"])
def test_the_order_of_images_does_not_matter(golden: Callable, family: str, case: str) -> None:
    run = read_run(golden, family, case, "")
    images = run.images.unsqueeze(1)
    one, other = run.network(images), run.network(images.flip(2))
    torch.testing.assert_close(one.metric_scale, other.metric_scale, rtol=1e-5, atol=0)
    assert rotation_defect(one.camera_to_world[..., :3, :3]).max() < 1e-14
    torch.testing.assert_close(one.world_to_camera.flip(2), other.world_to_camera, rtol=0, atol=1e-4)
    torch.testing.assert_close(one.depth.flip(2), other.depth, rtol=1e-4, atol=1e-4)


def test_intrinsics_reproduce_the_recorded_ones() -> None:
    """Recorded intrinsics have pixel centers at integers."""
    tensors = load_file(INSIDE / "geometry_ops.safetensors")
    ours = fit_intrinsics(tensors["input/local_points"].double())
    theirs = tensors["output/intrinsics_from_rays_centered"].double()
    torch.testing.assert_close(ours, move_pixel_center(theirs, source=0.0), rtol=0, atol=1e-4)


def test_intrinsics_are_recovered_from_exact_points() -> None:
    truth = torch.tensor([[50.0, 0, 21], [0, 40, 14], [0, 0, 1]], dtype=torch.float64).expand(2, 3, 3)
    depth = 1 + torch.rand(2, 28, 42, dtype=torch.float64)
    cameras = Cameras(
        world_to_camera=torch.eye(4, dtype=torch.float64).expand(2, 4, 4), intrinsics=truth, image_size=(28, 42)
    )
    points = world_points(depth, cameras)
    torch.testing.assert_close(fit_intrinsics(points), truth, rtol=0, atol=1e-12)
    points[:, :, 30:] = torch.rand(2, 28, 12, 3, dtype=torch.float64)
    weights = torch.ones(2, 28, 42, dtype=torch.float64)
    weights[:, :, 30:] = 0
    torch.testing.assert_close(fit_intrinsics(points, weights), truth, rtol=0, atol=1e-12)


@pytest.mark.parametrize("factor", [-1.0, 0.0])
def test_degenerate_points_get_the_default_focal_length(factor: float) -> None:
    points = torch.ones(28, 42, 3)
    points[..., 0] = factor * torch.arange(42)
    points[..., 1] = factor * torch.arange(28)[:, None]
    expected = torch.tensor([[42.0, 0, 21], [0, 42, 14], [0, 0, 1]])
    assert torch.equal(fit_intrinsics(points), expected)
