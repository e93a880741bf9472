"""One thread per test process, no waiting for disks, Ctrl-C as in a terminal, and a cache apart from the user's."""

import gc
import importlib
import multiprocessing
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from tests.forks import CONTEXT

if TYPE_CHECKING:
    from tests.weights.hub_server import HubServer

# Threads of parallel test processes, and of those that they start, compete for the same cores. Results depend on the
# number of threads in the last digits. Not by functions of torch and OpenCV: the process that distributes tests needs
# neither, and the others wait for its imports. NumPy is not imported before: `-p no:jaxtyping` in pyproject.toml.
os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENCV_FOR_THREADS_NUM"), "1")

# No test cuts the power; waiting for the disk takes longer than most writes.
os.fsync = lambda _: None

# Where bytecode is not written, every process that tests start compiles page4d anew, and every run all tests.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Kernels are compiled once per checkout.
os.environ.setdefault("NUMBA_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "kernels"))

gc.disable()  # while tests are collected: imports make little garbage, and every collection visits them all

for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        # Shells and nohup start background jobs so, and processes that tests interrupt would inherit it.
        signal.signal(number, handler)


def pytest_collection_finish() -> None:
    """Leave imported modules and collected tests out of garbage collections, which the library calls for."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)
    gc.enable()


@pytest.fixture(scope="module", autouse=True)
def _later_imports() -> Iterator[None]:
    """Leave modules that tests of a file imported, and what else they keep, out of garbage collections, too."""
    yield
    gc.collect(1)
    gc.freeze()


@pytest.fixture(scope="module")
def constant_forecast() -> Iterator[None]:
    """Forecast the same memory and work for every network: forecasts take as long as small runs."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("page4d.run.memory._forward_cost", lambda *_: (10**7, 10**9))
        yield


@pytest.fixture(scope="module")
def few_steps() -> Iterator[None]:
    """Adjust and align cameras in few steps, where the result is not compared with the truth."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("page4d.geometry.alignment._MAX_ITERATIONS", 10)
        patched.setattr("page4d.stereo.bundle_adjustment._NUM_KERNELS", 2)
        patched.setattr("page4d.stereo.bundle_adjustment._CONTINUED_KERNELS", (3.0, 0.5, 2))
        patched.setattr("page4d.stereo.bundle_adjustment._STEPS_PER_KERNEL", 1)
        yield


@pytest.fixture(scope="session", autouse=True)
def _separate_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep measurements out of the user's cache, and keep them, the pictures and the videos of previews small."""
    from page4d.output.preview import cloud
    from page4d.run import memory as network_cost

    with pytest.MonkeyPatch.context() as patched:
        # Processes of pytest-xdist share the folder above their own, and so the measurements.
        base = tmp_path_factory.getbasetemp()
        folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "cache"
        patched.setitem(os.environ, "XDG_CACHE_HOME", str(folder))
        patched.setattr(network_cost, "_COUNTING_OVERHEAD_S", 0.0)
        patched.setattr(cloud, "NUM_FRAMES", 4)
        patched.setattr(cloud, "SUPERSAMPLING", 1)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all examples of a fuzz test share."""
    return tmp_path_factory.mktemp("shared")


@pytest.fixture
def forked_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork processes of the library that are spawned elsewhere."""
    import torch.multiprocessing

    for module in (multiprocessing, torch.multiprocessing):
        monkeypatch.setattr(module, "get_context", lambda _: CONTEXT)


@pytest.fixture
def file_size_limit() -> Callable[[int], AbstractContextManager[None]]:
    """Return a context in which this process writes no file beyond a number of bytes, as on a full disk."""

    @contextmanager
    def limited(num_bytes: int) -> Iterator[None]:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
        sys.dont_write_bytecode = (
            True  # Python would keep, and fail to read, the cut bytecode of modules imported here
        )
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            sys.dont_write_bytecode = False

    return limited


@pytest.fixture
def open3d() -> ModuleType:
    """Open3D; the test is skipped where it cannot be loaded."""
    from page4d.installation import load_open3d

    module, reason, _ = load_open3d()
    if module is None:
        pytest.skip(reason)
    return module


@pytest.fixture
def without_open3d(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make the import of Open3D fail, as on a machine without libEGL."""
    from page4d.installation import load_open3d

    import_module = importlib.import_module

    def fail(name: str, package: str | None = None) -> ModuleType:
        if name == "open3d":
            raise ImportError("libEGL.so.1: cannot open shared object file: No such file or directory")
        return import_module(name, package)

    monkeypatch.setattr(importlib, "import_module", fail)
    load_open3d.cache_clear()
    yield
    load_open3d.cache_clear()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator["HubServer"]:
    """A hub on this machine, empty caches, and no other host that can be reached."""
    from huggingface_hub import constants

    from tests.weights.hub_server import refuse_other_hosts, running_hub

    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with running_hub() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.address)
        template = server.address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        refuse_other_hosts(monkeypatch, server.server_port)
        yield server
