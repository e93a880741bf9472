"""Sweep around given depth, and semi-global aggregation: pictures correct depth, where they show something."""

from dataclasses import replace
from itertools import product
from subprocess import CalledProcessError
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from page4d.geometry.camera import Cameras, camera_rays
from page4d.geometry.warp import ray_warp, viewing_angles
from page4d.lab.synthetic.capture import SceneRequest, sample_truth
from page4d.records import GroundTruth
from page4d.stereo import kernels
from page4d.stereo.sweep import aggregate_scores, aggregate_together, correlate, sweep_around

SIZE = (72, 96)
WHOLE = (slice(0, SIZE[0]), slice(0, SIZE[1]))
ERROR = 0.1
"""Of log depth: some two pixels in the neighbouring views."""


@pytest.fixture(scope="module")
def truth() -> GroundTruth:
    return sample_truth(
        [4],
        SceneRequest(
            num_times=1, num_views=3, image_size=SIZE, spacing_deg=(12, 13), outdoor_probability=0, photometric=False
        ),
    )


def rig(truth: GroundTruth) -> Cameras:
    return truth.cameras[0, 0].to(torch.float64)


def swept(
    truth: GroundTruth, log_depth: Tensor, region: tuple[slice, slice] = WHOLE, images: Tensor | None = None
) -> Tensor:
    pictures = list(truth.images[0, 0] if images is None else images)
    known = torch.ones_like(log_depth, dtype=torch.bool)
    return sweep_around(log_depth, known, pictures, rig(truth), 1, region, 5)


@pytest.mark.parametrize("sign", [-1, 1])
def test_pictures_correct_depth_by_pixels(truth: GroundTruth, sign: int) -> None:
    true = truth.depth[0, 0, 1].log()
    error = (swept(truth, true + sign * ERROR) - true).abs()
    assert error.median() < 0.35 * ERROR
    assert (error < 0.5 * ERROR).float().mean() > 0.65


def test_true_depth_stays(truth: GroundTruth) -> None:
    true = truth.depth[0, 0, 1].log()
    assert (swept(truth, true) - true).abs().median() < 0.006


def test_a_region_is_corrected_like_the_whole_picture(truth: GroundTruth) -> None:
    true = truth.depth[0, 0, 1].log()
    region = (slice(20, 60), slice(30, 80))
    part = swept(truth, (true + ERROR)[region], region)
    whole = swept(truth, true + ERROR)[region]
    inner = (slice(8, -8), slice(8, -8))
    assert (part - whole)[inner].abs().median() < 1e-3


def test_pictures_without_texture_change_nothing(truth: GroundTruth) -> None:
    log_depth = truth.depth[0, 0, 1].log()
    found = swept(truth, log_depth, images=torch.full_like(truth.images[0, 0], 0.4))
    torch.testing.assert_close(found, log_depth, atol=1e-5, rtol=0)


def test_pixels_that_others_see_at_large_angles_keep_their_depth() -> None:
    apart = sample_truth([3], SceneRequest(num_times=1, num_views=2, image_size=SIZE, spacing_deg=(55, 56)))
    depth, cameras = apart.depth[0, 0, 0].clamp(min=0.1), rig(apart)
    known = apart.depth[0, 0, 0] > 0
    found = sweep_around(depth.log(), known, list(apart.images[0, 0]), cameras, 0, WHOLE, 5)
    at_large = viewing_angles(depth, cameras[0], cameras[1]) > 50
    moved = (found - depth.log()).abs()
    assert float(at_large.float().mean()) > 0.2
    assert float(moved[at_large].mean()) < 0.6 * float(moved[~at_large].mean())


def test_the_speed_of_projections_is_their_derivative(truth: GroundTruth) -> None:
    cameras, depth = rig(truth), truth.depth[0, 0, 1].double()
    warp = ray_warp(camera_rays(cameras[1].intrinsics, SIZE), cameras[1], cameras[2])
    speed = warp.pixels_per_log_depth(depth, SIZE)
    step = 1e-5
    moved = (warp.at(depth * (1 + step), 1e-6).pixels - warp.at(depth * (1 - step), 1e-6).pixels).norm(dim=-1)
    seen = speed > 0
    assert float(seen.float().mean()) > 0.3
    torch.testing.assert_close(speed[seen], (moved / (2 * step))[seen], rtol=1e-4, atol=1e-3)


def test_the_views_that_see_most_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of five other views four, without the one that sees a corner."""
    many = sample_truth([4], SceneRequest(num_times=1, num_views=6, image_size=SIZE, spacing_deg=(4, 5)))
    cameras = rig(many)
    narrow = cameras.intrinsics.clone()
    narrow[2, :2, 2] -= 60
    cameras = replace(cameras, intrinsics=narrow)
    compared = []

    def correlated(*given):
        compared.append(given[3].intrinsics[0])
        return correlate(*given)

    monkeypatch.setattr("page4d.stereo.sweep.correlate", correlated)
    true = many.depth[0, 0, 1].clamp(min=1.0).log()
    known = torch.ones_like(true, dtype=torch.bool)
    found = sweep_around(true + ERROR, known, list(many.images[0, 0]), cameras, 1, WHOLE, 5)
    expected = [view for view in range(6) if view not in (1, 2)]
    assert len(compared) == len(expected)
    assert all(torch.equal(one, cameras.intrinsics[view]) for one, view in zip(compared, expected, strict=True))
    assert (found - true).abs().median() < 0.8 * ERROR


def pairwise_penalty(count: int, penalty: float, max_penalty: float) -> Tensor:
    label = torch.arange(count, dtype=torch.float64)
    return (penalty * (label[:, None] - label).abs()).clamp(max=max_penalty)


def exhaustive_max_marginals(score: Tensor, penalty: Tensor) -> Tensor:
    """Return, for every place and label, the best score of a row with this label there, over all labelings."""
    length, count = score.shape
    best = torch.full_like(score, -torch.inf)
    for labels in product(range(count), repeat=length):
        total = sum(score[place, label] for place, label in enumerate(labels))
        total = total - sum(penalty[a, b] for a, b in zip(labels, labels[1:], strict=False))
        for place, label in enumerate(labels):
            best[place, label] = torch.maximum(best[place, label], total)
    return best


@pytest.mark.parametrize("count", [2, 4, 7])
@pytest.mark.parametrize(("penalty", "max_penalty"), [(0.4, 9.0), (0.4, 1.0), (0.5, 0.4), (0.0, 2.0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])  # kernels compute in float32, if Numba is installed
def test_a_single_row_is_solved_exactly(count: int, penalty: float, max_penalty: float, dtype: torch.dtype):
    torch.manual_seed(0)
    score = 2 * torch.randn(4, count, dtype=dtype)
    expected = exhaustive_max_marginals(score, pairwise_penalty(count, penalty, max_penalty))
    row = aggregate_scores(score.T[None, None], penalty, max_penalty)[0, 0].T
    column = aggregate_scores(score[None, :, :, None], penalty, max_penalty)[0, :, :, 0]
    for found in (row, column):
        torch.testing.assert_close(found - found.amax(-1, keepdim=True), expected - expected.amax(-1, keepdim=True))


def test_rows_and_columns_are_treated_equally():
    torch.manual_seed(1)
    score = torch.randn(2, 4, 5, 6).double()
    transposed = aggregate_scores(score.transpose(1, 3), 0.3, 1.0).transpose(1, 3)
    torch.testing.assert_close(transposed, aggregate_scores(score, 0.3, 1.0))


def test_pixels_without_evidence_follow_their_neighbours():
    score = torch.zeros(1, 3, 7, 3).double()
    score[:, :, 5] = 2.0
    score[0, 1, :, 1] = 0.0
    assert aggregate_scores(score, 0.0, 3.0)[0, 1, :, 1].eq(0).all()
    assert int(aggregate_scores(score, 0.5, 3.0)[0, 1, :, 1].argmax()) == 5


def test_images_of_different_sizes_are_aggregated_together_as_one_by_one(monkeypatch: pytest.MonkeyPatch):
    torch.manual_seed(0)
    scores = [torch.randn(height, 9, width) for height, width in ((5, 7), (8, 3), (1, 1), (6, 7))]
    alone = [aggregate_scores(score[None], 0.2, 1.0)[0] for score in scores]
    torch.testing.assert_close(aggregate_together(scores, 0.2, 1.0), alone)
    monkeypatch.setattr("page4d.stereo.sweep._MAX_TOGETHER", 2 * 8 * 7 * 9)
    torch.testing.assert_close(aggregate_together(scores, 0.2, 1.0), alone)
    assert aggregate_together([], 0.2, 1.0) == []


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("size", [(2, 7, 5, 9), (1, 96, 33, 64), (1, 5, 69, 130), (1, 3, 1, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_kernel_of_a_gpu_aggregates_as_the_cpu(size: tuple[int, ...], dtype: torch.dtype):
    score = 3 * torch.randn(size, dtype=dtype)
    assert kernels.of_gpu(torch.device("cuda")) is not None
    found = aggregate_scores(score.cuda(), 0.3, 2.0).cpu()
    torch.testing.assert_close(found, aggregate_scores(score, 0.3, 2.0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "error", [ImportError(), RuntimeError("Failed to find C compiler."), CalledProcessError(1, "gcc"), None]
)
def test_pytorch_aggregates_on_a_gpu_without_a_compiler(error: Exception | None, monkeypatch: pytest.MonkeyPatch):
    module = SimpleNamespace(aggregate=Mock(side_effect=error))
    monkeypatch.setattr(kernels, "import_module", lambda _: module)
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: None)
    assert kernels.of_gpu.__wrapped__(torch.device("cuda")) is (None if error else module)
