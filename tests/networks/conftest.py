"""Golden tensors and configurations of networks."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
from torch import Tensor

from page4d.networks.config import NetworkConfig
from page4d.networks.network import ViewTimeNetwork
from page4d.networks.presets import PRESETS
from tests.encoders.recorded import Recorded, assert_recorded, load_recorded
from tests.networks.small_networks import randomized_network


@pytest.fixture(scope="session")
def tiny() -> NetworkConfig:
    return PRESETS["mv-tiny"]


@pytest.fixture(scope="session")
def randomized() -> Callable[..., ViewTimeNetwork]:
    def build(seed: int = 0, **changes: object) -> ViewTimeNetwork:
        return randomized_network(replace(PRESETS["mv-tiny"], **changes), seed)

    return build


@pytest.fixture(scope="session")
def golden() -> Callable[[str], Recorded]:
    return partial(load_recorded, kind=".")


@pytest.fixture(scope="session")
def agrees() -> Callable[[Tensor, Tensor], None]:
    return assert_recorded
