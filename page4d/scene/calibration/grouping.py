"""Which images of a photo-based calibration belong to one view, told from their names."""

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
from page4d.scene.calibration.files import blame
from page4d.scene.calibration.record import CalibratedCamera

IMAGE_SUFFIXES = frozenset(".png .jpg .jpeg .webp .bmp .tif .tiff .exr .heic .heif .gif .ppm .pgm".split())

SAME = 1e-6
"""Poses of two frames that differ by no more than this, and intrinsics relative to their size, are the same."""

ONE_LENS = "calibrate with one camera a view (COLMAP: --ImageReader.single_camera_per_folder 1)"

COLLECTION_FOLDER = re.compile(r"images?(_\d+)?|rgb|input|frames|photos", re.IGNORECASE)
"""Folder names that say "all images are here", not "this is one camera"."""


@dataclass(frozen=True)
class ImageName:
    """Where an image of a calibration belongs: its view, and its frame (None if the name is the view's alone)."""

    view: str
    frame: str | None


def group_images(names: Sequence[str], *, one_moving_camera: bool = False) -> list[ImageName]:
    """Split image names (`cam01/000000.png`) into view and frame.

    Images in several folders: a folder is a view, named by the part of its path that differs. Images in one folder:
    the folder is a view, unless it is no folder or one called `images` and the like; then every image is a view of
    its own (`cam01.png`), or with `one_moving_camera` a frame of that folder's camera.
    """
    paths = [PurePosixPath(name.replace("\\", "/")) for name in names]
    folders = [tuple(part for part in path.parts[:-1] if part not in ("/", ".")) for path in paths]
    stems = [path.stem if path.suffix.lower() in IMAGE_SUFFIXES else path.name for path in paths]
    distinct = sorted(set(folders))
    if len(distinct) > 1:
        view_of = _folder_names(distinct)
        return [
            ImageName(view_of[folder], stem) if folder else ImageName(stem, None)
            for folder, stem in zip(folders, stems, strict=True)
        ]
    name = distinct[0][-1] if distinct and distinct[0] else ""
    if one_moving_camera or (name and not COLLECTION_FOLDER.fullmatch(name)):
        return [ImageName(name or "camera", stem) for stem in stems]
    return [ImageName(stem, None) for stem in stems]


def _folder_names(folders: list[tuple[str, ...]]) -> dict[tuple[str, ...], str]:
    """Name each folder by its last part, or if that is not unique by the parts that are not common to all."""
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


def _frame_order(image: "ImageCamera") -> tuple[tuple[int, int, str], ...]:
    """Return a sort key that counts digits as numbers, so that frame 9 comes before frame 10."""
    parts = re.findall(r"[0-9]{1,18}|[^0-9]+", image.frame or "")
    return tuple((0, int(part), part) if part[0] in "0123456789" else (1, 0, part) for part in parts)


@dataclass(frozen=True, kw_only=True)
class ImageCamera:
    """The camera of one image, before the images of a view are joined."""

    view: str
    frame: str | None
    intrinsics: Float[Tensor, "3 3"]
    world_to_camera: Float[Tensor, "4 4"]
    image_size: tuple[int, int] | None
    distortion: Distortion | None


def join_images(label: str, images: Sequence[ImageCamera]) -> tuple[CalibratedCamera, ...]:
    """Make one camera of all images of a view: standing if their poses agree up to rounding, else moving.

    Raises:
        InputError: if a view names a frame twice, or its lens or image size changes between frames.
    """
    views: dict[str, list[ImageCamera]] = {}
    for image in images:
        views.setdefault(image.view, []).append(image)
    return tuple(_join_view(label, name, members) for name, members in views.items())


def _join_view(label: str, name: str, images: list[ImageCamera]) -> CalibratedCamera:
    with blame(label, name):
        images = sorted(images, key=_frame_order)
        frames = tuple(image.frame or "" for image in images)
        _check_frames(frames)
        _check_lens(images)
    poses = torch.stack([image.world_to_camera for image in images])
    still = bool(((poses - poses[0]).abs() <= SAME).all()) or len(images) == 1
    return make_camera(
        label,
        name,
        intrinsics=images[0].intrinsics,
        world_to_camera=poses[0] if still else poses,
        image_size=images[0].image_size,
        distortion=images[0].distortion,
        frames=None if still else frames,
    )


def _check_frames(frames: tuple[str, ...]) -> None:
    twice = next((frame for frame, following in pairwise(sorted(frames)) if frame == following), None)
    if twice is not None:
        raise InputError(
            f"frame {twice} appears twice" if twice else "two images have this name",
            "give every image of a view its own name",
        )


def _check_lens(images: list[ImageCamera]) -> None:
    first = images[0]
    for image in images[1:]:
        change = float((image.intrinsics - first.intrinsics).abs().max())
        if change > SAME * (1 + float(first.intrinsics.abs().max())):
            raise InputError(f"the intrinsics change by {change:.3g} px between frames", ONE_LENS)
        if image.distortion != first.distortion or image.image_size != first.image_size:
            raise InputError("the distortion or the image size changes between frames", ONE_LENS)
