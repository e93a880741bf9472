"""What is read from evidence along rays: nothing before training, depth alone, the same however it is asked."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from page4d.errors import UsageError
from page4d.models.config import ReadingConfig
from page4d.models.hints import NO_HINTS, Hints
from page4d.models.network import ViewTimeNetwork, build_network
from page4d.models.output import NetworkOutput
from page4d.models.refinement import refine, refine_by
from page4d.synthetic.sampler import SceneFamily, ShotRequest, sample_truth
from page4d.truth import Truth
from tests.models.demo_like import DEMO_LIKE, demo_like

SIZE = (48, 64)
PATCH, FINER = 8, 2


@pytest.fixture(scope="module")
def truth() -> Truth:
    return sample_truth([1, 2], ShotRequest(num_times=2, num_views=3, image_size=SIZE, spacing_deg=(15, 16)))


@pytest.fixture
def network() -> ViewTimeNetwork:
    return demo_like()


def reading(network: ViewTimeNetwork) -> ViewTimeNetwork:
    """Let it say something."""
    torch.manual_seed(1)
    for parameter in network.reading.out.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return network


def told(truth: Truth) -> Hints:
    return Hints(world_to_camera=truth.cameras.world_to_camera, intrinsics=truth.cameras.intrinsics)


@torch.no_grad()
def said(network: ViewTimeNetwork, images: Tensor, hints: Hints = NO_HINTS) -> NetworkOutput:
    return network(images, hints=hints)


@pytest.mark.parametrize("knows", [True, False])
def test_an_untrained_one_changes_nothing(network: ViewTimeNetwork, truth: Truth, knows: bool) -> None:
    hints = told(truth) if knows else NO_HINTS
    output = said(network, truth.images, hints)
    without = refine(output, PATCH, FINER, hints)
    torch.testing.assert_close(refine_by(network, output, hints).depth, without.depth)


@pytest.mark.parametrize("knows", [True, False])
def test_a_trained_one_changes_depth_alone_and_alone_can_learn(
    network: ViewTimeNetwork, truth: Truth, knows: bool
) -> None:
    hints = told(truth) if knows else NO_HINTS
    output = said(reading(network), truth.images, hints)
    without, better = refine(output, PATCH, FINER, hints), refine_by(network, output, hints)
    assert (better.depth / without.depth).log().abs().median() > 0.01
    for name in ("world_to_camera", "intrinsics", "depth_confidence", "dynamic"):
        assert torch.equal(getattr(better, name), getattr(without, name))
    better.depth.log().sum().backward()
    assert {name.split(".")[0] for name, value in network.named_parameters() if value.grad is not None} == {"reading"}
    assert all(value.grad is not None and value.grad.isfinite().all() for value in network.reading.parameters())


@torch.no_grad()
def test_views_one_by_one_and_scenes_alone_are_read_alike(network: ViewTimeNetwork, truth: Truth) -> None:
    network = reading(network).double()
    images = truth.images.double()
    whole = refine_by(network, said(network, images))
    apart = refine_by(network, network.forward_mixed([images[:, :, view] for view in range(3)]))
    torch.testing.assert_close(torch.cat([view.depth for view in apart.views], dim=2), whole.depth)
    alone = refine_by(network, said(network, images[1:]))
    torch.testing.assert_close(alone.depth, whole.depth[1:])


@torch.no_grad()
def test_the_unit_of_known_cameras_changes_nothing(network: ViewTimeNetwork, truth: Truth) -> None:
    output, hints = said(reading(network), truth.images), told(truth)
    pose = hints.world_to_camera.clone()
    pose[..., :3, 3] *= 50
    here, there = (refine_by(network, output, one) for one in (hints, replace(hints, world_to_camera=pose)))
    torch.testing.assert_close(there.depth, here.depth, rtol=1e-4, atol=0)


@torch.no_grad()
def test_a_camera_that_stands_shows_no_unit_and_its_depth_is_read_all_the_same(network: ViewTimeNetwork) -> None:
    request = ShotRequest(family=SceneFamily.SINGLE, num_times=2, num_views=1, image_size=SIZE)
    truth = sample_truth([1, 2], request)
    pose = truth.cameras.world_to_camera[:, :1].expand(-1, 2, -1, -1, -1)
    hints = replace(told(truth), world_to_camera=pose)
    output = said(reading(network), truth.images)
    better = refine_by(network, output, hints).depth
    assert better.isfinite().all()
    assert not torch.equal(better, refine(output, PATCH, FINER, hints).depth)


def test_what_is_read_is_kept_only_where_nothing_is_learned(network: ViewTimeNetwork, truth: Truth) -> None:
    assert network(truth.images[:, :1]).tokens is None
    assert said(network, truth.images[:, :1]).tokens.shape == (2, 1, 3, 48, 32)
    without = build_network(replace(DEMO_LIKE, reading=None))
    assert said(without, truth.images[:, :1]).tokens is None


def test_what_it_needs_is_said() -> None:
    for lacking in ("matches", "depth_head"):
        with pytest.raises(UsageError, match="a reading without"):
            replace(DEMO_LIKE, **{lacking: None}, motion_head=None, ray_head=False)
    with pytest.raises(UsageError, match="reading: dim 0"):
        ReadingConfig(dim=0)
