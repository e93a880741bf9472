"""Point clouds as the readers of 4D Gaussian trainers expect them.

Source: `fetchPly` and `storePly` of 3D Gaussian Splatting, which 4DGaussians and 4D Gaussian splatting (Fudan) share.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from page4d.errors import ShapeError
from page4d.output.ply import encode_header

_TYPES = {"float": "<f4", "uchar": "u1"}


def encode_trainer_ply(xyz: NDArray[Any], rgb: NDArray[np.uint8], time: NDArray[Any] | None = None) -> bytes:
    """Return a PLY file of points [N, 3] with colours [N, 3] and, optionally, times [N].

    The normals, which readers demand and do not use, are 0. A point takes 27 bytes, or 31 with a time.

    Raises:
        ShapeError: if the arrays are not of one length, or the colours are not bytes.
    """
    count = len(xyz)
    if xyz.shape != (count, 3) or rgb.shape != (count, 3) or rgb.dtype != np.uint8:
        raise ShapeError(f"points {xyz.shape} with colours {rgb.dtype} {rgb.shape}", f"give uint8 ({count}, 3)")
    columns = {name: ("float", xyz[:, axis]) for axis, name in enumerate("xyz")}
    columns |= {name: ("float", np.zeros(count)) for name in ("nx", "ny", "nz")}
    columns |= {name: ("uchar", rgb[:, axis]) for axis, name in enumerate(("red", "green", "blue"))}
    if time is not None:
        if time.shape != (count,):
            raise ShapeError(f"{count} points with times {time.shape}", f"give ({count},)")
        columns["time"] = ("float", time)
    vertices = np.empty(count, dtype=[(name, _TYPES[kind]) for name, (kind, _) in columns.items()])
    for name, (_, values) in columns.items():
        vertices[name] = values
    return encode_header(count, ((name, kind) for name, (kind, _) in columns.items())) + vertices.tobytes()
