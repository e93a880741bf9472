"""Learned texture: parts of the public matcher that are computed in another way."""

import pytest
import torch

from page4d.rig.learned import cross_attention


def test_cross_attention_is_that_of_the_public_matcher() -> None:
    lightglue = pytest.importorskip("kornia.feature.lightglue", reason="kornia is not installed")
    torch.manual_seed(0)
    block = lightglue.CrossBlock(64, 4).eval()
    first, second = torch.randn(2, 50, 64), torch.randn(2, 70, 64)
    with torch.inference_mode():
        for found, expected in zip(cross_attention(block, first, second), block(first, second), strict=True):
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
