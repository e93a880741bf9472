"""Pi3 reproduces recorded numbers: trunk, decoders, points, confidence and poses."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from page4d.geometry.camera import Cameras, fit_intrinsics, move_pixel_center, world_points
from page4d.geometry.rotation import rotation_defect
from page4d.geometry.transforms import invert_rigid
from page4d.networks.config import NetworkConfig
from page4d.networks.config_parts import FrameHeadConfig
from page4d.networks.layers.attention import rotary_tables
from page4d.networks.layers.execution import ForwardLimits
from page4d.networks.network import ViewTimeNetwork, build_network
from page4d.networks.presets import PRESETS
from page4d.networks.tokens import token_positions
from page4d.weights.families.pi3 import PI3
from tests.keymaps import rename
from tests.models.naive_twin import run_trunk
from tests.models.small_networks import without_gradient

INSIDE = Path(__file__).parents[1] / "golden"


@dataclass(frozen=True)
class Case:
    """A network with recorded weights, images and outputs."""

    network: ViewTimeNetwork
    images: Tensor
    mid: dict[str, Tensor]
    output: dict[str, Tensor]
    grid: tuple[int, int]


@pytest.fixture(scope="module", params=["c", "a", "b"])
def case(request: pytest.FixtureRequest, golden: Callable, pi3_config_of: Callable) -> Case:
    loaded = golden(f"pi3_{request.param}")
    network = build_network(pi3_config_of(loaded.meta)).eval()
    network.load_state_dict(rename(loaded.part("weights/"), PI3))
    images = loaded.tensors["input/images"]
    grid = (images.shape[-2] // 14, images.shape[-1] // 14)
    return Case(network.requires_grad_(False), images, loaded.part("mid/"), loaded.part("output/"), grid)


def test_the_preset_equals_the_public_network(pi3_config_of: Callable) -> None:
    recorded = json.loads((INSIDE / "config_full_pi3.json").read_text())
    assert pi3_config_of(recorded) == PRESETS["pi3"]


def test_tokens_and_first_blocks(case: Case, agrees: Callable) -> None:
    batch, frames = case.images.shape[:2]
    trunk = case.network.aggregator
    special = trunk.special(batch, 1, frames).flatten(0, 2)
    agrees(torch.cat([special, case.mid["patch_tokens"]], dim=1), case.mid["tokens_in"])
    head_dim = trunk.config.encoder.embed_dim // trunk.config.num_heads
    tables = rotary_tables(token_positions(case.grid, 5), head_dim)
    first = trunk.blocks["frame"][0](case.mid["tokens_in"], tables)
    agrees(first, case.mid["decoder_block_0"].reshape(first.shape))
    second = trunk.blocks["global"][0](first.reshape(batch, -1, first.shape[-1]), tables.repeat(frames))
    agrees(second, case.mid["decoder_block_1"].reshape(second.shape))


def test_trunk(case: Case, agrees: Callable) -> None:
    batch, frames = case.images.shape[:2]
    patches = case.mid["patch_tokens"].unflatten(0, (batch, 1, frames))
    (level,) = run_trunk(case.network.aggregator, patches, case.grid).levels.values()
    agrees(level.flatten(0, 2), case.mid["decoder_out"])


def test_frame_head(case: Case, agrees: Callable) -> None:
    head = case.network.frame_head
    out = head(case.mid["decoder_out"], case.grid)
    shape = case.output["local_points"].shape
    agrees(out.local_points, case.output["local_points"].flatten(0, 1))
    agrees(out.confidence_logit.reshape(shape[:-1]), case.output["conf"].reshape(shape[:-1]))
    agrees(out.camera_to_world.float(), case.output["camera_poses"].flatten(0, 1))
    assert rotation_defect(out.camera_to_world[..., :3, :3]).max() < 1e-14


@pytest.mark.parametrize("where", [1, 2], ids=["views", "times"])
def test_whole_forward(case: Case, agrees: Callable, where: int) -> None:
    out = case.network(case.images.unsqueeze(where), limits=ForwardLimits(max_images=2))
    agrees(out.points.squeeze(where), case.output["points"])
    agrees(out.local_points.squeeze(where), case.output["local_points"])
    agrees(out.depth.squeeze(where), case.output["local_points"][..., 2])
    agrees(invert_rigid(out.world_to_camera).squeeze(where).float(), case.output["camera_poses"])
    certainty = 1 - 1 / out.depth_confidence.squeeze(where)
    agrees(certainty, case.output["conf"].reshape(certainty.shape).sigmoid())
    assert torch.equal(out.depth_confidence, out.points_confidence)
    assert out.pose_encoding is None
    assert out.dynamic is None


def test_the_order_of_images_does_not_matter(case: Case) -> None:
    images = case.images.unsqueeze(1)
    one, other = case.network(images), case.network(images.flip(2))
    torch.testing.assert_close(one.world_to_camera.flip(2), other.world_to_camera, rtol=0, atol=1e-4)
    torch.testing.assert_close(one.depth.flip(2), other.depth, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("centered", [False, True])
def test_intrinsics_reproduce_the_recorded_ones(centered: bool) -> None:
    """Recorded intrinsics have pixel centers at integers."""
    tensors = load_file(INSIDE / "geometry_ops.safetensors")
    ours = fit_intrinsics(tensors["input/local_points"].double(), centered=centered)
    theirs = tensors["output/intrinsics_from_rays" + ("_centered" if centered else "")].double()
    torch.testing.assert_close(ours, move_pixel_center(theirs, source=0.0), rtol=0, atol=1e-4)


def test_intrinsics_are_recovered_from_exact_points() -> None:
    truth = torch.tensor([[50.0, 0, 21], [0, 40, 14], [0, 0, 1]], dtype=torch.float64).expand(2, 3, 3)
    depth = 1 + torch.rand(2, 28, 42, dtype=torch.float64)
    cameras = Cameras(
        world_to_camera=torch.eye(4, dtype=torch.float64).expand(2, 4, 4), intrinsics=truth, image_size=(28, 42)
    )
    points = world_points(depth, cameras)
    torch.testing.assert_close(fit_intrinsics(points), truth, rtol=0, atol=1e-12)
    torch.testing.assert_close(fit_intrinsics(points, centered=False), truth, rtol=0, atol=1e-10)
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
    for centered in (False, True):
        assert torch.equal(fit_intrinsics(points, centered=centered), expected)


@pytest.fixture
def small() -> NetworkConfig:
    head = FrameHeadConfig(dim=32, depth=1, num_heads=2, point_dim=16, camera_dim=16)
    changes = {"camera_head": None, "depth_head": None, "point_head": None, "mask": None}
    return replace(PRESETS["mv-tiny"], **changes, camera_token=False, token_slots=1, frame_head=head)


def test_every_parameter_gets_a_gradient(randomized: Callable, small: NetworkConfig) -> None:
    """Also with the schedule time, view: the head is independent of it."""
    fields = {name: getattr(small, name) for name in ("camera_token", "token_slots", "frame_head")}
    parts = ("camera_head", "depth_head", "point_head", "mask")
    network = randomized(**fields, **dict.fromkeys(parts))
    out = network(torch.rand(1, 2, 2, 3, 28, 42, dtype=torch.float64))
    loss = out.points.square().mean() + out.depth_confidence.mean() + out.world_to_camera[..., :3, :].sum()
    loss.backward()
    assert without_gradient(network) == []


def test_a_step_lowers_the_loss(small: NetworkConfig) -> None:
    torch.manual_seed(0)
    network = build_network(small)
    images = torch.rand(1, 2, 2, 3, 28, 42)
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3)

    def loss() -> Tensor:
        out = network(images)
        return (out.points - 1).square().mean() + out.depth_confidence.mean()

    before = loss()
    before.backward()
    optimizer.step()
    assert loss() < before


def test_an_untrained_network_predicts_valid_cameras(small: NetworkConfig) -> None:
    torch.manual_seed(0)
    out = build_network(small)(torch.rand(1, 2, 2, 3, 28, 42))
    identity = torch.eye(3, dtype=torch.float64)
    assert (out.world_to_camera[..., :3, :3] - identity).abs().max() < 0.3
    assert (out.intrinsics.diagonal(dim1=-2, dim2=-1) > 0).all()
    assert out.intrinsics.isfinite().all()
    assert out.depth.shape == (1, 2, 2, 28, 42)
    assert out.world_to_camera.dtype is torch.float64
