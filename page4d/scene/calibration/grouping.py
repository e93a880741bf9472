"""Grouping of the images of photo-based calibrations into views and frames by their names."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePosixPath

import torch
from jaxtyping import Float
from torch import Tensor

from page4d.errors import InputError
from page4d.geometry.distortion import Distortion
from page4d.scene.calibration.build import make_camera
from page4d.scene.calibration.files import error_context
from page4d.scene.calibration.record import CalibratedCamera
from page4d.scene.files import natural_key

_IMAGE_SUFFIXES = frozenset(".png .jpg .jpeg .webp .bmp .tif .tiff .exr .heic .heif .gif .ppm .pgm".split())

_EQUAL_TOLERANCE = 1e-6
"""Difference of equal poses, and of equal intrinsics relative to their magnitude."""

_ONE_CAMERA_HINT = "calibrate with one camera per view (COLMAP: --ImageReader.single_camera_per_folder 1)"

_COLLECTION_FOLDER = re.compile(r"images?(_\d+)?|rgb|input|frames|photos", re.IGNORECASE)
"""Names of folders that contain the images of all views, not of one view."""


@dataclass(frozen=True)
class ImageName:
    """View and frame of an image; `frame` is None if the view has a single image."""

    view: str
    frame: str | None


def group_images(names: Sequence[str], *, one_moving_camera: bool = False) -> list[ImageName]:
    """Split image names (`cam01/000000.png`) into view and frame.

    With several folders, each folder is a view, named by the part of its path that differs. A single folder is one
    view, unless it has a collective name such as `images` or the names have no folder: then each image is a separate
    view (`cam01.png`), or with `one_moving_camera` a frame of one camera.
    """
    paths = [PurePosixPath(name.replace("\\", "/")) for name in names]
    folders = [tuple(part for part in path.parts[:-1] if part not in ("/", ".")) for path in paths]
    stems = [path.stem if path.suffix.lower() in _IMAGE_SUFFIXES else path.name for path in paths]
    distinct = sorted(set(folders))
    if len(distinct) > 1:
        view_of = _folder_names(distinct)
        return [
            ImageName(view_of[folder], stem) if folder else ImageName(stem, None)
            for folder, stem in zip(folders, stems, strict=True)
        ]
    name = distinct[0][-1] if distinct and distinct[0] else ""
    if one_moving_camera or (name and not _COLLECTION_FOLDER.fullmatch(name)):
        return [ImageName(name or "camera", stem) for stem in stems]
    return [ImageName(stem, None) for stem in stems]


def _folder_names(folders: list[tuple[str, ...]]) -> dict[tuple[str, ...], str]:
    """Name each folder by its last part, or by the parts that are not common to all if the last is not unique."""
    last = {folder: folder[-1] if folder else "" for folder in folders}
    if len(set(last.values())) == len(folders):
        return last
    shortest = min(len(folder) for folder in folders)
    lead = tail = 0
    while lead < shortest and len({folder[lead] for folder in folders}) == 1:
        lead += 1
    while tail < shortest - lead and len({folder[-tail - 1] for folder in folders}) == 1:
        tail += 1
    return {folder: "/".join(folder[lead : len(folder) - tail]) or "/".join(folder) for folder in folders}


@dataclass(frozen=True, kw_only=True)
class ImageCamera:
    """The camera of a single image."""

    view: str
    frame: str | None
    intrinsics: Float[Tensor, "3 3"]
    world_to_camera: Float[Tensor, "4 4"]
    image_size: tuple[int, int] | None
    distortion: Distortion | None


def join_images(label: str, images: Sequence[ImageCamera]) -> tuple[CalibratedCamera, ...]:
    """Merge the images of each view into one camera: static if their poses are equal up to rounding, else moving.

    Raises:
        InputError: if a view has a frame twice, or its intrinsics, distortion or image size change between frames.
    """
    views: dict[str, list[ImageCamera]] = {}
    for image in images:
        views.setdefault(image.view, []).append(image)
    return tuple(_join_view(label, name, members) for name, members in views.items())


def _join_view(label: str, name: str, images: list[ImageCamera]) -> CalibratedCamera:
    with error_context(label, name):
        images = sorted(images, key=lambda image: natural_key(image.frame or ""))
        frames = tuple(image.frame or "" for image in images)
        _check_frames(frames)
        _check_one_camera(images)
    poses = torch.stack([image.world_to_camera for image in images])
    is_static = bool(((poses - poses[0]).abs() <= _EQUAL_TOLERANCE).all()) or len(images) == 1
    return make_camera(
        label,
        name,
        intrinsics=images[0].intrinsics,
        world_to_camera=poses[0] if is_static else poses,
        image_size=images[0].image_size,
        distortion=images[0].distortion,
        frames=None if is_static else frames,
    )


def _check_frames(frames: tuple[str, ...]) -> None:
    repeated = next((frame for frame, following in pairwise(sorted(frames)) if frame == following), None)
    if repeated is not None:
        raise InputError(
            f"frame {repeated} appears twice" if repeated else "two images have this name",
            "give each image of a view its own name",
        )


def _check_one_camera(images: list[ImageCamera]) -> None:
    first = images[0]
    for image in images[1:]:
        change = float((image.intrinsics - first.intrinsics).abs().max())
        if change > _EQUAL_TOLERANCE * (1 + float(first.intrinsics.abs().max())):
            raise InputError(f"the intrinsics change by {change:.3g} px between frames", _ONE_CAMERA_HINT)
        if image.distortion != first.distortion or image.image_size != first.image_size:
            raise InputError("the distortion or the image size changes between frames", _ONE_CAMERA_HINT)
