"""Semi-global aggregation: exact on single rows, symmetric in rows and columns."""

from itertools import product
from subprocess import CalledProcessError
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from page4d.stereo import kernels
from page4d.stereo.sweep import aggregate_scores, aggregate_together


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
