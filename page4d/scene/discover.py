"""Discovery of the views in a scene folder.

Folders for pictures may not lie directly in a scene, where they would be views the next time.
"""

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from page4d.errors import InputError, UsageError, counted, listed, shortened
from page4d.formats.calibrations import is_calibration_name
from page4d.io.atomic import real_path
from page4d.io.input_files import composed, natural_key
from page4d.scene.images import UNREAD_SUFFIXES, image_files
from page4d.scene.records import Level, Notice
from page4d.scene.video import VIDEO_SUFFIXES

_SYSTEM_FOLDERS = ("__macosx", "@eadir", "$recycle.bin", "system volume information", "lost+found")
RESERVED_FOLDERS = {
    "masks": "masks, read with ⟨masks⟩",
    "truth": "ground truth",
    "sparse": "a COLMAP calibration",
    **dict.fromkeys(_SYSTEM_FOLDERS, "a folder of the operating system"),
}
"""Names of folders that are not views."""

_SYNC_FILES = ("sync.json", "sync.toml")

_UNFINISHED_SUFFIXES = frozenset(".part .partial .crdownload .download .filepart .tmp .aria2".split())
"""Suffixes that browsers and copying programs append until a file is complete."""

_UNREAD_SUFFIXES = frozenset(
    ".3g2 .360 .asf .av1 .bag .braw .divx .dv .f4v .insv .m2v .mcraw .mjpeg .mjpg .qt .r3d .svo .vob".split()
)
"""Suffixes of video files that are not read."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A video file or image folder that may be used as a view."""

    name: str
    path: Path

    @property
    def is_image_folder(self) -> bool:
        """True for a folder of images, False for a video file."""
        return self.path.is_dir()


@dataclass(frozen=True, kw_only=True)
class Discovery:
    """Views in natural order of their names, the sync file of the folder if any, and notices of ignored entries."""

    candidates: tuple[Candidate, ...]
    sync_file: Path | None
    ignored: tuple[Notice, ...]


def discover(folder: Path) -> Discovery:
    """List the views of a scene folder without opening them.

    Raises:
        UsageError: if the folder does not exist or is a file.
        InputError: if it contains no view.
    """
    if not folder.exists():
        raise UsageError(f"scene folder '{folder}' does not exist", "give the folder that contains the videos")
    if not folder.is_dir():
        raise UsageError(
            f"'{folder}' is a file", f"give the folder that contains the videos, for example '{folder.parent}'"
        )
    candidates: list[Candidate] = []
    ignored: list[Notice] = []
    sync_file = None
    try:
        for entry in sorted(folder.iterdir(), key=lambda path: natural_key(path.name)):
            if entry.name.lower() in _SYNC_FILES:
                if sync_file is None:
                    sync_file = entry
                else:
                    ignored.append(Notice(f"ignored {entry.name}: {sync_file.name} is used", Level.INFO))
            elif (notice := _reason_to_ignore(entry)) is not None:
                ignored.append(Notice(f"ignored {entry.name}: {notice.marked_text}", notice.level))
            else:
                candidates.append(Candidate(name=composed(entry.name if entry.is_dir() else entry.stem), path=entry))
        if not candidates:
            raise _no_videos(folder)
    except PermissionError as error:
        raise InputError(
            f"'{error.filename}': permission denied", f"make it readable: chmod u+rx '{error.filename}'"
        ) from error
    notices = (*ignored, *_chapter_notices(candidates))
    return Discovery(candidates=_distinct(candidates), sync_file=sync_file, ignored=notices)


def select_views(
    candidates: tuple[Candidate, ...], wanted: int | tuple[str, ...] | None, folder: Path
) -> tuple[tuple[Candidate, ...], tuple[Notice, ...]]:
    """Select the first `wanted` views, or the views with the given names in the given order.

    Raises:
        InputError: if there are fewer videos than requested.
        UsageError: if a name is unknown or repeated.
    """
    if wanted is None:
        return candidates, ()
    files = listed([candidate.path.name for candidate in candidates])
    if isinstance(wanted, int):
        if wanted > len(candidates):
            count = counted(len(candidates), "video")
            raise InputError(
                f"⟨views={wanted}⟩, but '{folder}' has {count}: {files}", f"pass ⟨views={len(candidates)}⟩"
            )
        unused = [candidate.path.name for candidate in candidates[wanted:]]
        used = listed([candidate.path.name for candidate in candidates[:wanted]])
        text = f"using {wanted} of {len(candidates)} videos: {used}; not used: {listed(unused)}"
        return candidates[:wanted], (Notice(text),) if unused else ()
    by_name = {candidate.name: candidate for candidate in candidates}
    names = tuple(composed(name) for name in wanted)
    for name in names:
        if name not in by_name:
            raise UsageError(
                f"⟨views⟩: no view is called '{shortened(name)}', the views are {listed(by_name)}",
                "give names of views, without suffix",
            )
    if len(set(names)) < len(names):
        raise UsageError(f"⟨views⟩ contains a view twice: {listed(names)}", "give each view once")
    return tuple(by_name[name] for name in names), ()


def _chapter_notices(candidates: Sequence[Candidate]) -> list[Notice]:
    """Warn of the chapters of a recording, which are not recordings of several cameras.

    Source: GoPro, "Camera File Naming Convention": two letters, the chapter (2 digits), the number of the recording
    (4 digits).
    """
    chapters: dict[str, list[str]] = {}
    for candidate in candidates:
        if match := re.fullmatch(r"(G[HX])\d\d(\d{4})", candidate.name):
            chapters.setdefault("".join(match.groups()), []).append(candidate.path.name)
    return [
        Notice(f"{listed(names)} are chapters of one recording by their names: join them, or select one by ⟨views⟩")
        for names in chapters.values()
        if len(names) > 1
    ]


def _distinct(candidates: list[Candidate]) -> tuple[Candidate, ...]:
    """Keep the suffix in repeated names, such as those of `cam1.mp4` and `cam1.mov`, until all names are unique."""
    names = [candidate.name for candidate in candidates]
    repeated = {name for name, count in Counter(names).items() if count > 1}
    if not repeated:
        return tuple(candidates)
    return _distinct(
        [
            Candidate(name=candidate.path.name, path=candidate.path) if candidate.name in repeated else candidate
            for candidate in candidates
        ]
    )


def _reason_to_ignore(entry: Path) -> Notice | None:
    """Return why an entry is not a view; None if it is."""
    name = entry.name.lower()
    has_video_suffix = entry.suffix.lower() in VIDEO_SUFFIXES
    if name.startswith("."):
        return Notice("hidden", Level.INFO)
    if entry.is_dir():
        if name in RESERVED_FOLDERS:
            return Notice(RESERVED_FOLDERS[name], Level.INFO)
        if image_files(entry):
            return None
        if unread := image_files(entry, UNREAD_SUFFIXES):
            kind = unread[0].suffix.lower().lstrip(".")
            return Notice(f"a folder of {kind} files, which are not read; convert them to PNG or JPEG")
        if videos := sum(file.suffix.lower() in VIDEO_SUFFIXES for file in entry.iterdir()):
            return Notice(f"a folder of {counted(videos, 'video')}; to use it, give it as the scene")
        return Notice("a folder without images", Level.WARNING if has_video_suffix else Level.INFO)
    if is_calibration_name(entry):
        return Notice(f"possibly a calibration; pass ⟨calibration='{entry}'⟩ to use it")
    if has_video_suffix:
        return None
    if entry.suffix.lower() in _UNFINISHED_SUFFIXES and Path(entry.stem).suffix.lower() in VIDEO_SUFFIXES:
        return Notice("an unfinished download or copy of a video")
    if entry.suffix.lower() in _UNREAD_SUFFIXES:
        return Notice("a video of a format that is not read; convert it to MP4 or MKV")
    return Notice("not a video", Level.INFO)


def _no_videos(folder: Path) -> InputError:
    """Return the error for a folder without views; its hint depends on what the folder contains instead."""
    if (folder / "run.json").is_file():
        return InputError(
            f"'{folder}' is the result of a run, not a scene", "give the folder that contains the videos"
        )
    inner = {entry: _count_views(entry) for entry in sorted(folder.iterdir()) if _may_contain_views(entry)}
    best = max(inner, key=lambda entry: inner[entry], default=None)
    if best is not None and inner[best]:
        return InputError(f"no videos in '{folder}', but '{best}' has {inner[best]}", f"give the folder '{best}'")
    supported = "mp4, mov, mkv, webm, avi, m4v, mts and image folders"
    return InputError(f"no videos in '{folder}' (supported: {supported})", _hint_for_loose_images(folder))


def _may_contain_views(entry: Path) -> bool:
    readable = entry.is_dir() and os.access(entry, os.R_OK | os.X_OK)
    return readable and not entry.name.startswith(".") and entry.name.lower() not in RESERVED_FOLDERS


def _count_views(folder: Path) -> int:
    return sum(_reason_to_ignore(entry) is None for entry in folder.iterdir())


def _hint_for_loose_images(folder: Path) -> str:
    count = len(image_files(folder))
    if count:
        return f"it contains {counted(count, 'image')}: put the images of each view into a folder such as cam01/"
    return "give the folder that contains the videos"


def check_is_no_view(folder: Path, scenes: Iterable[Path]) -> None:
    """Refuse a folder for pictures directly below a scene.

    Raises:
        UsageError: naming the scene.
    """
    target = real_path(folder)
    for scene in scenes:
        is_ignored = target.name.startswith(".") or target.name.lower() in RESERVED_FOLDERS
        if target.parent == real_path(scene) and not is_ignored:
            raise UsageError(
                f"the pictures in '{folder}' would be a view of the scene '{scene}' next time",
                "give a folder outside the scene",
            )
