"""What a scene folder holds: one source a view, and what was ignored and why."""

from dataclasses import dataclass
from pathlib import Path

from page4d.errors import InputError, UsageError
from page4d.scene.files import check_regular_file, natural_key
from page4d.scene.images import image_files
from page4d.scene.records import Level, Notice
from page4d.scene.video import VIDEO_SUFFIXES

RESERVED_FOLDERS = {"masks": "masks, read with --masks", "truth": "ground truth", "sparse": "a COLMAP calibration"}
"""Folders beside the videos that never are views."""

_CALIBRATION_ENDINGS = (".qca.txt", ".toml", ".yml", ".yaml")
_KNOWN_FILES = {"transforms.json": "a calibration", "cameras.json": "a calibration"}
_SYNC_FILES = ("sync.json", "sync.toml")


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A file or folder that is taken for a view."""

    name: str
    path: Path

    @property
    def is_image_folder(self) -> bool:
        """True for a folder of images, False for a video file."""
        return self.path.is_dir()


@dataclass(frozen=True, kw_only=True)
class Discovery:
    """Views in natural order of their names, the folder's sync file if there is one, and notes on all the rest."""

    candidates: tuple[Candidate, ...]
    sync_file: Path | None
    ignored: tuple[Notice, ...]


def discover(folder: Path) -> Discovery:
    """Look through a scene folder; nothing is opened.

    Raises:
        UsageError: if the folder does not exist or is a file.
        InputError: if it holds nothing that can be a view.
    """
    if not folder.exists():
        raise UsageError(f"scene folder '{folder}' does not exist", "give the folder that holds the videos")
    if not folder.is_dir():
        raise UsageError(
            f"'{folder}' is a file; give the folder that holds the videos", f"for example: '{folder.parent}'"
        )
    candidates, ignored, sync_file = [], [], None
    try:
        for entry in sorted(folder.iterdir(), key=lambda path: natural_key(path.name)):
            if entry.name in _SYNC_FILES and sync_file is None:
                sync_file = entry
                continue
            reason = (
                f"{sync_file.name} is used" if entry.name in _SYNC_FILES and sync_file else _reason_to_ignore(entry)
            )
            if reason is None:
                candidates.append(Candidate(name=_view_name(entry), path=entry))
            else:
                ignored.append(Notice(f"ignored {entry.name}: {reason}", _level(entry, reason)))
    except PermissionError as error:
        raise InputError(
            f"'{error.filename}': permission denied", f"make it readable: chmod u+rx '{error.filename}'"
        ) from error
    if not candidates:
        looked_for = "mp4, mov, mkv, webm, avi, m4v, mts, and image folders"
        raise InputError(f"no videos in '{folder}' (looked for {looked_for})", _hint_for_loose_images(folder))
    return Discovery(candidates=_distinct(candidates), sync_file=sync_file, ignored=tuple(ignored))


def select_views(
    candidates: tuple[Candidate, ...], wanted: int | tuple[str, ...] | None, folder: Path
) -> tuple[tuple[Candidate, ...], tuple[Notice, ...]]:
    """Choose the first `wanted` views or those with the given names, in the given order.

    Raises:
        InputError: if there are fewer videos than asked for.
        UsageError: if a name is unknown or given twice.
    """
    if wanted is None:
        return candidates, ()
    files = ", ".join(candidate.path.name for candidate in candidates)
    if isinstance(wanted, int):
        if wanted > len(candidates):
            count = "1 video" if len(candidates) == 1 else f"{len(candidates)} videos"
            raise InputError(
                f"--views {wanted}, but '{folder}' has {count}: {files}", f"pass --views {len(candidates)}"
            )
        unused = [candidate.path.name for candidate in candidates[wanted:]]
        used = ", ".join(candidate.path.name for candidate in candidates[:wanted])
        text = f"using {wanted} of {len(candidates)} videos: {used}; not used: {', '.join(unused)}"
        return candidates[:wanted], (Notice(text),) if unused else ()
    by_name = {candidate.name: candidate for candidate in candidates}
    for name in wanted:
        if name not in by_name:
            raise UsageError(
                f"--views names '{name}', the videos are {', '.join(by_name)}", "give names without suffix"
            )
    if len(set(wanted)) < len(wanted):
        raise UsageError(f"--views names a view twice: {', '.join(wanted)}", "name each view once")
    return tuple(by_name[name] for name in wanted), ()


def _view_name(entry: Path) -> str:
    return entry.name if entry.is_dir() else entry.stem


def _distinct(candidates: list[Candidate]) -> tuple[Candidate, ...]:
    """Tell apart `cam1.mp4` and `cam1.mov`: names that occur twice keep their suffix, until none does."""
    names = [candidate.name for candidate in candidates]
    twice = {name for name in names if names.count(name) > 1}
    if not twice:
        return tuple(candidates)
    return _distinct(
        [
            Candidate(name=candidate.path.name, path=candidate.path) if candidate.name in twice else candidate
            for candidate in candidates
        ]
    )


def _reason_to_ignore(entry: Path) -> str | None:
    name = entry.name.lower()
    if name.startswith("."):
        return "hidden"
    if entry.is_dir():
        if name in RESERVED_FOLDERS:
            return RESERVED_FOLDERS[name]
        return None if image_files(entry) else "a folder without images"
    if name in _KNOWN_FILES or name.endswith(_CALIBRATION_ENDINGS):
        return f"looks like a calibration; pass --calibration '{entry}' to use it"
    if entry.suffix.lower() in VIDEO_SUFFIXES:
        return None
    return "not a video"


def _level(entry: Path, reason: str) -> Level:
    odd_folder = entry.is_dir() and (reason == "a folder without images" and entry.suffix.lower() in VIDEO_SUFFIXES)
    return Level.WARNING if odd_folder or reason.startswith("looks like") else Level.INFO


def _hint_for_loose_images(folder: Path) -> str:
    loose = len(image_files(folder))
    if loose:
        return f"it holds {loose} images: put the images of each view into a folder of their own, such as cam01/"
    return "give the folder that holds the videos"


def check_openable(candidate: Candidate) -> None:
    """Refuse a view whose file cannot be read, before any decoder waits on it."""
    if not candidate.is_image_folder:
        check_regular_file(candidate.path)
