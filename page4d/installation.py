"""Commands that install the optional parts of page4d."""

import shlex
import sys
from importlib import import_module
from importlib.util import find_spec

from page4d.errors import CapabilityError

EXTRAS = {
    "exr": ("OpenEXR>=3.3,<4",),
    "ray": ("ray>=2.52,<3",),
    "train": ("tensorboard>=2.14",),
    "usd": ("usd-core>=25.5,<27",),
    "viewer": ("viser>=1.1,<2",),
    "xarray": ("xarray>=2024.7",),
}
"""Packages of each optional part, as in pyproject.toml."""

_IMPORTED = {"exr": "OpenEXR", "usd": "pxr", "viewer": "viser", "xarray": "xarray"}
"""Module that an extra provides."""


def is_installed(extra: str) -> bool:
    """Return whether the module of an extra is found, without importing it."""
    try:
        return find_spec(_IMPORTED[extra]) is not None
    except ValueError:  # a module that is blocked, as None in sys.modules
        return False


def require_extra(extra: str, what: str) -> None:
    """Check that the packages of an extra can be imported; `what` needs them.

    Raises:
        CapabilityError: with the command that installs them.
    """
    try:
        import_module(_IMPORTED[extra])
    except (ImportError, OSError) as error:
        package = EXTRAS[extra][0].split(">")[0]
        is_missing = isinstance(error, ImportError) and error.name == _IMPORTED[extra]
        reason = "" if is_missing else f": {error}"
        found = f"{what} needs {package}, which cannot be imported{reason}"
        raise CapabilityError(found, install_command(extra)) from error


def install_command(extra: str) -> str:
    """Return the shell command that installs an extra such as `ray` for the running Python, from any folder.

    It names the packages, as page4d itself is on no package index.
    """
    return pip_install(*EXTRAS[extra])


def pip_install(*words: str) -> str:
    """Return the shell command by which pip installs packages for the running Python."""
    return " ".join(map(shlex.quote, (sys.executable or "python3", "-m", "pip", "install", *words)))
