"""The cameras of a whole capture at original pixels, and their three files."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

import page4d
from page4d.conventions import DESCRIPTION, INTEGER_PIXEL_CENTER, PIXEL_CENTER, Scale
from page4d.errors import InputError, OutputError, Page4DError, ShapeError
from page4d.formats.camera_model import ROTATION_TOLERANCE
from page4d.formats.open3d import write_trajectory
from page4d.geometry.camera import move_pixel_center
from page4d.geometry.rotation import quaternion_from_matrix, rotation_defect, xyzw_from_wxyz
from page4d.geometry.transforms import invert_rigid
from page4d.io.atomic import WrittenFile, write_bytes_atomic
from page4d.io.json_records import FileModel, format_json, read_model, readable
from page4d.output.layout import OutputLayout
from page4d.records import Predictions

Matrix = list[list[float]]


@dataclass(frozen=True, kw_only=True)
class CaptureCameras:
    """Cameras of T instants and V views in double precision; `intrinsics` belong to the original images.

    `image_sizes` are the original (height, width) of every view; `times` are seconds on the common clock.
    """

    times: Float[Tensor, " T"]
    view_names: tuple[str, ...]
    image_sizes: tuple[tuple[int, int], ...]
    world_to_camera: Float[Tensor, "T V 4 4"]
    intrinsics: Float[Tensor, "T V 3 3"]
    scale: Scale

    def __post_init__(self) -> None:
        axes = (len(self.times), len(self.view_names))
        for name, size in (("world_to_camera", 4), ("intrinsics", 3)):
            value: Tensor = getattr(self, name)
            if tuple(value.shape) != (*axes, size, size) or value.dtype != torch.float64:
                raise ShapeError(
                    f"capture cameras: {name} is {value.dtype} {tuple(value.shape)}",
                    f"give float64 {(*axes, size, size)}",
                )
        if len(self.image_sizes) != axes[1]:
            raise ShapeError(f"{len(self.image_sizes)} image sizes for {axes[1]} views", "give one per view")


def capture_cameras(parts: Iterable[Predictions]) -> CaptureCameras:
    """Collect the cameras of consecutive stretches of one capture, carried back to the original images.

    Raises:
        OutputError: if a camera is not finite.
    """
    times, poses, intrinsics = [], [], []
    last = None
    for part in parts:
        check_finite(part)
        last = part
        times.append(part.times.detach().cpu().double())
        poses.append(part.cameras.world_to_camera[0].detach().cpu().double())
        at_network = part.cameras.intrinsics[0].detach().cpu().double()
        views = [
            transform.intrinsics_to_original(at_network[:, view])
            for view, transform in enumerate(part.pixel_transforms)
        ]
        intrinsics.append(torch.stack(views, dim=1))
    if last is None:
        raise ShapeError("no predictions to take cameras from", "give at least one instant")
    return CaptureCameras(
        times=torch.cat(times),
        view_names=last.view_names,
        image_sizes=tuple(transform.original_size for transform in last.pixel_transforms),
        world_to_camera=torch.cat(poses),
        intrinsics=torch.cat(intrinsics),
        scale=last.scale,
    )


def join_cameras(parts: Sequence[CaptureCameras]) -> CaptureCameras:
    """Concatenate the cameras of consecutive parts of one capture."""
    return replace(
        parts[0],
        times=torch.cat([part.times for part in parts]),
        world_to_camera=torch.cat([part.world_to_camera for part in parts]),
        intrinsics=torch.cat([part.intrinsics for part in parts]),
    )


def check_finite(predictions: Predictions, error: type[Page4DError] = OutputError) -> None:
    """Refuse cameras that are not finite.

    Raises:
        Page4DError: of class `error`, naming the first such camera.
    """
    cameras = predictions.cameras
    finite = cameras.world_to_camera.isfinite().all((-1, -2)) & cameras.intrinsics.isfinite().all((-1, -2))
    if not bool(finite.all()):
        _, index, view = (~finite).nonzero()[0].tolist()
        name, seconds = predictions.view_names[view], float(predictions.times[index])
        raise error(
            f"the camera of view '{name}' at {seconds:.3f} s is not finite",
            "repeat with ⟨precision=fp32⟩; if that does not help, the weights do not suit these videos",
        )


def write_cameras_json(layout: OutputLayout, cameras: CaptureCameras) -> list[WrittenFile]:
    """Write `cameras.json`; every number reads back exactly."""
    views: dict[str, Any] = {}
    for view, name in enumerate(cameras.view_names):
        height, width = cameras.image_sizes[view]
        poses, intrinsics = cameras.world_to_camera[:, view], cameras.intrinsics[:, view]
        static = _constant(poses)
        views[readable(name)] = {
            "image_size": [width, height],
            "static": static,
            "intrinsics": intrinsics[0].tolist() if _constant(intrinsics) else _each(intrinsics),
            "world_to_camera": poses[0].tolist() if static else _each(poses),
        }
    document = {
        "page4d": page4d.__version__,
        "conventions": DESCRIPTION,
        "scale": cameras.scale.value,
        "unit": cameras.scale.unit,
        "times": cameras.times.tolist(),
        "views": views,
    }
    return [write_bytes_atomic(layout.cameras, (format_json(document) + "\n").encode("utf-8"))]


def _each(matrices: Float[Tensor, "T N N"]) -> Iterator[Matrix]:
    """Return the matrices one after the other: together their numbers would take ten times the memory of the text."""
    return (matrix.tolist() for matrix in matrices)


def _constant(matrices: Float[Tensor, "T N N"]) -> bool:
    return bool((matrices == matrices[:1]).all())


def write_tum(layout: OutputLayout, cameras: CaptureCameras) -> list[WrittenFile]:
    """Write each view's trajectory as camera-to-world positions and quaternions (TUM RGB-D format)."""
    written = []
    camera_to_world = invert_rigid(cameras.world_to_camera)
    quaternions = xyzw_from_wxyz(quaternion_from_matrix(camera_to_world[..., :3, :3]))
    rows = torch.cat([camera_to_world[..., :3, 3], quaternions], dim=-1)
    for view, name in enumerate(cameras.view_names):
        lines = [f"# timestamp tx ty tz qx qy qz qw, camera-to-world, unit {cameras.scale.unit}"]
        for time, row in zip(cameras.times.tolist(), rows[:, view].tolist(), strict=True):
            lines.append(" ".join(repr(number) for number in (time, *row)))
        written.append(write_bytes_atomic(layout.tum(name), ("\n".join(lines) + "\n").encode("ascii")))
    return written


def write_open3d_trajectories(layout: OutputLayout, cameras: CaptureCameras) -> list[WrittenFile]:
    """Write each view's trajectory as Open3D's PinholeCameraTrajectory, with integer pixel centres."""
    intrinsics = move_pixel_center(cameras.intrinsics, PIXEL_CENTER, INTEGER_PIXEL_CENTER)
    return [
        write_trajectory(
            layout.open3d_trajectory(name),
            cameras.world_to_camera[:, view],
            intrinsics[:, view],
            cameras.image_sizes[view],
        )
        for view, name in enumerate(cameras.view_names)
    ]


_MAX_TRANSLATION = 1e12
"""Largest translation that is read, in units of the scene: differences of larger numbers have no digits left."""


class ViewCameras(FileModel):
    """One view in `cameras.json`: a single matrix where it is constant, else one per instant."""

    image_size: tuple[int, int]
    static: bool
    intrinsics: Matrix | list[Matrix]
    world_to_camera: Matrix | list[Matrix]


class CamerasFile(FileModel):
    """The content of `cameras.json`; sizes are [width, height]."""

    page4d: str
    conventions: dict[str, str]
    scale: Scale
    unit: Literal["metre", "arbitrary"]
    times: list[float]
    views: dict[str, ViewCameras]


def read_cameras_json(path: Path) -> CaptureCameras:
    """Read `cameras.json`.

    Raises:
        InputError: if the file is missing or its content does not fit together.
    """
    content = read_model(path, CamerasFile)
    number = len(content.times)

    def stacked(name: str, size: int) -> Tensor:
        views = [_per_instant(getattr(view, name), number, size) for view in content.views.values()]
        if not views or any(view is None for view in views):
            raise InputError(
                f"'{path}': {name} is not {size}x{size}, or {number} of them, for every view",
                "restore the file, or run page4d again",
            )
        return torch.stack([view for view in views if view is not None], dim=1)

    poses = stacked("world_to_camera", 4)
    if not bool((rotation_defect(poses[..., :3, :3]) <= ROTATION_TOLERANCE).all()):
        raise InputError(f"'{path}': a world_to_camera has no rotation", "restore the file, or run page4d again")
    if not bool((poses[..., :3, 3].abs() <= _MAX_TRANSLATION).all()):
        raise InputError(f"'{path}': a camera is too far from the origin", "restore the file, or run page4d again")
    return CaptureCameras(
        times=torch.tensor(content.times, dtype=torch.float64),
        view_names=tuple(content.views),
        image_sizes=tuple((view.image_size[1], view.image_size[0]) for view in content.views.values()),
        world_to_camera=poses,
        intrinsics=stacked("intrinsics", 3),
        scale=content.scale,
    )


def _per_instant(matrices: Matrix | list[Matrix], number: int, size: int) -> Float[Tensor, "T N N"] | None:
    """Return one matrix per instant, or None where the lists are ragged or of another size."""
    try:
        values = np.asarray(matrices, dtype=np.float64)
    except ValueError:
        return None
    if values.shape == (size, size):
        values = np.broadcast_to(values, (number, size, size))
    return torch.from_numpy(values.copy()) if values.shape == (number, size, size) else None
