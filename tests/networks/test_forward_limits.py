"""Default limits of a forward pass."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from page4d.networks.layers.execution import NO_LIMITS, ForwardLimits
from page4d.networks.limits import MAX_CPU_BYTES, default_limits, limits_within
from page4d.networks.network import build_network
from page4d.networks.presets import PRESETS
from page4d.networks.profile.meta import LiveBytes
from page4d.networks.profile.network import profile_network

PUBLISHED = [
    "vggt",
    "pi3x",
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("da3-giant", "vggt-omega", "mv-large")),
]


def side_of(name: str) -> int:
    """Return a multiple of the patch size near 518."""
    patch = PRESETS[name].patch_size
    return 518 // patch * patch


@pytest.mark.parametrize("name", PUBLISHED)
def test_memory_per_image_is_small_under_the_default_limits_of_a_cpu(name: str) -> None:
    config, size = PRESETS[name], (side_of(name),) * 2
    limits = limits_within(config, [size], MAX_CPU_BYTES)
    few, many = (profile_network(config, times=1, views=views, size=size, limits=limits) for views in (1, 2))
    per_image = many.computed_bytes - few.computed_bytes
    if per_image >= 70e6:
        assert per_image < 0.25 * profile_network(config, times=1, views=2, size=size).computed_bytes / 2
    # Besides what all images keep, a few layers at most are in memory.
    assert few.computed_bytes - per_image < 2.5 * MAX_CPU_BYTES


def test_limits_grow_with_the_memory_and_shrink_with_the_images() -> None:
    config = PRESETS["vggt"]
    small, large = (limits_within(config, [(518, 518)], size) for size in (256e6, 4e9))
    assert all(getattr(small, name) < getattr(large, name) for name in vars(small))
    assert limits_within(config, [(1036, 1036), (14, 14)], 4e9).max_images < large.max_images
    assert limits_within(config, [(5180, 5180)], 1.0).max_images == 1


def test_the_larger_of_a_network_and_its_metric_network_determines_the_limits() -> None:
    large, small, metric = (PRESETS[name] for name in ("da3-giant", "da3-small", "da3-metric"))
    for own, expected in ((large, large), (small, metric)):
        found = limits_within(replace(own, metric_network=metric), [(504, 504)], 1e9)
        assert found == limits_within(expected, [(504, 504)], 1e9)


def test_the_meta_device_has_no_limits() -> None:
    assert default_limits(PRESETS["vggt"], [(518, 518)], torch.device("meta")) is NO_LIMITS


def test_networks_apply_default_limits_where_no_gradient_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    network = build_network(PRESETS["mv-tiny"]).eval()
    images = torch.rand(1, 2, 4, 3, 56, 56)
    asked = []

    def one_image(*_: object) -> ForwardLimits:
        asked.append(1)
        return ForwardLimits(max_images=1, max_tokens=1, max_queries=16)

    def run(limits: ForwardLimits | None) -> tuple[Tensor, int]:
        with torch.no_grad(), LiveBytes() as counted:
            depth = network(images, limits=limits).depth
        return depth, counted.peak

    whole, peak = run(NO_LIMITS)
    monkeypatch.setattr("page4d.networks.network.default_limits", one_image)
    limited, smaller = run(None)
    assert asked
    torch.testing.assert_close(limited, whole)
    assert smaller < peak
    asked.clear()
    network(images)  # all activations are kept for the gradient
    assert not asked
    network.requires_grad_(False)(images)
    assert asked
