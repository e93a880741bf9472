"""Masks and measured depth maps: one sequence per view, paired with the frames of the view."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from page4d.errors import InputError, Level, Notice, Page4DError, UsageError, counted, listed
from page4d.formats.depth_files import DEPTH_SUFFIXES
from page4d.io.input_files import VIDEO_SUFFIXES, camera_in_name, composed, missing_path_hint, reading_again
from page4d.scene.discover import discover
from page4d.scene.identity import files_of
from page4d.scene.image_file import ImageHeader, check_readable
from page4d.scene.images import IMAGE_SUFFIXES, ImageFolderSource, files_with, probe_image_folder, time_by_name
from page4d.scene.layout import DEPTH_WORDS, MASK_WORDS, Candidate, images_in, maps_below
from page4d.scene.probe import probe_video
from page4d.scene.records import FrameSource, PairedFrames, View
from page4d.scene.stamps import NS, Stamps
from page4d.scene.timeline import PAIRING_SLACK, nearest_frames
from page4d.scene.video import VideoSource, open_container, video_stream

MASKS, DEPTH_MAPS = "masks", "depth maps"
"""Names of the two kinds of sidecars in messages."""

_ASPECT_TOLERANCE = 0.02
"""Relative difference of the aspect ratios of frames and sidecars."""

_DEPTH_BITS = 16
_DEPTH_HINT = (
    "give depth as 16-bit grayscale PNG or TIFF, as float NPY, EXR or TIFF, or as lossless gray16 video such as FFV1 "
    "in MKV"
)
_DISPARITY = re.compile(r"(?<![a-z])(disp(arit(y|ies))?|inv(erse)?[ _-]?depths?)(?![a-z])", re.IGNORECASE)
_DEPTH = re.compile(r"(?<![a-z])depths?(?![a-z])", re.IGNORECASE)

_SAME_LENGTH = 0.02
"""By how much the relative difference of lengths may exceed that of numbers of frames."""

_FEW_FRAMES = 3
"""Number of frames that a program may drop or add, in addition to `_SAME_LENGTH`; others are of another recording."""

_ONE_KIND = "convert them to one kind: float in metres, or 16-bit levels"
_SUFFIXES = {MASKS: IMAGE_SUFFIXES, DEPTH_MAPS: IMAGE_SUFFIXES | DEPTH_SUFFIXES}
_DEPTH_LAYOUTS = ("gray16le", "gray16be")


def find_sidecars(
    kind: str, folder: Path, views: Sequence[View], max_megapixels: float
) -> tuple[tuple[PairedFrames | None, ...], tuple[Notice, ...]]:
    """Find `<view>/*.png` or `<view>.mp4` for every view; None, and a notice, for views without either.

    `kind` is MASKS or DEPTH_MAPS.

    Raises:
        UsageError: if the folder does not exist, contains no sequence of any view, or is that of the views.
        InputError: if a sequence cannot be paired with the frames of its view, or is not exact depth.
    """
    if not folder.is_dir():
        found = "is a file" if folder.is_file() else "does not exist"
        hint = missing_path_hint(folder, "give a folder with a video or folder per view")
        raise UsageError(f"{kind} folder '{folder}' {found}", hint)
    paired = tuple(_find_sidecar(kind, folder, view, max_megapixels) for view in views)
    missing = [view.name for view, frames in zip(views, paired, strict=True) if frames is None]
    if len(missing) == len(views):
        raise _nothing_found(kind, folder, missing)
    floats = [view.name for view, frames in zip(views, paired, strict=True) if frames is not None and frames.is_float]
    if 0 < len(floats) < len(views) - len(missing):
        raise InputError(f"{kind} of {listed(floats)} are float, those of other views 16-bit levels", _ONE_KIND)
    of_one = [view.name for view, each in zip(views, paired, strict=True)
              if each is not None and len(each.frames.frame_times) == 1 < len(each.indices)]  # fmt: skip
    notices = [Notice(f"{kind}: one image for all frames of {listed(of_one)}", Level.INFO)] if of_one else []
    notices += [
        Notice(f"{kind}: {notice.marked_text}", notice.level)
        for frames in paired
        if frames is not None
        for notice in getattr(frames.frames, "notices", ())
    ]
    return paired, (*([Notice(f"no {kind} for {listed(missing)}")] if missing else ()), *notices)


def _nothing_found(kind: str, folder: Path, names: list[str]) -> UsageError:
    """Return the error for a folder without masks or depth of any view; it names files of other kinds."""
    found = f"no {kind} in '{folder}' for {listed(names)}"
    inside = sorted(file.suffix for file in (folder / names[0]).glob("*.*")) if (folder / names[0]).is_dir() else []
    hint = f"name them {names[0]}/ or {names[0]}.{'mp4' if kind == MASKS else 'mkv'}"
    if inside:
        found += f": {names[0]}/ holds {counted(len(inside), f'{inside[0]} file')}"
        hint = _DEPTH_HINT if kind == DEPTH_MAPS else "give masks as PNG or video"
    return UsageError(found, hint)


def _find_sidecar(kind: str, folder: Path, view: View, max_megapixels: float) -> PairedFrames | None:
    kinds: dict[bool, str] = {}
    found = _sidecar(kind, folder, view.name)
    if found is None:
        return None
    path, files = found.path, found.files
    if kind == DEPTH_MAPS:
        _check_depth_name(folder, found.label + (files[0].name if files else ""), view.name)
    if {file.resolve() for file in files_of(view.source)} & {file.resolve() for file in files or (path,)}:
        raise UsageError(f"{kind} folder '{folder}' holds the views themselves", f"give the folder of the {kind}")
    if files:
        is_depth = kind == DEPTH_MAPS

        def check(name: str, header: ImageHeader) -> None:
            if is_depth:
                _check_depth_image(name, header)
                kinds.setdefault(header.is_float, name)
            else:
                check_readable(name, header)

        images = probe_image_folder(
            path,
            files=files,
            label=found.label,
            fps=1.0,
            max_megapixels=max_megapixels,
            grayscale=is_depth,
            check=check,
        )
        (images,) = time_by_name([images])
        frames: FrameSource = images
        indices = _pair_images(kind, images, view)
    else:
        frames = probe_video(path, max_megapixels=max_megapixels, is_footage=False)
        if kind == DEPTH_MAPS:
            _check_depth_video(path)
        indices = _pair_video(kind, frames, view)
    (height, width), (map_height, map_width) = view.source.size, frames.size
    if abs(map_width / map_height / (width / height) - 1) > _ASPECT_TOLERANCE:
        raise InputError(
            f"{kind} of {view.name} are {map_width}x{map_height}, its frames {width}x{height}: aspect ratios differ",
            "provide them for the whole upright frame, at any scale",
        )
    if len(kinds) > 1:
        raise InputError(
            f"{kind} of {view.name}: {kinds[True]} is float, {kinds[False]} has 16-bit levels", _ONE_KIND
        )
    return PairedFrames(frames=frames, indices=indices, is_float=True in kinds)


def fit_any_scene(masks: Path, scene: Path) -> bool:
    """Return whether a folder has masks as one image per view of a scene of several instants, of static cameras."""
    try:
        views = discover(scene).candidates
        found = [_sidecar(MASKS, masks, view.name) for view in views] if masks.is_dir() else []
    except Page4DError:
        return False
    return (
        any(found)
        and all(len(view.files) != 1 for view in views)
        and all(len(one.files) == 1 for one in found if one is not None)
    )


def _sidecar(kind: str, folder: Path, name: str) -> Candidate | None:
    """Return the image folder or the video of a view, or the series of this kind in the folder of its camera."""
    found: list[Candidate | None] = []
    with reading_again(f"'{folder}'"):
        entries = sorted(folder.iterdir())
        folders = [entry for entry in entries if composed(entry.name) == name and entry.is_dir()]
        found += [images_in(entry, entry.name, _SUFFIXES[kind]) for entry in folders]
        found += [
            Candidate(name=name, path=entry, label=entry.name)
            for entry in entries
            if composed(entry.stem) == name and entry.suffix.lower() in VIDEO_SUFFIXES
        ]
        words = DEPTH_WORDS if kind == DEPTH_MAPS else MASK_WORDS
        found = [one for entry in folders for one in maps_below(entry, entry.name, words, _SUFFIXES[kind])] or found
        loose = files_with(folder, _SUFFIXES[kind]) if not found else []
        if kind == MASKS:
            named = [file for file in loose if composed(file.stem) == name]
            found += [Candidate(name=name, path=file, label=file.name, files=(file,)) for file in named]
        if not found and loose:
            maps = maps_below(folder, "", words, _SUFFIXES[kind])
            found += [replace(one, path=folder / one.label) for one in maps if camera_in_name(one.label) == name]
    sequences = [candidate for candidate in found if candidate]
    if len(sequences) > 1:
        labels = ", ".join(candidate.label.rstrip("/") for candidate in sequences)
        raise InputError(f"'{folder}' holds {len(sequences)} sequences for {name}: {labels}", "keep one of them")
    return sequences[0] if sequences else None


def _check_depth_name(folder: Path, place: str, view: str) -> None:
    """Refuse names of disparity in the path `place` below a folder, apart from the name of the view."""
    without_view = re.sub(rf"(?<![a-z]){re.escape(view)}(?![a-z])", "", place, flags=re.IGNORECASE)
    parts = (folder.name, *without_view.split("/"))
    if any(_DISPARITY.search(part) and not _DEPTH.search(_DISPARITY.sub("", part)) for part in parts):
        raise InputError(
            f"'{folder.name}/{place}' is named as disparity or inverse depth",
            "give depth, such as focal length * baseline / disparity",
        )


def _check_depth_image(name: str, header: ImageHeader) -> None:
    is_level = header.bits == _DEPTH_BITS and not header.numbers
    if header.channels != 1 or header.has_palette or not (is_level or header.is_float):
        raise InputError(f"{name} has {header.pixel_kind} pixels, which are not measured depth", _DEPTH_HINT)


def _check_depth_video(path: Path) -> None:
    with open_container(path) as container:
        context = video_stream(container, path, is_footage=False).codec_context
        if context.pix_fmt not in _DEPTH_LAYOUTS:
            raise InputError(f"{path.name} has {context.pix_fmt} pixels, which are not measured depth", _DEPTH_HINT)
        if context.codec.lossy or not context.codec.lossless:
            raise InputError(f"{path.name} is compressed by {context.name}, which can change depth", _DEPTH_HINT)


def _pair_video(kind: str, video: FrameSource, view: View) -> tuple[int, ...]:
    """Pair frame by frame if the numbers are equal, as programs may write another rate than that of the view."""
    (number, length), (own_number, own_length) = (
        (len(times), float(times[-1]) * len(times) / max(len(times) - 1, 1))
        for times in (video.frame_times, view.source.frame_times)
    )
    if number == own_number:
        return tuple(view.indices)
    is_near = min(number, own_number) > 1 and abs(number - own_number) <= _FEW_FRAMES + _SAME_LENGTH * own_number
    if is_near and abs(number / own_number - 1) + _SAME_LENGTH < abs(length / own_length - 1):
        found = f"{number} frames in {length:.3g} s, {view.name} {own_number} in {own_length:.3g} s"
        raise InputError(
            f"{kind}: {video.label} has {found}", "write it with the frames, or with the rate, of the view"
        )
    return _pair_by_time(kind, video, view)


def _pair_by_time(kind: str, video: FrameSource, view: View, late_s: float = 0.0) -> tuple[int, ...]:
    """Pair by time; the first frame of the video is `late_s` after that of the view."""
    times = view.source.frame_times[list(view.indices)] - late_s
    nearest = nearest_frames(video.frame_times, times)
    period = float(np.median(np.diff(video.frame_times))) if len(video.frame_times) > 1 else np.inf
    unpaired = np.abs(video.frame_times[nearest] - times) > period / 2 * PAIRING_SLACK
    if unpaired.any():
        raise InputError(
            f"{kind}: {video.label} has no frame for {int(unpaired.sum())} of {len(times)} instants of {view.name}",
            "provide it for the whole video, or shorten the scene with ⟨frames⟩",
        )
    return tuple(int(index) for index in nearest)


def _pair_images(kind: str, images: ImageFolderSource, view: View) -> tuple[int, ...]:
    """Pair by file stem, number or time in the names if the view is an image folder, else by number in the video."""
    source, indices = view.source, view.indices
    number = rf"(?<!\d){re.escape(view.name)}(?!\d)"  # a view 00 has a frame 000000
    is_single = len(images.files) == 1 and not re.search(r"\d", re.sub(number, "", images.files[0].stem))
    if kind == MASKS and is_single:  # of a static camera
        return (0,) * len(indices)
    available: Sequence[str | int]
    wanted: Sequence[str | int]
    if isinstance(source, ImageFolderSource):
        # COLMAP appends .png to the whole name of the image.
        paths = map(Path, images.frame_names)
        available = [path.stem if path.suffix.lower() in IMAGE_SUFFIXES else path.name for path in paths]
        names = source.frame_names
        wanted = [names[index] for index in indices]
        numbers = source.numbers or ()
        if not set(available) & set(names):
            if images.numbers and images.numbers[:1] == numbers[:1]:
                available, wanted = images.numbers, [numbers[index] for index in indices]
            elif len(available) == len(names) == 1:
                available = wanted = names
    else:
        available = images.numbers or range(len(images.files))
        _check_numbers(kind, images, view)
        # Numbers count all frames of the file, including damaged ones that are not used.
        wanted = [int(source.positions[index]) if isinstance(source, VideoSource) else index for index in indices]
    index_of = {key: index for index, key in enumerate(available)}
    missing = [key for key in wanted if key not in index_of]
    own: Stamps | None = getattr(source, "stamps", None)
    if missing and own and images.stamps and own.origin == images.stamps.origin:
        return _pair_by_time(kind, images, view, (images.stamps.first_ns - own.first_ns) / NS)
    if missing:
        raise InputError(
            f"{kind} of {view.name}: missing for {len(missing)} of {len(indices)} frames, first {missing[0]}",
            "name them like the images, or number them like the frames of the video, from 0",
        )
    return tuple(index_of[key] for key in wanted)


def _check_numbers(kind: str, images: ImageFolderSource, view: View) -> None:
    """Refuse images that are numbered from 1: with `frames`, each would silently belong to the frame before."""
    source = view.source
    last = int(source.positions[-1]) if isinstance(source, VideoSource) else len(source.frame_times) - 1
    count, hint = len(images.files), "number them like the frames of the video, from 0"
    if images.numbers is None and count != last + 1:
        found = f"{counted(count, 'image')} without frame numbers for {counted(last + 1, 'frame')}"
        raise InputError(f"{kind} of {view.name}: {found}", hint)
    if images.numbers and min(images.numbers) == 1 and max(images.numbers) == count == last + 1:
        raise InputError(f"{kind} of {view.name} are numbered from 1, the frames of the video from 0", hint)
