"""Errors without a working Open3D, with the command that fixes them."""

import importlib
import sys
import threading
from collections.abc import Iterator
from types import ModuleType
from unittest.mock import Mock

import pytest

from page4d.errors import CapabilityError
from page4d.formats.open3d import open3d_cloud
from page4d.installation import (
    SYSTEM_PACKAGES,
    Deferred,
    load_open3d,
    open3d_or_none,
    pip_install,
    preload_open3d,
    require_open3d,
)
from tests.output.clouds import made_cloud


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    load_open3d.cache_clear()
    yield
    load_open3d.cache_clear()


FAILURES = [
    (
        ImportError("libusb-1.0.so.0: cannot open shared object file: No such file or directory"),
        "system library libusb-1.0.so.0 is missing",
        SYSTEM_PACKAGES,
    ),
    (OSError("libEGL.so.1: cannot open shared object file"), "library libEGL.so.1 is missing", SYSTEM_PACKAGES),
    (ImportError("bad symbol"), "cannot start: bad symbol", pip_install("--force-reinstall", "open3d")),
    (ModuleNotFoundError("no open3d", name="open3d"), "is not installed", pip_install("open3d")),
    (ModuleNotFoundError("No module named 'dash'", name="dash"), "package dash is missing", pip_install("dash")),
]


@pytest.mark.parametrize(("failure", "message", "hint"), FAILURES)
def test_every_failure_of_open3d_has_its_own_message_and_hint(
    monkeypatch: pytest.MonkeyPatch, failure: Exception, message: str, hint: str
) -> None:
    monkeypatch.setattr(importlib, "import_module", Mock(side_effect=failure))
    assert open3d_or_none() is None
    with pytest.raises(CapabilityError, match=message) as caught:
        require_open3d()
    assert caught.value.hint == hint
    assert caught.value.exit_code == 6
    with pytest.raises(CapabilityError):
        open3d_cloud(made_cloud(0))


def test_an_import_in_another_thread_does_not_stop_that_of_open3d(monkeypatch):
    found = [RuntimeError("dictionary changed size during iteration"), ModuleType("open3d")]

    def importing(_: str) -> ModuleType:
        each = found.pop(0)
        if isinstance(each, RuntimeError):
            raise each
        return each

    monkeypatch.setattr(importlib, "import_module", importing)
    assert load_open3d()[0] is not None


def test_a_deferred_module_is_imported_by_the_first_call_of_its_functions(monkeypatch, tmp_path):
    package = tmp_path / "deferring"
    package.mkdir()
    (package / "__init__.py").write_text("from .plots import plots, size\n")
    (package / "plots.py").write_text("def plots():\n    return 2\n\n\ndef size(a, *, b):\n    return a + b\n")
    monkeypatch.syspath_prepend(tmp_path)
    deferred = Deferred("deferring.plots")
    monkeypatch.setitem(sys.modules, "deferring.plots", deferred)
    deferring = importlib.import_module("deferring")
    assert sys.modules["deferring.plots"] is deferred
    assert not hasattr(deferred, "__path__")
    for _ in range(2):
        assert (deferring.size(1, b=2), deferring.plots()) == (3, 2)
    assert sys.modules["deferring.plots"].__file__ == str(package / "plots.py")


@pytest.mark.filterwarnings("error")
def test_a_failure_in_the_background_prints_nothing(monkeypatch):
    monkeypatch.setattr(importlib, "import_module", Mock(side_effect=MemoryError))
    preload_open3d()
    for thread in threading.enumerate():
        if thread.name == "open3d-import":
            thread.join()
    with pytest.raises(MemoryError):
        load_open3d()
