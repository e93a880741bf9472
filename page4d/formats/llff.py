"""`poses_bounds.npy` of LLFF and the Neural 3D Video data set, read and written: poses, focal lengths, depth bounds.

Source: README of LLFF, "Using your own poses without running COLMAP".
"""

import io
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray

from page4d.conventions import Scale
from page4d.formats.build import check_size, make_camera, pinhole, pose_matrix
from page4d.formats.camera_model import Calibration
from page4d.formats.files import check_count, error_context, unreadable
from page4d.geometry.transforms import invert_rigid

_COLUMNS = 17


def encode(
    camera_to_world: Float[NDArray[np.float64], "V 4 4"],
    lenses: Float[NDArray[np.float64], "V 3"],
    bounds: Float[NDArray[np.float64], "V 2"],
) -> bytes:
    """Return the file for cameras with OpenCV axes and (height, width, focal length) in px.

    A row is the 3x5 matrix of the columns down, right, backwards, centre, (height, width, focal length), row by row,
    then near and far.
    """
    rotation, centers = camera_to_world[:, :3, :3], camera_to_world[:, :3, 3]
    columns = [rotation[..., 1], rotation[..., 0], -rotation[..., 2], centers, lenses]
    rows = np.concatenate([np.stack(columns, axis=-1).reshape(len(centers), 15), bounds], axis=1)
    buffer = io.BytesIO()
    np.save(buffer, rows, allow_pickle=False)
    return buffer.getvalue()


def read(path: Path, content: NDArray[np.float64]) -> Calibration:
    """Read the array; its rows name no cameras, and the principal point is the centre of the image."""
    if content.ndim != 2 or content.shape[1] != _COLUMNS or content.dtype.kind not in "fiu":
        raise unreadable(path, f"its shape is {content.shape}, expected (views, {_COLUMNS})")
    check_count(path, len(content))
    cameras = []
    for number, row in enumerate(content, start=1):
        matrix = torch.from_numpy(row[:15].astype(np.float64).reshape(3, 5))
        down, right, backwards, center, (height, width, focal) = matrix.unbind(-1)
        sides = [float(height), float(width)]
        with error_context(path.name, str(number)):
            check_size(*sides)
        is_whole = all(side == int(side) for side in sides)
        cameras.append(
            make_camera(
                path.name,
                str(number),
                intrinsics=pinhole(float(focal), float(focal), sides[1] / 2, sides[0] / 2),
                world_to_camera=invert_rigid(
                    pose_matrix(torch.stack([right, down, -backwards], dim=-1), center.tolist())
                ),
                image_size=(int(sides[0]), int(sides[1])) if is_whole else None,
            )
        )
    return Calibration(path=path, scale=Scale.ARBITRARY, cameras=tuple(cameras), unnamed=True)
