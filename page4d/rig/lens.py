"""Intrinsics of the views before registration: from a calibration, `focal`, EXIF, or a start value."""

import math
import re
import warnings
from pathlib import Path

import numpy as np
import torch
from PIL import ExifTags
from PIL import Image as PillowImage
from torch import Tensor

from page4d.choices import CalibrationMatch
from page4d.errors import InputError, Notice, Notify, UsageError, listed, unknown_name
from page4d.formats.calibrations import read_lenses
from page4d.formats.camera_model import CalibratedCamera, check_lens
from page4d.io.exhaustion import is_exhausted
from page4d.rig.records import FocalSource, Lens
from page4d.scene.calibration import fit_lenses, match_cameras, named_as_views
from page4d.scene.images import ImageFolderSource
from page4d.scene.records import FrameSource, Scene, View, ViewCamera
from page4d.scene.video import VideoSource, open_container

START_FOCAL = 1.2
"""Focal length in long sides of the image from which an unknown one is estimated: a field of view of 45 degrees.

Source: COLMAP, `ImageReader.default_focal_length_factor`.
"""

_FORM = "use pixels (1450) or a 35 mm equivalent (26mm), for all views or as NAME=VALUE,NAME=VALUE"
_VALUE = re.compile(r"(?P<number>\d+(\.\d*)?|\.\d+)\s*(?P<unit>mm|px)?", re.IGNORECASE)


def lenses_of(
    scene: Scene,
    focal: str | None = None,
    intrinsics: Path | None = None,
    *,
    for_all: bool = True,
    notify: Notify | None = None,
) -> tuple[Lens, ...]:
    """Return the lens of every view.

    Of these, the first that is given for a view counts: its camera; the calibration file `intrinsics`, whose poses
    are not used, and which has all views or not `for_all`; `focal` ("1450" px or "26mm" for all views,
    "cam01=1450,cam02=26mm" for some); the scene's calibration, for a view that is registered again; EXIF or the
    metadata of a video; the start value `START_FOCAL`. Without a calibration the principal point is the centre of the
    image. What is assumed of the lenses of a file, and doubts about them, are notices.

    Raises:
        UsageError: if `focal` cannot be read, names a view that does not exist or has a camera, or no lens has this
            focal length.
        InputError: if the calibration file is unusable, has no camera of a view, or is for another image size.
    """
    options, named = scene.options, {} if focal is None else _parse(focal, scene.view_names)
    known = {view.name: _given(view.camera, view.source.size) for view in scene.views if view.camera is not None}
    of_file: dict[str, Lens] = {}
    notices: tuple[Notice, ...] = ()
    if intrinsics is not None:
        of_file, notices = _calibrated(scene, intrinsics)
        missing = [name for name in scene.view_names if name not in of_file.keys() | known.keys()]
        if missing and for_all:
            hint = "rename the videos, or select those with a camera by ⟨views⟩"
            raise InputError(f"{intrinsics.name} has no camera for {listed(missing)}", hint)
    elif options.again and options.calibration is not None:
        calibrated, notices = _calibrated(scene, options.calibration)
        of_file = {name: lens for name, lens in calibrated.items() if name not in named}
    for notice in notices:
        if notify is not None and notice not in scene.notices:
            notify(notice)
    if focal is not None and "=" in focal and (both := sorted(named.keys() & known.keys())):
        raise UsageError(f"⟨focal={focal}⟩: {both[0]} has its lens from {scene.calibration}", "leave it out")
    found = of_file | known
    return tuple(found.get(view.name) or _lens(view, focal, named.get(view.name)) for view in scene.views)


def _lens(view: View, text: str | None, given: "_Focal | None") -> Lens:
    """Return the lens of a view without a calibration, from `focal`, the text of the option, if it names the view."""
    size = view.source.size
    if given is None:
        stated = stated_focal(view.source)
        source = FocalSource.UNKNOWN if stated is None else FocalSource.EXIF
        return _centred(stated or START_FOCAL * max(size), size, source)
    number, is_equivalent = given
    lens = _centred(focal_of_equivalent(number, size) if is_equivalent else number, size, FocalSource.OPTION)
    try:
        check_lens(torch.from_numpy(lens.intrinsics), size, None)
    except InputError as error:
        raise UsageError(f"⟨focal={text}⟩: {view.name}: {error.marked_message}", _FORM) from None
    return lens


def _centred(focal: float, size: tuple[int, int], source: FocalSource) -> Lens:
    height, width = size
    matrix = np.array([[focal, 0.0, width / 2], [0.0, focal, height / 2], [0.0, 0.0, 1.0]])
    return Lens(intrinsics=matrix, image_size=size, focal_source=source)


def _given(camera: ViewCamera | CalibratedCamera, size: tuple[int, int], matrix: Tensor | None = None) -> Lens:
    """Return the lens of a calibrated camera, with this matrix at images of (height, width)."""
    is_identity = camera.distortion is None or camera.distortion.is_identity
    return Lens(
        intrinsics=np.asarray(camera.intrinsics if matrix is None else matrix, dtype=np.float64),
        image_size=size,
        distortion=None if is_identity else camera.distortion,
        focal_source=FocalSource.CALIBRATION,
    )


def _calibrated(scene: Scene, file: Path) -> tuple[dict[str, Lens], tuple[Notice, ...]]:
    """Return the lenses of a calibration file by view, fitted to the views by the rules of `calibration_resize`."""
    names, resize = scene.view_names, scene.options.calibration_resize
    by_name = scene.options.calibration_match is CalibrationMatch.NAME
    calibration = read_lenses(file, names if by_name else None)
    calibration = named_as_views(calibration, names) if by_name else calibration
    # Cameras without a video are accepted: the file may be that of a larger rig.
    matched = match_cameras(calibration, names, names, scene.options.calibration_match, views_were_named=True)
    both = zip(matched, scene.views, strict=True)
    pairs = [(camera, view) for camera, view in both if camera is not None and view.camera is None]
    cameras, views = [camera for camera, _ in pairs], [view for _, view in pairs]
    matrices, notices = fit_lenses(cameras, views, resize, file)
    lenses = {
        view.name: _given(camera, view.source.size, matrix)
        for camera, view, matrix in zip(cameras, views, matrices, strict=True)
    }
    return lenses, (*map(Notice, calibration.notices), *notices)


_Focal = tuple[float, bool]
"""A value of `focal`: pixels, or millimetres of 35 mm film."""


def _parse(text: str, names: tuple[str, ...]) -> dict[str, _Focal]:
    """Return the focal length of each view that the option names, or of all views."""
    parts = [part.strip() for part in text.split(",")]
    if "=" not in text:
        if len(parts) > 1:
            raise UsageError(f"⟨focal={text}⟩: {len(parts)} values without names of views", _FORM)
        return dict.fromkeys(names, _value(text, parts[0]))
    found: dict[str, _Focal] = {}
    for part in parts:
        name, equals, value_text = (piece.strip() for piece in part.rpartition("="))
        if not equals:
            raise UsageError(f"⟨focal={text}⟩: '{part}' has no name of a view", _FORM)
        if name not in names:
            raise unknown_name("view", name, names, f"⟨focal={text}⟩: ")
        if name in found:
            raise UsageError(f"⟨focal={text}⟩: {name} is given twice", _FORM)
        found[name] = _value(text, value_text)
    return found


def _value(text: str, part: str) -> _Focal:
    match = _VALUE.fullmatch(part)
    number = float(match["number"]) if match else math.nan
    if match is None or not 0 < number < math.inf:
        raise UsageError(f"⟨focal={text}⟩: '{part}' is not a focal length", _FORM)
    return number, (match["unit"] or "").lower() == "mm"


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
