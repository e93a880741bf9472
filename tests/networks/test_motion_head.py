"""Motion head: the upsampled patch mask at initialisation, refined by changes in time within a view."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from page4d.lab.synthetic.capture import SceneRequest, sample_truth
from page4d.lab.training.losses import motion_loss
from page4d.networks.config_parts import MotionHeadConfig
from page4d.networks.heads.motion import MotionHead
from page4d.networks.layers.execution import ForwardLimits
from tests.networks.small_networks import DEMO_LIKE, demo_like

SHAPE, SIZE, GRID = (2, 3, 2), (16, 24), (2, 3)


@pytest.fixture
def images() -> Tensor:
    return torch.rand(*SHAPE, 3, *SIZE, generator=torch.Generator().manual_seed(3))


def trained(head: MotionHead) -> MotionHead:
    torch.manual_seed(1)
    for parameter in head.out.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return head


def inputs(seed: int = 0) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(seed)
    sizes = {
        "images": (3, *SIZE),
        "fine": (8, SIZE[0] // 2, SIZE[1] // 2),
        "tokens": (GRID[0] * GRID[1], 32),
        "logit": GRID,
    }
    return {name: torch.rand(*SHAPE, *size, generator=random) for name, size in sizes.items()}


@pytest.fixture
def head() -> MotionHead:
    torch.manual_seed(0)
    return trained(MotionHead(DEMO_LIKE.motion_head, 32))


def test_an_untrained_head_returns_the_upsampled_patch_mask() -> None:
    torch.manual_seed(0)
    head, given = MotionHead(MotionHeadConfig(fine_dim=8), 32), inputs()
    logit = functional.interpolate(given["logit"].flatten(0, 2)[:, None], size=SIZE, mode="bilinear")
    torch.testing.assert_close(head(**given), logit.reshape(*SHAPE, *SIZE))


def test_networks_predict_pixel_and_patch_masks(images: Tensor) -> None:
    network = demo_like()
    trained(network.motion_head)
    out = network(images)
    assert out.motion_logit.shape == (*SHAPE, *SIZE)
    assert out.dynamic_logit.shape == (*SHAPE, *GRID)
    torch.testing.assert_close(out.dynamic, out.motion_logit.sigmoid())
    views = network([images[:, :, view] for view in range(2)])
    torch.testing.assert_close(torch.cat([view.dynamic for view in views.views], dim=2), out.dynamic)


def test_single_instants_have_no_pixel_mask(images: Tensor) -> None:
    out = demo_like()(images[:, :1])
    assert out.motion_logit is None
    assert out.dynamic.shape == (2, 1, 2, *SIZE)


def test_external_masks_are_not_refined(images: Tensor) -> None:
    network = demo_like()
    trained(network.motion_head)
    out = network(images, torch.rand(*SHAPE, *SIZE))
    assert out.motion_logit is None
    assert out.dynamic.shape == (*SHAPE, *SIZE)


def test_predictions_depend_on_changes_in_time(head: MotionHead) -> None:
    """Repeated instants have equal predictions; other images change them."""
    given = inputs()
    constant = {name: value[:, :1].expand_as(value) for name, value in given.items()}
    out = head(**constant)
    torch.testing.assert_close(out, out[:, :1].expand_as(out))
    other = {**constant, "images": given["images"]}
    assert (head(**other) - out).abs().amax(dim=(-1, -2)).min() > 1e-3


def test_images_are_compared_with_neighbours_in_time_of_their_view_only(head: MotionHead) -> None:
    given = {name: torch.cat([value, value.flip(1)], dim=1) for name, value in inputs().items()}  # six instants
    before = head(**given)
    images = given["images"].clone()
    images[1, 0, 1] += 1
    changed = (head(**{**given, "images": images}) - before).abs().amax(dim=(-1, -2)) > 1e-6
    expected = torch.zeros_like(changed)
    expected[1, [5, 0, 1], 1] = True
    assert torch.equal(changed, expected)


@torch.no_grad()
def test_predictions_are_independent_of_the_chunk_size(head: MotionHead, images: Tensor) -> None:
    given = inputs()
    torch.testing.assert_close(head(**given, max_images=5), head(**given))
    network = demo_like().double()
    trained(network.motion_head)
    whole, few = (network(images.double(), limits=ForwardLimits(max_images=max_images)) for max_images in (None, 4))
    torch.testing.assert_close(few.dynamic, whole.dynamic)


@pytest.mark.parametrize("teaches", [True, False])
def test_inputs_get_a_gradient_only_if_the_mask_teaches_the_trunk(teaches: bool) -> None:
    given = {name: value.requires_grad_() for name, value in inputs().items()}
    trained(MotionHead(DEMO_LIKE.motion_head, 32, teaches_trunk=teaches))(**given).sum().backward()
    assert {name for name in ("fine", "tokens", "logit") if given[name].grad is not None} == (
        {"fine", "tokens", "logit"} if teaches else set()
    )


def test_a_trained_head_is_more_accurate_than_the_best_patch_mask() -> None:
    """After 100 steps on two scenes, measured by IoU; the inputs of the head are computed once."""
    truth = sample_truth([5, 6], SceneRequest(num_times=2, num_views=2, image_size=(48, 64), spacing_deg=(15, 16)))
    network = demo_like()
    moving = truth.dynamic & truth.valid
    optimizer = torch.optim.Adam(network.motion_head.parameters(), lr=1e-2)
    given: list[tuple] = []
    handle = network.motion_head.register_forward_pre_hook(lambda _, arguments: given.append(arguments))
    with torch.no_grad():
        network(truth.images)
    handle.remove()
    (of_head,) = given
    losses = []
    for _ in range(100):
        loss = motion_loss(network.motion_head(*of_head), moving, truth.valid)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    shares = functional.avg_pool2d(moving.float().flatten(0, 2)[:, None], 8)
    best = functional.interpolate(shares, size=(48, 64), mode="bilinear").reshape(moving.shape) > 0.5
    found = network(truth.images).dynamic > 0.5
    iou = [float((mask & moving).sum() / (mask | moving).sum()) for mask in (found, best)]
    assert losses[-1] < 0.5 * losses[0]
    assert iou[0] > iou[1]
