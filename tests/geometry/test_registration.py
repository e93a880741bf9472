"""Registration: exact recovery, weights, outliers, and degenerate configurations."""

import numpy as np
import pytest
import torch
from evo.core.geometry import umeyama_alignment
from torch import Tensor

from page4d.errors import InputError
from page4d.geometry.alignment import DegenerateGeometryError, align_cameras, align_points, align_points_robust
from page4d.geometry.rotation import matrix_from_rotation_vector, rotation_angle, rotation_defect
from page4d.geometry.transforms import Sim3, rigid
from tests.geometry.geometry_samples import BATCHES, DTYPES, close, normal, rotations, similarities, transforms


def same_map(found: Sim3, true: Sim3, factor: float = 1.0) -> None:
    close(found.scale, true.scale, factor)
    close(found.rotation, true.rotation, factor)
    close(found.translation, true.translation, factor)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_exact_points_recover_the_exact_transform(batch: tuple[int, ...], dtype: torch.dtype) -> None:
    true, source = similarities(*batch, seed=1, dtype=dtype), normal(*batch, 10, 3, seed=4, dtype=dtype)
    found = align_points(source, true.apply(source))
    assert found.scale.dtype == dtype
    same_map(found, true, factor=50)


def test_three_points_and_coplanar_points_suffice() -> None:
    true = similarities(seed=5)
    for source in (normal(3, 3, seed=8), normal(20, 3, seed=9) * torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)):
        same_map(align_points(source, true.apply(source)), true, factor=100)


def test_alignment_without_scale_is_rigid() -> None:
    source = normal(10, 3, seed=10)
    true = Sim3(
        scale=torch.ones((), dtype=torch.float64), rotation=rotations(seed=11), translation=normal(3, seed=12)
    )
    same_map(align_points(source, true.apply(source), with_scale=False), true, factor=10)
    stretched = align_points(source, 2 * true.apply(source), with_scale=False)
    assert float(stretched.scale) == 1.0
    close(stretched.rotation, true.rotation, factor=10)


def test_alignment_of_noisy_points_agrees_with_evo() -> None:
    for seed in range(20):
        true, source = similarities(seed=seed), normal(30, 3, seed=seed + 100)
        target = true.apply(source) + 0.3 * normal(30, 3, seed=seed + 200)
        for with_scale in (True, False):
            rotation, translation, scale = umeyama_alignment(source.T.numpy(), target.T.numpy(), with_scale)
            found = align_points(source, target, with_scale=with_scale)
            np.testing.assert_allclose(found.rotation, rotation, atol=1e-9)
            np.testing.assert_allclose(found.translation, translation, atol=1e-9)
            np.testing.assert_allclose(found.scale, scale, atol=1e-9)


def test_integer_weights_equal_repeated_points() -> None:
    source, target = normal(12, 3, seed=13), normal(12, 3, seed=14)
    counts = torch.arange(12) % 4
    repeated = align_points(source.repeat_interleave(counts, 0), target.repeat_interleave(counts, 0))
    same_map(align_points(source, target, counts.to(torch.float64)), repeated, factor=50)
    same_map(align_points(source, target, 1e-6 * counts.to(torch.float64)), repeated, factor=50)


def test_a_reflected_target_yields_the_optimal_rotation() -> None:
    source = normal(50, 3, seed=15)
    target = source * torch.tensor([1.0, 1.0, -1.0], dtype=torch.float64)
    found = align_points(source, target)
    assert float(rotation_defect(found.rotation)) < 1e-12
    assert float(found.scale) > 0
    error = (found.apply(source) - target).square().sum()
    for seed in range(50):
        turn = matrix_from_rotation_vector(0.05 * normal(3, seed=seed))
        other = Sim3(scale=found.scale, rotation=turn @ found.rotation, translation=found.translation)
        assert float((other.apply(source) - target).square().sum()) >= float(error) - 1e-12


LINE = torch.linspace(-1, 1, 9, dtype=torch.float64)[:, None] * torch.tensor([0.3, -0.5, 0.8], dtype=torch.float64)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "source", [LINE + 2.0, torch.ones(5, 3, dtype=torch.float64), normal(2, 3, seed=16), normal(1, 3, seed=17)]
)
def test_collinear_and_coincident_points_are_refused(source: Tensor, dtype: torch.dtype) -> None:
    true = similarities(seed=18, dtype=dtype)
    given = source.to(dtype)
    with pytest.raises(DegenerateGeometryError, match="are collinear or coincide") as caught:
        align_points(given, true.apply(given))
    assert isinstance(caught.value, InputError)
    assert caught.value.hint


def test_weights_that_leave_collinear_or_no_points_are_refused() -> None:
    source = torch.cat([LINE, normal(2, 3, seed=19)])
    weights = torch.cat([torch.ones(9), torch.zeros(2)]).to(torch.float64)
    with pytest.raises(DegenerateGeometryError, match="are collinear"):
        align_points(source, source, weights)
    with pytest.raises(DegenerateGeometryError, match="no point has a positive weight"):
        align_points(source, source, 0 * weights)


@pytest.mark.parametrize("share", [0.0, 0.2, 0.45])
@pytest.mark.parametrize("with_scale", [True, False])
def test_robust_alignment_is_exact_with_outliers(share: float, with_scale: bool) -> None:
    for seed in range(5):
        true = similarities(seed=seed + 20)
        if not with_scale:
            true = Sim3(scale=torch.ones_like(true.scale), rotation=true.rotation, translation=true.translation)
        source = normal(200, 3, seed=seed + 30)
        target = true.apply(source)
        wrong = torch.arange(200) < share * 200
        size = float(true.scale)
        target[wrong] += size * (3 * normal(int(wrong.sum()), 3, seed=seed + 40) + 2)
        found, weights = align_points_robust(source, target, with_scale=with_scale)
        same_map(found, true, factor=1e6)
        assert float(weights[~wrong].min()) > 0.5
        if share:
            assert float(weights[wrong].median()) < 1e-6


def test_robust_alignment_tolerates_noise_and_outliers() -> None:
    for seed in range(5):
        true, source = similarities(seed=seed + 50), normal(400, 3, seed=seed + 60)
        size = float(true.scale)
        target = true.apply(source) + 0.01 * size * normal(400, 3, seed=seed + 70)
        wrong = torch.arange(400) < 180
        target[wrong] += size * (3 * normal(180, 3, seed=seed + 80) + 2)
        found, _ = align_points_robust(source, target)
        assert float(rotation_angle(found.rotation, true.rotation)) < 0.005
        assert abs(float(found.scale) / size - 1) < 0.005
        clean = align_points(source[~wrong], target[~wrong])
        assert float((found.apply(source) - clean.apply(source)).norm(dim=-1).max()) < 0.01 * size


def test_points_with_zero_prior_weight_are_ignored() -> None:
    true, source = similarities(seed=90), normal(40, 3, seed=93)
    target = true.apply(source)
    target[:30] += 5.0
    prior = (torch.arange(40) >= 30).to(torch.float64)
    found, weights = align_points_robust(source, target, prior)
    same_map(found, true, factor=1e3)
    assert float(weights[:30].max()) == 0.0


def test_robust_alignment_keeps_float32_and_refuses_collinear_points() -> None:
    true, source = similarities(seed=94, dtype=torch.float32), normal(60, 3, seed=97, dtype=torch.float32)
    found, weights = align_points_robust(source, true.apply(source))
    assert found.scale.dtype == weights.dtype == torch.float32
    same_map(found, true, factor=20)
    with pytest.raises(DegenerateGeometryError):
        align_points_robust(LINE, 2 * LINE)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [2, 3, 8])
def test_camera_alignment_recovers_an_exact_similarity(dtype: torch.dtype, count: int) -> None:
    true, cameras = similarities(seed=98, dtype=dtype), transforms(count, seed=101, dtype=dtype)
    same_map(align_cameras(cameras, true.apply_to_cameras(cameras)), true, factor=50)


def test_collinear_camera_centers_suffice() -> None:
    rotation = rotations(9, seed=102)
    cameras = rigid(rotation, -(rotation @ LINE[..., None])[..., 0])
    true = similarities(seed=103)
    same_map(align_cameras(cameras, true.apply_to_cameras(cameras)), true, factor=50)


def test_coincident_cameras_leave_the_scale_undetermined() -> None:
    rotation = rotations(4, seed=104)
    point = normal(3, seed=105)
    cameras = rigid(rotation, -(rotation @ point[:, None])[..., 0])
    true = Sim3(
        scale=torch.ones((), dtype=torch.float64), rotation=rotations(seed=106), translation=normal(3, seed=107)
    )
    moved = true.apply_to_cameras(cameras)
    for first, second in ((cameras, moved), (cameras[:1], moved[:1]), (cameras, transforms(4, seed=108))):
        with pytest.raises(DegenerateGeometryError, match="scale is undetermined"):
            align_cameras(first, second)
    same_map(align_cameras(cameras, moved, with_scale=False), true, factor=10)
    same_map(align_cameras(cameras[:1], moved[:1], with_scale=False), true, factor=10)


def test_swapping_the_cameras_inverts_the_transform_with_noise() -> None:
    first = transforms(6, seed=109)
    second = similarities(seed=110).apply_to_cameras(first) @ rigid(
        matrix_from_rotation_vector(0.05 * normal(6, 3, seed=111)), 0.1 * normal(6, 3, seed=112)
    )
    there, back = align_cameras(first, second), align_cameras(second, first)
    same_map(there @ back, Sim3.identity(), factor=50)
