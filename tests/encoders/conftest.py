"""What the tests of encoders share: the same random numbers every time."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _repeatable() -> None:
    torch.manual_seed(0)
