"""Names and paths of every file in an output folder."""

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from page4d.errors import OutputError, UsageError, listed, unknown_name
from page4d.io.atomic import real_path

LONGEST_NAME = 64
"""Maximum length of a cleaned view name."""

SAFE_NAME = r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,63}$"
"""Pattern of a cleaned view name; a leading dot would hide the file, a leading dash would read as an option."""

VIEW, FRAME = "{view}", "frame_{index:06d}"
"""Parts of patterns: the file name of a view, and of an instant: zero-padded with a shared prefix, so that viewers
import an animation."""


@dataclass(frozen=True)
class OutputFile:
    """A kind of output file, by the pattern of its name below the output folder.

    Subclasses are attributes of `OutputLayout`: the path, or a function of view and index that returns it.
    """

    pattern: str

    @property
    def top(self) -> str:
        """First part of the pattern, a name in the output folder itself."""
        return self.pattern.partition("/")[0]

    @property
    def glob(self) -> str:
        """The pattern for `Path.glob`."""
        return re.sub(r"\{.*?\}", "*", self.pattern)

    @property
    def expression(self) -> str:
        """Regular expression of the names."""
        expression = re.sub(r"\\\{index:0(.)d\\\}", r"[0-9]{\1,}", re.escape(self.pattern))
        return expression.replace(re.escape(VIEW), SAFE_NAME.strip("^$"))

    def names(self, file_names: Sequence[str], num_times: int) -> list[str]:
        """Name all files of a run with these file names of views; a chunk has at least one instant of its own."""
        views = file_names if VIEW in self.pattern else ("",)
        indices = range(num_times if "{index" in self.pattern else 1)
        return [self.pattern.format(view=view, index=index) for view in views for index in indices]


class _Once(OutputFile):
    def __get__(self, layout: "OutputLayout", _: object) -> Path:
        return layout.path(self.pattern)


class _PerView(OutputFile):
    def __get__(self, layout: "OutputLayout", _: object) -> Callable[[str], Path]:
        return lambda view: layout.path(self.pattern.format(view=layout.file_name(view)))


class _PerIndex(OutputFile):
    """One for every instant, or every chunk."""

    def __get__(self, layout: "OutputLayout", _: object) -> Callable[[int], Path]:
        return lambda index: layout.path(self.pattern.format(index=index))


class _PerFrame(OutputFile):
    """One for every instant and view."""

    def __get__(self, layout: "OutputLayout", _: object) -> Callable[[int, str], Path]:
        return lambda index, view: layout.path(self.pattern.format(index=index, view=layout.file_name(view)))


_DEVICES = {"con", "prn", "aux", "nul", *(f"{port}{number}" for port in ("com", "lpt") for number in range(10))}
"""Names that Windows keeps for devices, also before a dot; nor can its names end in a dot.

Source: Microsoft, "Naming Files, Paths, and Namespaces".
"""


def safe_names(names: Sequence[str]) -> tuple[str, ...]:
    """Turn view names into distinct file names, also where upper and lower case count as equal, and on Windows.

    Accents are dropped, other characters become `_`, and names that collide get `_2`, `_3` and so on, as do those of
    devices.
    """
    taken = set(_DEVICES)
    cleaned = []
    for name in names:
        base = _clean(name)
        candidate, number = base, 1
        while candidate.casefold() in taken:
            number += 1
            suffix = f"_{number}"
            candidate = base[: LONGEST_NAME - len(suffix)] + suffix
        taken.add(candidate.casefold())
        cleaned.append(candidate)
    return tuple(cleaned)


def _clean(name: str) -> str:
    letters = "".join(char for char in unicodedata.normalize("NFKD", name) if not unicodedata.combining(char))
    cleaned = re.sub(r"[^A-Za-z0-9._-]", "_", letters).lstrip(".")[:LONGEST_NAME].rstrip(".")
    if cleaned.partition(".")[0].casefold() in _DEVICES:
        cleaned = cleaned.replace(".", "_", 1)
    return re.sub(r"^-", "_", cleaned) or "view"


@dataclass(frozen=True)
class OutputLayout:
    """Paths of all output files below `folder`: one row per kind of file; functions take the true names of views.

    Writing, cleaning, overwriting, resuming and the protection of input files follow these rows. `file_names` are the
    cleaned names, made from `view_names` unless a record of an earlier run gives them.
    """

    folder: Path
    view_names: tuple[str, ...]
    file_names: tuple[str, ...] = ()

    run = _Once("run.json")
    cameras = _Once("cameras.json")
    tum = _PerView(f"cameras/{VIEW}.tum")
    open3d_trajectory = _PerView(f"cameras/{VIEW}.open3d.json")
    points = _PerIndex(f"points/{FRAME}.ply")
    static_points = _Once("points/static.ply")
    moving_points = _PerIndex(f"points/moving/{FRAME}.ply")
    mesh = _PerIndex(f"mesh/{FRAME}.ply")
    static_mesh = _Once("mesh/static.ply")
    moving_mesh = _PerIndex(f"mesh/moving/{FRAME}.ply")
    depth = _PerFrame(f"depth/{VIEW}/{FRAME}.png")
    map_trajectory = _PerView(f"depth/{VIEW}/trajectory.open3d.json")
    map_intrinsics = _PerView(f"depth/{VIEW}/intrinsics.open3d.json")
    confidence = _PerFrame(f"confidence/{VIEW}/{FRAME}.png")
    dynamic = _PerFrame(f"dynamic/{VIEW}/{FRAME}.png")
    motion = _PerFrame(f"motion/{VIEW}/{FRAME}.png")
    motion_sigma = _PerFrame(f"motion_sigma/{VIEW}/{FRAME}.png")
    tracks = _Once("tracks/tracks.npz")
    contact_sheet = _Once("preview/contact_sheet.png")
    cloud_preview = _Once("preview/cloud.png")
    orbit = _Once("preview/orbit.mp4")
    run_state = _Once("state/run.json")
    chunk_state = _PerIndex("state/chunk_{index:05d}.json")
    chunk_memory = _PerIndex("state/memory_{index:05d}.safetensors")
    chunk_tracks = _PerIndex("state/tracks_{index:05d}.safetensors")
    background = _Once("state/background.safetensors")

    def __post_init__(self) -> None:
        if len(set(self.view_names)) != len(self.view_names):
            raise UsageError(f"two views have the same name: {listed(self.view_names)}", "rename one of them")
        names = self.file_names or safe_names(self.view_names)
        object.__setattr__(self, "folder", Path(self.folder))
        object.__setattr__(self, "file_names", tuple(names))

    def file_name(self, view: str) -> str:
        """Return the cleaned name of a view.

        Raises:
            UsageError: if there is no such view.
        """
        if view not in self.view_names:
            raise unknown_name("view", view, self.view_names)
        return self.file_names[self.view_names.index(view)]

    def path(self, name: str) -> Path:
        """Return the path of a name below the folder; a link at its last part is not followed.

        Raises:
            OutputError: if a link or a part would lead outside the folder.
        """
        path = self.folder / name
        if path.name in ("", "..") or not real_path(path.parent).is_relative_to(real_path(self.folder)):
            raise OutputError(f"'{path}' leads outside '{self.folder}'", "remove the link, or choose another folder")
        return path


OUTPUT_FILES = {kind: row for kind, row in vars(OutputLayout).items() if isinstance(row, OutputFile)}
"""All kinds of output files."""

OUTPUT_NAMES = tuple(dict.fromkeys(row.top for row in OUTPUT_FILES.values()))
"""Names of the files and folders in an output folder."""

OUTPUT_FOLDERS = tuple(dict.fromkeys(row.glob.rpartition("/")[0] for row in OUTPUT_FILES.values()))
"""Patterns of the folders with output files, for `Path.glob`; the first is empty, the output folder itself."""

_OWN_FILE = re.compile("|".join(row.expression for row in OUTPUT_FILES.values()))


def is_own_file(name: str) -> bool:
    """Return whether page4d writes a file of this name, relative to the output folder."""
    return _OWN_FILE.fullmatch(name) is not None


def frame_name(index: int) -> str:
    """Return the name of an instant."""
    return FRAME.format(index=index)
