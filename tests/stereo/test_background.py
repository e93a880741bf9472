"""The background of static cameras: weighted medians over instants, and masks sharpened by its colors."""

from dataclasses import replace

import pytest
import torch

from page4d.conventions import Scale
from page4d.geometry.camera import Cameras
from page4d.geometry.pixels import fit_views
from page4d.geometry.statistics import weighted_median
from page4d.records import Predictions
from page4d.stereo.background import agrees_with_background, estimate_background, sharpen_motion

TIMES, VIEWS, HEIGHT, WIDTH = 5, 2, 16, 24


def predictions_of(depth: torch.Tensor, images: torch.Tensor, dynamic: torch.Tensor | None = None) -> Predictions:
    """Return predictions [1, T, V, H, W] of parallel static cameras, with confidence 0.5."""
    times, views, height, width = depth.shape
    intrinsics = torch.tensor([[20.0, 0.0, width / 2], [0.0, 20.0, height / 2], [0.0, 0.0, 1.0]])
    poses = torch.eye(4).repeat(times, views, 1, 1)
    poses[..., 0, 3] = -0.2 * torch.arange(views)
    return Predictions(
        times=torch.arange(times, dtype=torch.float64),
        view_names=tuple(f"cam{view}" for view in range(views)),
        scale=Scale.METRIC,
        pixel_transforms=fit_views([(height, width)] * views, width, 8),
        cameras=Cameras(
            world_to_camera=poses[None].double(),
            intrinsics=intrinsics.expand(1, times, views, 3, 3).double(),
            image_size=(height, width),
        ),
        images=images[None],
        valid=torch.ones(1, times, views, height, width, dtype=torch.bool),
        depth=depth[None],
        depth_confidence=torch.full((1, times, views, height, width), 0.5),
        dynamic=None if dynamic is None else dynamic[None],
    )


@pytest.fixture
def capture() -> Predictions:
    """Return a wall at depth 4 with noise, passed by a box at depth 2 that the mask of motion marks."""
    random = torch.Generator().manual_seed(0)
    depth = 4 * torch.exp(0.02 * torch.randn(TIMES, VIEWS, HEIGHT, WIDTH, generator=random))
    texture = torch.rand(VIEWS, 3, HEIGHT, WIDTH, generator=random)
    images = texture + 0.005 * torch.randn(TIMES, VIEWS, 3, HEIGHT, WIDTH, generator=random)
    dynamic = torch.full(depth.shape, 0.1)
    for time in range(TIMES):
        box = (slice(4, 10), slice(4 * time, 4 * time + 4))
        depth[time, :, *box] = 2.0
        images[time, :, :, *box] = 0.5
        dynamic[time, :, *box] = 0.9
    return predictions_of(depth, images.clamp(0, 1), dynamic)


def test_a_weighted_median_of_equal_weights_is_the_lower_middle_value() -> None:
    values = torch.tensor([3.0, 1.0, 2.0, 4.0]).reshape(4, 1, 1)
    assert weighted_median(values, torch.ones_like(values)).item() == 2.0
    weight = torch.tensor([0.1, 0.1, 0.1, 5.0]).reshape(4, 1, 1)
    assert weighted_median(values, weight).item() == 4.0


@pytest.mark.parametrize("has_masks", [True, False])
def test_the_background_is_free_of_what_moves_and_steadier_than_one_instant(
    capture: Predictions, *, has_masks: bool
) -> None:
    background = estimate_background(capture if has_masks else replace(capture, dynamic=None), range(VIEWS))
    assert background.known.all()
    error = (background.log_depth.exp() / 4).log()
    assert error.abs().max() < 0.06
    assert error.std() < 0.75 * 0.02
    assert background.spread.median() == pytest.approx(0.02, abs=0.01)


def test_views_that_move_have_no_background(capture: Predictions) -> None:
    background = estimate_background(capture, [1])
    assert not background.known[0].any()
    assert background.known[1].all()
    assert estimate_background(capture, []) is None


def boxes(times: slice = slice(TIMES)) -> torch.Tensor:
    """Return which pixels [T, V, H, W] the box of the fixture covers."""
    covered = torch.zeros(TIMES, VIEWS, HEIGHT, WIDTH, dtype=torch.bool)
    for time in range(TIMES):
        covered[time, :, 4:10, 4 * time : 4 * time + 4] = True
    return covered[times]


@pytest.mark.parametrize("change", ["none", "color", "depth", "exposure", "unit", "no depth", "instants"])
def test_without_masks_only_what_agrees_in_color_and_depth_shows_the_background(
    capture: Predictions, change: str
) -> None:
    unmasked, box = replace(capture, dynamic=None), boxes()
    background = estimate_background(unmasked, range(VIEWS))
    if change == "color":  # the box has the depth of the wall
        unmasked.depth[0][box] = 4.0
    elif change == "depth":  # the box has the color of the wall
        unmasked.images[0] = background.color
    elif change == "exposure":
        unmasked.images.mul_(torch.tensor([0.8, 0.9, 0.85])[:, None, None])
    elif change == "unit":
        unmasked.depth.mul_(1.4)
    elif change == "no depth":
        unmasked.depth[..., 14:, :] = 0
    elif change == "instants":
        unmasked, box = unmasked.at_times(1, 3), boxes(slice(1, 3))
    agrees = agrees_with_background(unmasked, background)
    # Colors are compared around pixels.
    around = torch.nn.functional.max_pool2d(box.float(), 3, stride=1, padding=1) > 0
    inside = -torch.nn.functional.max_pool2d(-box.float(), 3, stride=1, padding=1) > 0
    assert not agrees[inside if change == "color" else box].any()
    assert agrees[~around].float().mean() > 0.98


def test_pixels_that_always_move_have_no_background(capture: Predictions) -> None:
    capture.dynamic[:, :, 0, :4] = 0.9
    background = estimate_background(capture, range(VIEWS))
    assert not background.known[0, :4].any()
    assert background.known[0, 4:].all()


def test_of_a_single_instant_everything_is_background(capture: Predictions) -> None:
    one = capture.at_times(0, 1)
    assert torch.equal(estimate_background(one, range(VIEWS)).log_depth, one.depth[0, 0].log())


def test_subtraction_finds_a_box_that_the_mask_misses_and_drops_one_that_is_background(capture: Predictions) -> None:
    background = estimate_background(capture, range(VIEWS))
    unsure = torch.full((TIMES, VIEWS, HEIGHT, WIDTH), 0.4)
    unsure[:, :, 12:] = 0.6
    found = sharpen_motion(unsure, capture.images[0], background)
    for time in range(TIMES):
        assert (found[time, :, 6:8, 4 * time + 1 : 4 * time + 3] > 0.5).all()
    assert (found[:, :, 13:] < 0.5).all()
    assert (found[:, :, 0] < 0.5).all()


def test_a_change_of_exposure_is_not_motion(capture: Predictions) -> None:
    background = estimate_background(capture, range(VIEWS))
    still = torch.full((TIMES, VIEWS, HEIGHT, WIDTH), 0.4)
    darker = background.color.expand(TIMES, -1, -1, -1, -1) * torch.tensor([0.7, 0.8, 0.75])[:, None, None]
    assert (sharpen_motion(still, darker, background) < 0.5).all()


def test_without_a_known_background_the_probability_is_unchanged(capture: Predictions) -> None:
    found = sharpen_motion(capture.dynamic[0], capture.images[0], estimate_background(capture, [1]))
    assert torch.equal(found[:, 0], capture.dynamic[0, :, 0])
