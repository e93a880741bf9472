"""Masks and measured depth maps: one sequence per view, paired with the frames of the view."""

import glob
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from page4d.errors import InputError, UsageError, listed
from page4d.scene.images import ImageFolderSource, image_files, probe_image_folder
from page4d.scene.records import FrameSource, Notice, PairedFrames, View
from page4d.scene.timeline import PAIRING_SLACK, nearest_frames
from page4d.scene.video import VIDEO_SUFFIXES, VideoSource
from page4d.scene.video_probe import probe_video

_ASPECT_TOLERANCE = 0.02
"""Relative difference of the aspect ratios of frames and sidecars."""


def find_sidecars(
    kind: str, folder: Path, views: Sequence[View], max_megapixels: float
) -> tuple[tuple[PairedFrames | None, ...], tuple[Notice, ...]]:
    """Find `<view>/*.png` or `<view>.mp4` for every view; None, and a notice, for views without either.

    `kind` is their name in messages, such as "masks".

    Raises:
        UsageError: if the folder does not exist or contains no sequence of any view.
        InputError: if a sequence cannot be paired with the frames of its view.
    """
    if not folder.is_dir():
        raise UsageError(f"{kind} folder '{folder}' does not exist", "give a folder with a video or folder per view")
    paired = tuple(_find_sidecar(kind, folder, view, max_megapixels) for view in views)
    missing = [view.name for view, frames in zip(views, paired, strict=True) if frames is None]
    if len(missing) == len(views):
        raise UsageError(
            f"no {kind} in '{folder}' for {listed(missing)}", f"name them {missing[0]}/ or {missing[0]}.mp4"
        )
    return paired, (Notice(f"no {kind} for {listed(missing)}"),) if missing else ()


def _find_sidecar(kind: str, folder: Path, view: View, max_megapixels: float) -> PairedFrames | None:
    image_folder = folder / view.name
    if image_folder.is_dir() and image_files(image_folder):
        images = probe_image_folder(image_folder, fps=1.0, max_megapixels=max_megapixels, grayscale=True)
        frames: FrameSource = images
        indices = _pair_images(kind, images, view)
    else:
        pattern = f"{glob.escape(view.name)}.*"
        videos = sorted(file for file in folder.glob(pattern) if file.suffix.lower() in VIDEO_SUFFIXES)
        if not videos:
            return None
        frames = probe_video(videos[0], max_megapixels=max_megapixels)
        indices = _pair_by_time(kind, frames, view)
    (height, width), (map_height, map_width) = view.source.size, frames.size
    if abs(map_width / map_height / (width / height) - 1) > _ASPECT_TOLERANCE:
        raise InputError(
            f"{kind} of {view.name} are {map_width}x{map_height}, its frames {width}x{height}: aspect ratios differ",
            "provide them for the whole upright frame, at any scale",
        )
    return PairedFrames(frames=frames, indices=indices)


def _pair_by_time(kind: str, video: FrameSource, view: View) -> tuple[int, ...]:
    times = view.source.frame_times[list(view.indices)]
    nearest = nearest_frames(video.frame_times, times)
    period = float(np.median(np.diff(video.frame_times))) if len(video.frame_times) > 1 else np.inf
    unpaired = np.abs(video.frame_times[nearest] - times) > period / 2 * PAIRING_SLACK
    if unpaired.any():
        raise InputError(
            f"{kind}: {video.label} has no frame for {int(unpaired.sum())} of {len(times)} instants of {view.name}",
            "provide it for the whole video, or shorten the scene with --frames",
        )
    return tuple(int(index) for index in nearest)


def _pair_images(kind: str, images: ImageFolderSource, view: View) -> tuple[int, ...]:
    """Pair by file stem if the view is an image folder, else by frame number in the video."""
    source, indices = view.source, view.indices
    available: Sequence[str | int]
    wanted: Sequence[str | int]
    if isinstance(source, ImageFolderSource):
        available = [file.stem for file in images.files]
        wanted = [source.files[index].stem for index in indices]
    else:
        available = images.numbers or range(len(images.files))
        # Numbers count all frames of the file, including damaged ones that are not used.
        wanted = [int(source.positions[index]) if isinstance(source, VideoSource) else index for index in indices]
    index_of = {key: index for index, key in enumerate(available)}
    missing = [key for key in wanted if key not in index_of]
    if missing:
        raise InputError(
            f"{kind} of {view.name}: missing for {len(missing)} of {len(indices)} frames, first {missing[0]}",
            "name them like the images, or number them like the frames of the video, from 0",
        )
    return tuple(index_of[key] for key in wanted)
