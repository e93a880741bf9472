"""Comparison of depth maps and pictures: exact depth agrees and fits the pictures, wrong depth and cameras do not."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from page4d.geometry.camera import Cameras
from page4d.geometry.rotation import matrix_from_rotation_vector
from page4d.lab.synthetic.capture import SyntheticCapture
from page4d.quality.measure import DepthMap, compare_pair, photo_consistency

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


def pictures() -> tuple[Tensor, Tensor]:
    return CAPTURE.rendered(0, 0).image, CAPTURE.rendered(0, 1).image


def consistency(own: DepthMap, other: DepthMap, shown: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
    """Return correlations and gains."""
    return photo_consistency(own, other, shown or pictures(), compare_pair(own, other))


def gain(found: tuple[Tensor, Tensor]) -> float:
    return float(found[1].mean())


def test_true_depth_fits_the_pictures_better_than_wrong_depth() -> None:
    found = consistency(true_view(0), true_view(1))
    assert len(found[0]) > 200
    assert float(found[0].median()) > 0.6
    assert gain(found) > 0.3


def test_consistent_depth_of_a_turned_camera_does_not_fit_the_pictures() -> None:
    turn = torch.eye(4, dtype=torch.float64)
    turn[:3, :3] = matrix_from_rotation_vector(torch.tensor([0.0, 0.1, 0.05], dtype=torch.float64))
    other = true_view(1)
    other = replace(other, camera=replace(other.camera, world_to_camera=turn @ other.camera.world_to_camera))
    assert gain(consistency(true_view(0), other)) < 0.1


def test_flat_pictures_and_noise_count_for_nothing() -> None:
    flat = torch.full_like(pictures()[0], 0.5)
    assert not len(consistency(true_view(0), true_view(1), (flat, flat))[0])
    noise = torch.rand(flat.shape, generator=torch.Generator().manual_seed(1))
    correlations, _ = consistency(true_view(0), true_view(1), (noise, noise.flip(-1)))
    assert abs(float(correlations.mean())) < 0.1


def test_a_change_of_exposure_does_not_matter() -> None:
    own, other = pictures()
    usual, darker = (consistency(true_view(0), true_view(1), (own, other * factor)) for factor in (1.0, 0.6))
    assert abs(gain(usual) - gain(darker)) < 0.08


def test_opposite_views_are_not_compared() -> None:
    """Two cameras that face each other see a thin textured wall between them from opposite sides."""
    size, depth = (40, 40), torch.full((40, 40), 2.0)
    matrix = torch.tensor([[40.0, 0, 20], [0, 40, 20], [0, 0, 1]], dtype=torch.float64)
    front = torch.eye(4, dtype=torch.float64)
    back = torch.diag(torch.tensor([-1.0, 1.0, -1.0, 1.0], dtype=torch.float64))
    back[2, 3] = 4.0
    one, other = (
        DepthMap(depth=depth, camera=Cameras(world_to_camera=pose, intrinsics=matrix, image_size=size))
        for pose in (front, back)
    )
    picture = torch.rand((3, *size), generator=torch.Generator().manual_seed(1))
    comparison = compare_pair(one, other)
    assert bool(comparison.confirmed.all())
    assert not len(photo_consistency(one, other, (picture, picture.flip(-1)), comparison)[0])
