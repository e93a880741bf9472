"""Optional packages: whether they are installed, and the commands that install them.

Loading Open3D, with an error message and its fix where that fails.

Open3D needs system libraries that bare servers lack and takes about two seconds to load; a run loads it in the
background while the network loads.
"""

import importlib
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from threading import Thread
from types import ModuleType
from typing import Any, NamedTuple

from page4d.errors import CapabilityError


class Extra(NamedTuple):
    """An optional part: the requirement of its package as in pyproject.toml, its module, title, and what needs it."""

    requirement: str
    module: str
    title: str
    purpose: str

    @property
    def package(self) -> str:
        """Name of the package."""
        return self.requirement.partition(">")[0]


EXTRAS = {
    "ray": Extra("ray>=2.52,<3", "ray", "Ray", "--distributed"),
    "viewer": Extra("viser>=1.1,<2", "viser", "viewer", "page4d view"),
    "usd": Extra("usd-core>=25.5,<27", "pxr", "OpenUSD", "page4d export --format usd"),
    "exr": Extra("OpenEXR>=3.3,<4", "OpenEXR", "OpenEXR", "page4d export --format exr"),
    "xarray": Extra("xarray>=2024.7", "xarray", "xarray", "Output.to_xarray"),
}
"""The optional parts by name, in the order of `page4d doctor`."""


def is_installed(extra: str) -> bool:
    """Return whether the module of an extra is found, without importing it."""
    try:
        return find_spec(EXTRAS[extra].module) is not None
    except ValueError:  # a module that is blocked, as None in sys.modules
        return False


def require_extra(extra: str, what: str) -> None:
    """Check that the package of an extra can be imported; `what` needs them.

    Raises:
        CapabilityError: with the command that installs them.
    """
    try:
        import_module(EXTRAS[extra].module)
    except (ImportError, OSError) as error:
        is_missing = isinstance(error, ImportError) and error.name == EXTRAS[extra].module
        reason = "" if is_missing else f": {error}"
        found = f"{what} needs {EXTRAS[extra].package}, which cannot be imported{reason}"
        raise CapabilityError(found, install_command(extra)) from error


def install_command(extra: str) -> str:
    """Return the shell command that installs an extra such as `ray` for the running Python, from any folder.

    It names the package, as page4d itself is on no package index.
    """
    return pip_install(EXTRAS[extra].requirement)


def pip_install(*words: str) -> str:
    """Return the shell command by which pip installs packages for the running Python."""
    return " ".join(map(shlex.quote, (sys.executable or "python3", "-m", "pip", "install", *words)))


SYSTEM_PACKAGES = "sudo apt-get install libusb-1.0-0 libegl1 libgl1"
"""System packages of Debian and Ubuntu that Open3D 0.20 needs."""

_ATTEMPTS = 4


@cache
def load_open3d() -> tuple[ModuleType | None, str, str]:
    """Import Open3D once; return the module or None, the reason of the failure, and its fix."""
    try:
        return _imported(), "", ""
    except ModuleNotFoundError as error:
        if error.name != "open3d":
            return (
                None,
                f"Open3D cannot start: the Python package {error.name} is missing",
                pip_install(str(error.name)),
            )
        return None, "Open3D is not installed", pip_install("open3d")
    except (ImportError, OSError) as error:
        library = re.match(r"([\w.+-]+\.so[\w.]*): cannot open shared object file", str(error))
        if library is None:
            return None, f"Open3D cannot start: {error}", pip_install("--force-reinstall", "open3d")
        return None, f"Open3D cannot start: system library {library[1]} is missing", SYSTEM_PACKAGES


class Deferred(ModuleType):
    """Functions of a module that is imported when one of them is called."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*args: Any, **options: Any) -> Any:
            package, _, module = self.__name__.rpartition(".")
            if sys.modules.get(self.__name__) is self:
                function = getattr(sys.modules[package], module)  # of the same name; the import replaces it
                del sys.modules[self.__name__]
                import_module(self.__name__)
                setattr(sys.modules[package], module, function)
            return getattr(sys.modules[self.__name__], name)(*args, **options)

        return call


_PLOTLY = "open3d.visualization.draw_plotly"
"""Open3D's plots in a browser, which page4d does not draw: their packages take half of the time to load it."""


def _imported() -> ModuleType:
    """Import Open3D, again if another thread imported a module meanwhile: it iterates over `sys.modules`."""
    sys.modules.setdefault(_PLOTLY, Deferred(_PLOTLY))
    for _ in range(_ATTEMPTS):
        with suppress(RuntimeError):
            return importlib.import_module("open3d")
    return importlib.import_module("open3d")


def preload_open3d() -> None:
    """Start importing Open3D in a background thread; `load_open3d` waits for it."""
    Thread(target=_preload, name="open3d-import").start()


def _preload() -> None:
    with suppress(Exception):  # `load_open3d` fails again where Open3D is needed
        load_open3d()


def open3d_or_none() -> ModuleType | None:
    """Return Open3D, or None where it cannot be loaded; `load_open3d` returns the reason."""
    return load_open3d()[0]


def require_open3d(purpose: str = "") -> ModuleType:
    """Return Open3D; `purpose`, such as an option, is named in the error.

    Raises:
        CapabilityError: if it cannot be loaded; the hint is the command that fixes it.
    """
    module, message, hint = load_open3d()
    if module is None:
        raise CapabilityError(f"{purpose} needs Open3D: {message}" if purpose else message, hint)
    return module


@contextmanager
def quiet(open3d: ModuleType) -> Iterator[None]:
    """Suppress Open3D's messages on the terminal, except errors."""
    with open3d.utility.VerbosityContextManager(open3d.utility.VerbosityLevel.Error):
        yield
