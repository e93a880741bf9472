"""Focal lengths that image and video files state: EXIF of photos, metadata of phone videos."""

import math
import warnings
from pathlib import Path

from PIL import ExifTags
from PIL import Image as PillowImage

from page4d.errors import InputError
from page4d.io.limits import is_exhausted
from page4d.scene.container import open_container
from page4d.scene.images import ImageFolderSource
from page4d.scene.records import FrameSource
from page4d.scene.video import VideoSource

FILM_DIAGONAL_MM = math.hypot(36.0, 24.0)
"""Diagonal of 35 mm film, to which a 35 mm equivalent focal length refers.

Source: CIPA DCG-001, "35mm film equivalent focal length" (equal diagonal angle of view).
"""

_MM_PER_UNIT = {2: 25.4, 3: 10.0, 4: 1.0, 5: 0.001}
"""Millimetres per FocalPlaneResolutionUnit. Source: CIPA DC-008 (Exif 2.32), tag 0xA210; 4 and 5 are common
extensions."""

_USUAL_RATIO = (0.2, 40.0)
"""Focal length in long sides of the image that a tag may state: from 136 degrees to long telephoto lenses."""

_SAME = 0.01
"""Relative difference of the focal lengths of images of one view above which the lens zooms."""

_VIDEO_KEYS = ("focal_length.35mm_equivalent", "focallengthin35mmfilm")
"""Ends of the keys of metadata that state a 35 mm equivalent (QuickTime `com.apple.quicktime.camera.`)."""

_FORMATS = ("PNG", "JPEG", "TIFF", "WEBP")


def focal_of_equivalent(millimetres: float, image_size: tuple[int, int]) -> float:
    """Return the focal length in px of an image of (height, width) from its 35 mm equivalent."""
    return millimetres * math.hypot(*image_size) / FILM_DIAGONAL_MM


def stated_focal(source: FrameSource) -> float | None:
    """Return the focal length in px that the files of a view state; None if they state none, or several.

    Damaged metadata count as none.
    """
    if isinstance(source, ImageFolderSource):
        last = len(source.files) - 1
        files = [source.files[index] for index in sorted({0, last // 2, last})]
        found = [_image_focal(file, source.size) for file in files]
    elif isinstance(source, VideoSource):
        found = [_video_focal(source)]
    else:
        return None
    focals = [focal for focal in found if focal is not None]
    if len(focals) < len(found) or max(focals) > (1 + _SAME) * min(focals):
        return None
    low, high = (ratio * max(source.size) for ratio in _USUAL_RATIO)
    return focals[0] if low <= focals[0] <= high else None


def _image_focal(file: Path, size: tuple[int, int]) -> float | None:
    """Return the focal length of one image; `size` is (height, width) of the upright image."""
    try:
        with warnings.catch_warnings(action="ignore"), PillowImage.open(file, formats=_FORMATS) as image:
            tags = PillowImage.Image.getexif(image).get_ifd(ExifTags.IFD.Exif)
        equivalent = _number(tags, ExifTags.Base.FocalLengthIn35mmFilm)
        if equivalent is not None:
            return focal_of_equivalent(equivalent, size)
        return _focal_of_sensor(tags, size)
    except Exception as error:
        if is_exhausted(error):
            raise
        return None


def _focal_of_sensor(tags: dict[int, object], size: tuple[int, int]) -> float | None:
    """Return the focal length from that in millimetres and the pixels per unit of the sensor.

    The resolution is that of the image as recorded, whose width EXIF states too.
    """
    focal = _number(tags, ExifTags.Base.FocalLength)
    resolution = _number(tags, ExifTags.Base.FocalPlaneXResolution)
    unit = tags.get(ExifTags.Base.FocalPlaneResolutionUnit, 2)
    millimetres = _MM_PER_UNIT.get(unit) if isinstance(unit, int) else None
    if focal is None or resolution is None or millimetres is None:
        return None
    sides = [_number(tags, tag) for tag in (ExifTags.Base.ExifImageWidth, ExifTags.Base.ExifImageHeight)]
    recorded = max(side or 0.0 for side in sides)
    return focal * resolution / millimetres * (max(size) / recorded if recorded else 1.0)


def _number(tags: dict[int, object], tag: int) -> float | None:
    """Return a positive number; 0 is "unknown" in EXIF."""
    value = tags.get(tag)
    if value is None:
        return None
    number = float(value)  # type: ignore[arg-type]  # IFDRational, int, or an error that the caller handles
    return number if 0 < number < math.inf else None


def _video_focal(source: VideoSource) -> float | None:
    try:
        with open_container(source.path) as container:
            described = [container.metadata, *(stream.metadata for stream in container.streams)]
    except InputError:
        return None
    for metadata in described:
        for key, value in metadata.items():
            if key.lower().endswith(_VIDEO_KEYS):
                try:
                    millimetres = float(value)
                except ValueError:
                    continue
                return focal_of_equivalent(millimetres, source.size) if 0 < millimetres < math.inf else None
    return None
