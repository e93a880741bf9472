"""Open3D where it can be loaded, and what to install where it cannot.

Open3D needs system libraries that bare servers lack, and about two seconds to load, so nothing loads it before it is
asked for, and no file of the output contract depends on it.
"""

import importlib
import re
from functools import cache
from types import ModuleType
from typing import Any

from page4d.errors import CapabilityError
from page4d.export.ply import PointCloud

SYSTEM_PACKAGES = "sudo apt-get install libusb-1.0-0 libegl1 libgl1"
"""What Open3D 0.20 needs beside its wheel on Debian and Ubuntu."""


@cache
def load_open3d() -> tuple[ModuleType | None, str, str]:
    """Import Open3D once; return the module or None, what was found, and how to mend it."""
    try:
        return importlib.import_module("open3d"), "", ""
    except ModuleNotFoundError as error:
        if error.name != "open3d":
            return (
                None,
                f"Open3D cannot start: the Python package {error.name} is missing",
                f"pip install {error.name}",
            )
        return None, "Open3D is not installed", "pip install 'page4d[open3d]'"
    except (ImportError, OSError) as error:
        library = re.match(r"([\w.+-]+\.so[\w.]*): cannot open shared object file", str(error))
        if library is None:
            return None, f"Open3D cannot start: {error}", "pip install --force-reinstall open3d"
        return None, f"Open3D cannot start: system library {library[1]} is missing", SYSTEM_PACKAGES


def open3d_or_none() -> ModuleType | None:
    """Return Open3D, or None where it cannot be loaded; `load_open3d` says why."""
    return load_open3d()[0]


def require_open3d() -> ModuleType:
    """Return Open3D.

    Raises:
        CapabilityError: if it cannot be loaded; the hint is the line that mends it.
    """
    module, message, hint = load_open3d()
    if module is None:
        raise CapabilityError(message, hint)
    return module


def open3d_cloud(cloud: PointCloud) -> Any:
    """Convert to `open3d.t.geometry.PointCloud` with the same attributes, in the order of the PLY contract.

    Raises:
        CapabilityError: if Open3D cannot be loaded.
    """
    open3d = require_open3d()
    tensor = open3d.core.Tensor
    converted = open3d.t.geometry.PointCloud(tensor(cloud.xyz))
    converted.point.colors = tensor(cloud.rgb)
    converted.point.confidence = tensor(cloud.confidence[:, None])
    converted.point.view = tensor(cloud.view[:, None])
    converted.point.dynamic = tensor(cloud.dynamic[:, None])
    return converted
