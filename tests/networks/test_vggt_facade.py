"""The VGGT-style constructor: the usage example of the specification, and its switches."""

from dataclasses import replace

import pytest
import torch

from page4d.choices import SparseStrategy
from page4d.errors import UsageError
from page4d.networks.config_parts import SparseConfig, Streams
from page4d.networks.presets import PRESETS
from page4d.networks.vggt import VGGT


def test_the_example_builds_the_large_network() -> None:
    with torch.device("meta"):
        model = VGGT(
            img_size=518,
            patch_size=14,
            embed_dim=1024,
            enable_camera=True,
            enable_point=True,
            enable_depth=True,
            enable_dual_stream=True,
            enable_sparse_global=True,
            sparse_global_layers=[23, 24],
            sparse_strategy="landmark",
        )
    assert model.config == replace(PRESETS["mv-large"], sparse=SparseConfig(layers=(22, 23)))
    assert set(model.aggregator.sparse.layers) == {"22", "23"}


@pytest.mark.parametrize("strategy", list(SparseStrategy))
def test_a_small_example_runs(strategy: str) -> None:
    torch.manual_seed(0)
    model = VGGT(img_size=28, embed_dim=64, enable_sparse_global=True, sparse_strategy=str(strategy))
    images = torch.randn(1, 3, 2, 3, 28, 28)
    with torch.no_grad():
        predictions = model(images)
    assert predictions.pose_encoding.shape == (1, 3, 2, 9)
    assert predictions.world_to_camera.shape == (1, 3, 2, 4, 4)
    assert predictions.depth.shape == predictions.depth_confidence.shape == (1, 3, 2, 28, 28)
    assert predictions.points.shape == (1, 3, 2, 28, 28, 3)
    assert predictions.dynamic.shape == (1, 3, 2, 28, 28)
    assert predictions.points.isfinite().all()
    assert (predictions.memory is not None) == (strategy is SparseStrategy.MEMORY)


def test_switches_leave_out_heads_and_streams() -> None:
    with torch.device("meta"):
        model = VGGT(embed_dim=64, enable_camera=False, enable_point=False, enable_dual_stream=False)
    assert model.camera_head is None
    assert model.point_head is None
    assert model.depth_head is not None
    assert model.aggregator.sparse is None
    assert model.config.mask.streams is Streams.SINGLE


@pytest.mark.parametrize(
    "change", [{"sparse_global_layers": [0]}, {"sparse_global_layers": [25]}, {"sparse_strategy": "none"}]
)
def test_invalid_switches_are_refused(change: dict) -> None:
    with pytest.raises(UsageError), torch.device("meta"):
        VGGT(embed_dim=64, enable_sparse_global=True, **change)
