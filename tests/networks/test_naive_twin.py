"""The aggregator equals its slow reference."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from page4d.networks.config import FRAME_GLOBAL, Step
from page4d.networks.config_parts import BiasRows, MaskConfig, MaskHeadKind, MaskRule, Streams
from page4d.networks.layers.execution import ForwardLimits
from page4d.networks.presets import PRESETS
from page4d.networks.tokens import Stream
from page4d.networks.trunk import Aggregator
from tests.networks.naive_twin import naive_trunk, run_trunk

GRID = (2, 3)
MASK = MaskConfig(layers=(1, 2))
RELEASE = replace(
    MASK, head=MaskHeadKind.RELEASE, rule=MaskRule.PAGE4D, streams=Streams.SINGLE, bias_rows=BiasRows.SPECIAL
)
TRUNKS = {
    "time, view; two streams": {"mask": MASK},
    "view, time; two streams": {"mask": MASK, "schedule": (Step.VIEW, Step.TIME)},
    "time, view; special rows": {"mask": replace(MASK, bias_rows=BiasRows.SPECIAL)},
    "time, view; one stream": {"mask": replace(MASK, streams=Streams.SINGLE)},
    "frame, global; two streams": {"mask": MASK, "schedule": FRAME_GLOBAL},
    "frame, global; PAGE-4D": {"mask": RELEASE, "schedule": FRAME_GLOBAL},
    "frame, global; no mask": {"mask": None, "schedule": FRAME_GLOBAL},
}


def trunk_of(randomized: Callable, **changes: object) -> Aggregator:
    aggregator = randomized(**changes).aggregator.requires_grad_(False)
    if changes["mask"] is not None and changes["mask"].rule is MaskRule.LAMBDA:
        for number, parameter in enumerate(aggregator.mask_bias.parameters()):
            parameter.fill_(1.0 + number / 2)
    return aggregator


def inputs(batch: int = 2, times: int = 3, views: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    patches = torch.randn(batch, times, views, 6, 32, generator=generator, dtype=torch.float64)
    return patches, torch.randn(batch, times, views, *GRID, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(
    "limits", [ForwardLimits(), ForwardLimits(max_tokens=1), ForwardLimits(max_tokens=30, max_queries=7)], ids=str
)
@pytest.mark.parametrize("name", list(TRUNKS))
def test_all_layers_of_both_streams_are_equal(randomized: Callable, name: str, limits: ForwardLimits) -> None:
    aggregator = trunk_of(randomized, **TRUNKS[name])
    patches, external = inputs()
    external = None if TRUNKS[name]["mask"] is None else external
    ours = run_trunk(aggregator, patches, GRID, external, limits=limits)
    naive = naive_trunk(aggregator, patches, GRID, external)
    scale = max(level.abs().max() for levels in naive.values() for level in levels)
    shared = naive.get(Stream.SHARED)
    for layer, level in ours.levels.items():
        theirs = (shared or naive[Stream.GEOMETRY])[layer]
        torch.testing.assert_close(level / scale, theirs / scale, rtol=0, atol=1e-12)
    poses = (shared or naive[Stream.POSE])[-1][..., 0, :]
    torch.testing.assert_close(ours.special_tokens[..., 0, :] / scale, poses / scale, rtol=0, atol=1e-12)
    if shared is None:
        assert (naive[Stream.POSE][-1] - naive[Stream.GEOMETRY][-1]).abs().max() > 1e-3 * scale
    assert set(ours.levels) == set(range(PRESETS["mv-tiny"].depth))
