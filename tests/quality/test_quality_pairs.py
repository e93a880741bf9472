"""Comparison of two depth maps: exact depth agrees, nearer depth is contradicted, farther depth is occluded."""

from dataclasses import replace

import pytest
import torch

from page4d.geometry.camera import Cameras
from page4d.lab.synthetic.capture import SyntheticCapture
from page4d.quality.measure import DepthMap, compare_pair

CAPTURE = SyntheticCapture(seed=3, num_views=3, num_times=1, image_size=(72, 96))


def true_view(view: int, capture: SyntheticCapture = CAPTURE) -> DepthMap:
    cameras = capture.cameras_of(view)
    frame = capture.rendered(0, view)
    camera = Cameras(
        world_to_camera=cameras.world_to_camera[0].double(),
        intrinsics=cameras.intrinsics[0].double(),
        image_size=cameras.image_size,
    )
    return DepthMap(depth=frame.depth, camera=camera)


def wall(distance: float, center_x: float, size: tuple[int, int] = (20, 30)) -> DepthMap:
    """Return a camera at (center_x, 0, 0) that sees a plane at z = `distance`; focal length 30 px."""
    pose = torch.eye(4, dtype=torch.float64)
    pose[0, 3] = -center_x
    matrix = torch.tensor([[30.0, 0, size[1] / 2], [0, 30, size[0] / 2], [0, 0, 1]], dtype=torch.float64)
    camera = Cameras(world_to_camera=pose, intrinsics=matrix, image_size=size)
    return DepthMap(depth=torch.full(size, distance), camera=camera)


def test_true_depth_is_confirmed_nearly_wherever_it_is_compared() -> None:
    found = compare_pair(true_view(0), true_view(1))
    compared = found.confirmed | found.contradicted
    assert float(found.visible.float().mean()) > 0.3
    assert float(found.contradicted.sum() / compared.sum()) < 0.02
    assert float(found.residual_px[found.confirmed].median()) < 0.5


@pytest.mark.parametrize(("factor", "kind"), [(0.8, "contradicted"), (1.25, "occluded"), (1.02, "confirmed")])
def test_a_wall_at_another_depth(factor: float, kind: str) -> None:
    found = compare_pair(wall(2.0 * factor, 0.0), wall(2.0, 0.2))
    occluded = found.visible & ~found.confirmed & ~found.contradicted
    counts = {"confirmed": found.confirmed, "contradicted": found.contradicted, "occluded": occluded}
    assert bool((counts[kind] == found.visible).all())
    assert bool(found.visible.any())
    assert torch.allclose(found.difference[found.visible].exp(), torch.tensor(factor), atol=1e-5)


def test_the_residual_is_the_displacement_of_the_projection() -> None:
    """A pixel at depth 1 lies at 30 * .2 / 1 = 6 px in the other view, whose surface at depth 2 is 3 px from it."""
    found = compare_pair(wall(1.0, 0.0), wall(2.0, 0.2))
    assert torch.allclose(found.residual_px[found.visible], torch.tensor(3.0), atol=1e-4)


def test_maps_may_differ_in_size() -> None:
    found = compare_pair(wall(2.0, 0.0), wall(2.0, 0.2, size=(60, 90)))
    assert found.visible.shape == (20, 30)
    assert bool((found.confirmed == found.visible).all())


def test_pixels_without_depth_are_not_compared() -> None:
    own, other = wall(2.0, 0.0), wall(2.0, 0.2)
    own.depth[:5] = 0
    other.depth[:, 10:] = 0
    found = compare_pair(own, other)
    assert not bool(found.visible[:5].any())
    full = compare_pair(own, wall(2.0, 0.2))
    assert 0 < int(found.visible.sum()) < int(full.visible.sum())
    assert bool(found.residual_px[~found.visible].isnan().all())


def test_nothing_is_visible_behind_the_other_camera() -> None:
    turned = wall(2.0, 0.0)
    pose = torch.diag(torch.tensor([-1.0, 1.0, -1.0, 1.0], dtype=torch.float64))
    turned = replace(turned, camera=replace(turned.camera, world_to_camera=pose))
    assert not bool(compare_pair(wall(2.0, 0.0), turned).visible.any())
