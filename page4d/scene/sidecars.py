"""What lies beside the videos, one sequence a view: masks and measured depth, paired with the frames of the view."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from page4d.errors import InputError, UsageError
from page4d.scene.images import ImageFolderSource, image_files, probe_image_folder
from page4d.scene.records import FrameSource, Notice, PairedFrames, View
from page4d.scene.timeline import nearest_frames
from page4d.scene.video import VIDEO_SUFFIXES, VideoSource, probe_video

_SAME_ASPECT = 0.02


def find_companions(
    kind: str, folder: Path, views: Sequence[View], max_megapixels: float
) -> tuple[tuple[PairedFrames | None, ...], tuple[Notice, ...]]:
    """Find `<view>/*.png` or `<view>.mp4` for every view; a view without any is reported and gets None.

    `kind` names them in messages, as in "masks".

    Raises:
        UsageError: if the folder does not exist or has nothing for any view.
        InputError: if a sequence cannot be paired with the frames of its view.
    """
    if not folder.is_dir():
        raise UsageError(f"{kind} folder '{folder}' does not exist", "give a folder with one video or folder a view")
    paired = tuple(_companion(kind, folder, view, max_megapixels) for view in views)
    lacking = [view.name for view, own in zip(views, paired, strict=True) if own is None]
    if len(lacking) == len(views):
        raise UsageError(
            f"no {kind} in '{folder}' for {', '.join(lacking)}", f"name them {lacking[0]}/ or {lacking[0]}.mp4"
        )
    return paired, (Notice(f"no {kind} for {', '.join(lacking)}"),) if lacking else ()


def _companion(kind: str, folder: Path, view: View, max_megapixels: float) -> PairedFrames | None:
    own_folder = folder / view.name
    if own_folder.is_dir() and image_files(own_folder):
        images = probe_image_folder(own_folder, fps=1.0, max_megapixels=max_megapixels, grayscale=True)
        frames: FrameSource = images
        indices = _pair_images(kind, images, view)
    else:
        pattern = f"{_escape(view.name)}.*"
        videos = sorted(file for file in folder.glob(pattern) if file.suffix.lower() in VIDEO_SUFFIXES)
        if not videos:
            return None
        frames = probe_video(videos[0], max_megapixels=max_megapixels)
        indices = _pair_by_time(kind, frames, view)
    (height, width), (own_height, own_width) = view.source.size, frames.size
    if abs(own_width / own_height / (width / height) - 1) > _SAME_ASPECT:
        raise InputError(
            f"{kind} of {view.name} are {own_width}x{own_height}, its frames {width}x{height}: not the same picture",
            "make them for the whole upright frame, at any scale",
        )
    return PairedFrames(frames=frames, indices=indices)


def _pair_by_time(kind: str, video: FrameSource, view: View) -> tuple[int, ...]:
    times = view.source.frame_times[list(view.indices)]
    nearest = nearest_frames(video.frame_times, times)
    period = float(np.median(np.diff(video.frame_times))) if len(video.frame_times) > 1 else np.inf
    late = np.abs(video.frame_times[nearest] - times) > period / 2 * 1.02
    if late.any():
        raise InputError(
            f"{kind}: {video.label} has no frame for {int(late.sum())} of {len(times)} instants of {view.name}",
            "make it for the whole video, or shorten the scene with --frames",
        )
    return tuple(int(index) for index in nearest)


def _pair_images(kind: str, images: ImageFolderSource, view: View) -> tuple[int, ...]:
    """Pair by file stem where the view is a folder of images too, else by frame number in the view."""
    source, indices = view.source, view.indices
    if isinstance(source, ImageFolderSource):
        places = {file.stem: place for place, file in enumerate(images.files)}
        wanted: list[str | int] = [source.files[index].stem for index in indices]
        missing = [stem for stem in wanted if stem not in places]
        found = [places[str(stem)] for stem in wanted if stem in places]
    else:
        numbers = images.numbers or tuple(range(len(images.files)))
        by_number = {number: place for place, number in enumerate(numbers)}
        # Frames left out as damaged still count: masks are numbered by the frames of the file.
        own = [int(source.positions[index]) if isinstance(source, VideoSource) else index for index in indices]
        missing = [number for number in own if number not in by_number]
        found = [by_number[number] for number in own if number in by_number]
    if missing:
        raise InputError(
            f"{kind} of {view.name}: none for {len(missing)} of {len(indices)} frames, first {missing[0]}",
            "name them like the images, or number them by the frames of the video from 0",
        )
    return tuple(found)


def _escape(name: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)
