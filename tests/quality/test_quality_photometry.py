"""Photo-consistency: the pictures fit at the true depth, and no longer with wrong depth or wrong cameras."""

from dataclasses import replace

import torch
from torch import Tensor

from page4d.geometry.camera import Cameras
from page4d.geometry.rotation import matrix_from_rotation_vector
from page4d.quality.measure import DepthMap, compare_pair, photo_consistency
from tests.quality.test_quality_pairs import CAPTURE, true_view


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
