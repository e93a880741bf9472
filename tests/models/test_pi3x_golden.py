"""Pi3X reproduces recorded numbers: images alone."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from page4d.layers.execution import NO_LIMITS, ForwardLimits
from page4d.models.config import NetworkConfig
from page4d.models.network import ViewTimeNetwork, build_network
from page4d.models.output import NetworkOutput
from page4d.weights.families.pi3x import PI3X, READER, Pi3XSettings
from page4d.weights.store import TensorSpec
from tests.keymaps import rename

CONDITIONING = ("depth_encoder", "depth_emb", "ray_embed", "pose_inject_blk")


@dataclass(frozen=True)
class Case:
    """A network with recorded weights, inputs, intermediates and outputs."""

    network: ViewTimeNetwork
    tensors: dict[str, Tensor]

    def part(self, prefix: str) -> dict[str, Tensor]:
        return {name.removeprefix(prefix): value for name, value in self.tensors.items() if name.startswith(prefix)}


def recorded_config(weights: dict[str, Tensor], meta: dict) -> NetworkConfig:
    specs = {name: TensorSpec(shape=tuple(value.shape), dtype=value.dtype) for name, value in weights.items()}
    return READER.build(specs, Pi3XSettings(**meta))


@pytest.fixture(scope="module", params=["c", "a", "b"])
def case(request: pytest.FixtureRequest, golden: Callable) -> Case:
    loaded = golden(f"pi3x_{request.param}")
    weights = {name: value for name, value in loaded.part("weights/").items() if not name.startswith(CONDITIONING)}
    network = build_network(recorded_config(weights, loaded.meta)).eval()
    network.load_state_dict(rename(weights, PI3X))
    return Case(network.requires_grad_(False), loaded.tensors)


def assert_agrees(out: NetworkOutput, recorded: dict[str, Tensor], where: int, agrees: Callable) -> None:
    """Compare the outputs with recorded ones; `where` is the axis of T or V that has one entry."""
    agrees(out.metric_scale, recorded["metric"])
    agrees(out.points.squeeze(where), recorded["points"])
    agrees(out.local_points.squeeze(where), recorded["local_points"])
    agrees(out.depth.squeeze(where), recorded["local_points"][..., 2])
    agrees(out.confidence_logits.squeeze(where)[..., None], recorded["conf"])
    agrees(out.camera_to_world.squeeze(where).float(), recorded["camera_poses"])
    if "rays" in recorded:
        agrees(functional.normalize(out.local_points.squeeze(where), dim=-1), recorded["rays"])


@pytest.mark.parametrize("where", [1, 2], ids=["views", "times"])
@pytest.mark.parametrize(
    "limits", [NO_LIMITS, ForwardLimits(max_images=2, max_tokens=20, max_queries=7)], ids=["whole", "chunks"]
)
def test_images_alone(case: Case, agrees: Callable, where: int, limits: ForwardLimits) -> None:
    out = case.network(case.tensors["input/images"].unsqueeze(where), limits=limits)
    assert_agrees(out, case.part("output/"), where, agrees)
    assert torch.equal(out.depth_confidence, out.points_confidence)
    assert case.network.config.predicts_metres


def test_the_order_of_images_does_not_matter(case: Case) -> None:
    images = case.tensors["input/images"].unsqueeze(1)
    one, other = case.network(images), case.network(images.flip(2))
    torch.testing.assert_close(one.metric_scale, other.metric_scale, rtol=1e-5, atol=0)
    torch.testing.assert_close(one.world_to_camera.flip(2), other.world_to_camera, rtol=0, atol=1e-4)
    torch.testing.assert_close(one.depth.flip(2), other.depth, rtol=1e-4, atol=1e-4)
