"""One torch thread per test process, and a cache apart from the user's."""

import os
from collections.abc import Iterator

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _separate_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep measurements out of the user's cache, and keep them short."""
    from page4d.inference import network_cost

    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(os.environ, "XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patched.setattr(network_cost, "MAX_PROBE_S", 0.0)
        yield
