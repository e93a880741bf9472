"""What every test shares: one torch thread, so that tests side by side do not fight for cores; a cache apart."""

import os
from collections.abc import Iterator

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _cache_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep measurements out of the user's cache, and let them be short."""
    from page4d.inference import probe

    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(os.environ, "XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patched.setattr(probe, "LONGEST_PROBE_S", 0.0)
        yield
