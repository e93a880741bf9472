"""Discovery of the views in a scene folder.

Folders for pictures may not lie directly in a scene, where they would be views the next time.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from page4d.errors import InputError, Level, Notice, UsageError, counted, listed, unknown_name
from page4d.formats.calibrations import describes_cameras, is_calibration_name
from page4d.formats.files import partner_of
from page4d.io.atomic import real_path
from page4d.io.input_files import CAMERA_NAME, VIDEO_SUFFIXES, composed, missing_path_hint, natural_key
from page4d.scene import layout
from page4d.scene.images import IMAGE_SUFFIXES, UNREAD_SUFFIXES, files_with
from page4d.scene.layout import Candidate, LeftOut
from page4d.scene.stamps import TABLE_FOLDER, is_stamp_table

RESERVED_FOLDERS = {
    "masks": "masks, read with ⟨masks⟩",
    "truth": "ground truth",
    "sparse": "a COLMAP calibration",
    **dict.fromkeys(layout.SMALL_FOLDERS, "small copies of recordings"),
    **dict.fromkeys(layout.SYSTEM_FOLDERS, "a folder of the operating system"),
}
"""Names of folders that are not views."""

_RESULT = "run.json"
"""A folder with this file is the result of a run."""

_SYNC_FILES = ("sync.json", "sync.toml")
_CLOCKS = re.compile(r"(sync|(time[ _-]?)?offsets?)([ _.-].*)?\.(json|toml|txt|csv|tsv|ya?ml)")
"""Names of files that probably state the clocks of views, such as `sync.json.txt` or `offsets.csv`."""

_MAY_BE_CLOCKS = Notice("possibly clocks of the views, not read; write them as sync.json")

_UNFINISHED_SUFFIXES = frozenset(".part .partial .crdownload .download .filepart .tmp .aria2".split())
"""Suffixes that browsers and copying programs append until a file is complete."""

_ARCHIVES = frozenset(".zip .7z .rar .tar .tgz .gz .bz2 .xz .zst".split())

_UNREAD_SUFFIXES = frozenset(
    ".3g2 .360 .asf .av1 .bag .braw .cine .crm .dav .divx .dv .f4v .insv .m2v .mcap .mcraw .mjpeg .mjpg .mlv .qt "
    ".r3d .smc .svo .svo2 .vob .vrs".split()
)
"""Suffixes of video files that are not read."""


@dataclass(frozen=True, kw_only=True)
class Discovery:
    """Views in natural order of their names, the sync file of the folder if any, and notices of ignored entries.

    `left_out` are recordings that are used only if they are selected by name.
    """

    candidates: tuple[Candidate, ...]
    left_out: tuple[LeftOut, ...]
    sync_file: Path | None
    notices: tuple[Notice, ...]

    def named(self) -> dict[str, Candidate]:
        """Return the recordings by name, with those that are left out."""
        others = (one.candidate for one in self.left_out)
        return {candidate.name: candidate for candidate in (*others, *self.candidates)}

    def with_cameras(self, names: Collection[str]) -> "Discovery":
        """Return it with those left out as previews as views, if their names are among the given ones of cameras."""
        kept = [one for one in self.left_out if one.kind == layout.SHOWN and one.candidate.name in names]
        candidates = (*self.candidates, *(one.candidate for one in kept))
        views = _distinct(sorted(candidates, key=lambda candidate: natural_key(candidate.name)))
        return replace(self, candidates=views, left_out=tuple(one for one in self.left_out if one not in kept))


def discover(folder: Path, calibration: Path | None = None, sync: str = "") -> Discovery:
    """List the views of a scene folder; pictures are decoded only of recordings with names of copies.

    The files of `calibration` and `sync` are in use and therefore not reported.

    Raises:
        UsageError: if the folder does not exist or is a file.
        InputError: if it contains no view.
    """
    if not folder.exists():
        hint = missing_path_hint(folder, "give the folder that contains the videos")
        raise UsageError(f"scene folder '{folder}' does not exist", hint)
    if not folder.is_dir():
        raise UsageError(
            f"'{folder}' is a file", f"give the folder that contains the videos, for example '{folder.parent}'"
        )
    try:
        entries = _entries(folder, calibration, Path(sync) if sync else None)
        candidates, left, instants = _views(folder, entries)
    except PermissionError as error:
        raise InputError(
            f"'{error.filename}': permission denied", f"make it readable: chmod u+rx '{error.filename}'"
        ) from error
    ignored = _without_stamp_tables(entries, folder, [candidate.name for candidate in candidates])
    return Discovery(
        candidates=_distinct(candidates),
        left_out=tuple(left),
        sync_file=entries.sync_file,
        notices=(*_ignored(ignored), *layout.missing_chapters(candidates), *instants),
    )


@dataclass(frozen=True)
class _Entries:
    """Entries of a scene folder: recordings, folders that are none by themselves, and names to ignore by reason."""

    recordings: list[Candidate]
    folders: list[Path]
    ignored: dict[Notice, list[str]]
    sync_file: Path | None


def _entries(folder: Path, calibration: Path | None, sync: Path | None) -> _Entries:
    """Sort the entries of a folder by what they are; `calibration` and `sync` are in use."""
    recordings: list[Candidate] = []
    folders: list[Path] = []
    ignored: dict[Notice, list[str]] = defaultdict(list)
    sync_file = None
    in_use = (sync, calibration, calibration and partner_of(calibration))
    used = {real_path(path) for path in in_use if path}
    for entry in sorted(folder.iterdir(), key=lambda path: natural_key(path.name)):
        if entry.name.lower() in _SYNC_FILES:
            if sync_file is None:
                sync_file = entry
            else:
                ignored[_is_used(sync_file)].append(entry.name)
        elif (notice := _reason_to_ignore(entry, calibration)) is not None:
            is_used = real_path(entry) in used or (real_path(folder) in used and is_calibration_name(entry))
            if not is_used:
                ignored[notice].append(entry.name)
        elif not entry.is_dir():
            recordings.append(Candidate(name=composed(entry.stem), path=entry, label=entry.name))
        elif view := layout.image_view(entry, entry.name):
            recordings.append(view)
        else:
            folders.append(entry)
    return _Entries(recordings, folders, ignored, sync_file)


def _views(folder: Path, entries: _Entries) -> tuple[list[Candidate], list[LeftOut], list[Notice]]:
    """Return the views, what is left out, and notices of folders that are instants; `entries` gets ignored folders.

    Raises:
        InputError: if there is no view.
    """
    candidates, folders, left = [*entries.recordings], [*entries.folders], []
    are_none = all(layout.is_no_camera(each.name) or layout.is_shown(each.name) for each in candidates)
    below = _below(folders) if are_none else {}
    if _are_cameras(below):
        for entry, (kept, more) in below.items():
            folders.remove(entry)
            candidates += kept
            left += more
        candidates.sort(key=lambda candidate: natural_key(candidate.name))
    elif not candidates and (loose := layout.image_view(folder, ".")) and layout.cameras_in_names(loose)[0]:
        candidates.append(replace(loose, label=""))
        for names in entries.ignored.values():
            names[:] = [name for name in names if folder / name not in loose.files]
    elif below:
        candidates = []
    for entry in folders:
        entries.ignored[_folder_without_images(entry)].append(entry.name)
    if not candidates:
        raise _no_videos(folder, {entry: len(kept) for entry, (kept, _) in below.items()}, _ignored(entries.ignored))
    candidates, more = layout.cameras_alone(candidates)
    left += more
    if len(candidates) == 1 and (alone := layout.cameras_in_names(candidates[0]))[0]:
        candidates, more = alone
        left += more
    candidates, instants = layout.views_of_instants(folder, candidates)
    if instants:
        candidates, more = layout.cameras_alone(candidates)
        left += more
    return candidates, left, instants


def _without_stamp_tables(entries: _Entries, folder: Path, views: list[str]) -> dict[Notice, list[str]]:
    """Return the ignored names by reason without tables of time stamps, which are read with the clocks."""
    names = [name for names in entries.ignored.values() for name in names]
    tables = [name for name in names if name == TABLE_FOLDER or is_stamp_table(folder / name, views)]
    remaining = {reason: [name for name in names if name not in tables] for reason, names in entries.ignored.items()}
    if entries.sync_file is not None:
        remaining.setdefault(_is_used(entries.sync_file), []).extend([*tables, *remaining.pop(_MAY_BE_CLOCKS, [])])
    return {reason: names for reason, names in remaining.items() if names}


def _is_used(sync_file: Path) -> Notice:
    return Notice(f"{sync_file.name} is used", Level.INFO)


def _ignored(reasons: dict[Notice, list[str]]) -> list[Notice]:
    return [
        Notice(f"ignored {listed(names)}: {reason.marked_text}", reason.level) for reason, names in reasons.items()
    ]


def _below(folders: list[Path]) -> dict[Path, tuple[list[Candidate], list[LeftOut]]]:
    """Return the recordings below folders that may be those of single cameras."""
    may_be = [entry for entry in folders if not (entry / _RESULT).is_file() and not layout.is_no_camera(entry.name)]
    found = {entry: layout.recordings_below(entry) for entry in may_be}
    found = {entry: views for entry, views in found.items() if views[0]}
    cameras = [entry for entry, (kept, _) in found.items() if len(kept) == 1 or not layout.is_shown(entry.name)]
    return {entry: found[entry] for entry in cameras} or found


def _are_cameras(below: dict[Path, tuple[list[Candidate], list[LeftOut]]]) -> bool:
    """Return whether folders are those of the cameras of a rig: several with one recording each."""
    if len(below) < 2 or any(
        len(kept) != 1 or layout.HOLDERS.fullmatch(entry.name) for entry, (kept, _) in below.items()
    ):
        return False
    return not layout.are_takes([recording for kept, _ in below.values() for recording in kept])


def select_views(
    found: Discovery, wanted: int | tuple[str, ...] | None, folder: Path
) -> tuple[tuple[Candidate, ...], tuple[Notice, ...]]:
    """Select all views, the first `wanted` views, or those with the given names in the given order.

    Raises:
        InputError: if there are fewer videos than requested, or the images of a view are several series.
        UsageError: if a name is unknown or repeated.
    """
    chosen, notices = _selected(found, wanted, folder)
    series = [layout.one_series(candidate) for candidate in chosen]
    left = [one for one in found.left_out if one.candidate not in chosen]
    left += [one for _, more in series for one in more]
    left += [one for candidate in chosen for one in layout.left_beside(candidate, folder)]
    return tuple(candidate for candidate, _ in series), (*notices, *layout.notices_of(left))


def _selected(
    found: Discovery, wanted: int | tuple[str, ...] | None, folder: Path
) -> tuple[tuple[Candidate, ...], tuple[Notice, ...]]:
    candidates = found.candidates
    if wanted is None:
        return candidates, ()
    labels = [candidate.label.rstrip("/") for candidate in candidates]
    if isinstance(wanted, int):
        if wanted > len(candidates):
            count = counted(len(candidates), "video")
            raise InputError(
                f"⟨views={wanted}⟩, but '{folder}' has {count}: {listed(labels)}", f"pass ⟨views={len(candidates)}⟩"
            )
        unused = labels[wanted:]
        text = f"using {wanted} of {len(candidates)} videos: {listed(labels[:wanted])}; not used: {listed(unused)}"
        return candidates[:wanted], (Notice(text),) if unused else ()
    by_name = found.named()
    names = tuple(composed(name) for name in wanted)
    for name in names:
        if name not in by_name:
            raise unknown_name("view", name, by_name, "⟨views⟩: ")
    if len(set(names)) < len(names):
        raise UsageError(f"⟨views⟩ contains a view twice: {listed(names)}", "give each view once")
    return tuple(by_name[name] for name in names), ()


def _distinct(candidates: list[Candidate]) -> tuple[Candidate, ...]:
    """Keep the suffix in repeated names, such as those of `cam1.mp4` and `cam1.mov`, until all names are unique."""
    names = [candidate.name for candidate in candidates]
    repeated = {name for name, count in Counter(names).items() if count > 1}
    if not repeated:
        return tuple(candidates)
    return _distinct(
        [
            replace(candidate, name=candidate.path.name) if candidate.name in repeated else candidate
            for candidate in candidates
        ]
    )


def _reason_to_ignore(entry: Path, calibration: Path | None) -> Notice | None:
    """Return why an entry is not a view by its name; None if it may be one. `calibration` is the one in use."""
    name = entry.name.lower()
    if name.startswith("."):
        return Notice("hidden", Level.INFO)
    if entry.is_dir():
        return Notice(RESERVED_FOLDERS[name], Level.INFO) if name in RESERVED_FOLDERS else None
    is_calibration = is_calibration_name(entry)
    if _CLOCKS.fullmatch(name) and not (is_calibration and describes_cameras(entry)):
        return _MAY_BE_CLOCKS
    if is_calibration:
        if calibration is not None:
            return Notice("another calibration is used", Level.INFO)
        if describes_cameras(entry) is False:
            return Notice("no camera of a supported format in it", Level.INFO)
        return Notice("possibly a calibration; pass ⟨calibration=FILE⟩ to use it")
    if entry.suffix.lower() in VIDEO_SUFFIXES:
        return None
    if entry.suffix.lower() in _UNFINISHED_SUFFIXES and Path(entry.stem).suffix.lower() in VIDEO_SUFFIXES:
        return Notice("an unfinished download or copy of a video")
    if entry.suffix.lower() in _UNREAD_SUFFIXES:
        return Notice("a video of a format that is not read; convert it to MP4 or MKV")
    if entry.suffix.lower() in _ARCHIVES:
        return Notice("an archive; unpack recordings that are in it")
    return Notice("not a video", Level.INFO)


def _folder_without_images(entry: Path) -> Notice:
    if unread := files_with(entry, UNREAD_SUFFIXES):
        kind = unread[0].suffix.lower().lstrip(".")
        return Notice(f"a folder of {kind} files, which are not read; convert them to PNG or JPEG")
    if videos := sum(file.suffix.lower() in VIDEO_SUFFIXES for file in entry.iterdir()):
        return Notice(f"a folder of {counted(videos, 'video')}; to use it, give it as the scene")
    has_video_suffix = entry.suffix.lower() in VIDEO_SUFFIXES
    return Notice("a folder without images", Level.WARNING if has_video_suffix else Level.INFO)


def _no_videos(folder: Path, below: dict[Path, int], ignored: list[Notice]) -> InputError:
    """Return the error for a folder without views; its hint depends on what the folder contains instead."""
    if (folder / _RESULT).is_file():
        return InputError(
            f"'{folder}' is the result of a run, not a scene", "give the folder that contains the videos"
        )
    if below:
        counts = sorted(below.items(), key=lambda entry: -entry[1])
        others = listed([f"{entry.name} {count}" for entry, count in counts[1:]], 3)
        found = f"'{counts[0][0]}' has {counts[0][1]}{f', {others}' if others else ''}"
        each = ", or put one recording of every camera into a folder such as cam01" if len(below) > 1 else ""
        best = [entry for entry, count in counts if count == counts[0][1]]
        give = f"give the folder '{best[0]}'" if len(best) == 1 else "give one of these folders"
        if len(below) > 1 and all(CAMERA_NAME.fullmatch(entry.name) for entry in below):
            give, each = "put the recordings of one take into a folder, one per camera", ""
        return InputError(f"no videos of cameras in '{folder}', but {found}", give + each)
    supported = "mp4, mov, mkv, webm, avi, m4v, mts and image folders"
    warnings = [notice.marked_text for notice in ignored if notice.level is Level.WARNING]
    found = "".join(f"; {text}" for text in warnings[:3])
    hint = "give the folder that contains the videos"
    if count := len(files_with(folder, IMAGE_SUFFIXES)):
        hint = f"it contains {counted(count, 'image')}: put the images of each view into a folder such as cam01/"
    return InputError(f"no videos in '{folder}' (supported: {supported}){found}", hint)


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
                f"the pictures in '{folder}' would be read as a view of the scene '{scene}'",
                "give a folder outside the scene",
            )
