"""Names and paths of every file in an output folder."""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from page4d.errors import OutputError, UsageError, listed
from page4d.io.atomic import real_path

LONGEST_NAME = 64
"""Maximum length of a cleaned view name."""

SAFE_NAME = r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,63}$"
"""Pattern of a cleaned view name; a leading dot would hide the file, a leading dash would read as an option."""


_VIEW = SAFE_NAME.strip("^$")
_OWN_FILE = re.compile(
    rf"(run|cameras)\.json|cameras/{_VIEW}\.(tum|open3d\.json)|(points|mesh)/((moving/)?frame_[0-9]{{6,}}|static)\.ply"
    rf"|(depth|confidence|dynamic|motion|motion_sigma)/{_VIEW}/frame_[0-9]{{6,}}\.png|tracks/tracks\.npz"
    r"|preview/(contact_sheet\.png|cloud\.png|orbit\.mp4)"
    r"|state/(run\.json|chunk_[0-9]{5,}\.json|((memory|tracks)_[0-9]{5,}|background)\.safetensors)"
)


def is_own_file(name: str) -> bool:
    """Return whether page4d writes a file of this name, relative to the output folder."""
    return _OWN_FILE.fullmatch(name) is not None


def safe_names(names: Sequence[str]) -> tuple[str, ...]:
    """Turn view names into distinct file names, also where upper and lower case count as equal.

    Accents are dropped, other characters become `_`, and names that collide get `_2`, `_3` and so on.
    """
    taken: set[str] = set()
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
    cleaned = re.sub(r"[^A-Za-z0-9._-]", "_", letters).lstrip(".")[:LONGEST_NAME]
    return re.sub(r"^-", "_", cleaned) or "view"


@dataclass(frozen=True)
class OutputLayout:
    """Paths of all output files below `folder`; methods take the true names of views.

    `file_names` are the cleaned names, made from `view_names` unless a record of an earlier run gives them.
    """

    folder: Path
    view_names: tuple[str, ...]
    file_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(set(self.view_names)) != len(self.view_names):
            raise UsageError(f"two views have the same name: {listed(self.view_names)}", "rename one of them")
        names = self.file_names or safe_names(self.view_names)
        if len(names) != len(self.view_names):
            raise UsageError(f"{len(names)} file names for {len(self.view_names)} views", "name every view once")
        object.__setattr__(self, "folder", Path(self.folder))
        object.__setattr__(self, "file_names", tuple(names))

    def file_name(self, view: str) -> str:
        """Return the cleaned name of a view.

        Raises:
            UsageError: if there is no such view.
        """
        if view not in self.view_names:
            raise UsageError(f"no view is called '{view}'", f"the views are {listed(self.view_names)}")
        return self.file_names[self.view_names.index(view)]

    @property
    def run(self) -> Path:
        """Record of the run: settings, conventions, views, times, diagnostics."""
        return self.path("run.json")

    @property
    def cameras(self) -> Path:
        """Cameras of every view and instant."""
        return self.path("cameras.json")

    def tum(self, view: str) -> Path:
        """Trajectory of a view in the TUM format."""
        return self.path("cameras", f"{self.file_name(view)}.tum")

    def open3d_trajectory(self, view: str) -> Path:
        """Trajectory of a view in Open3D's format."""
        return self.path("cameras", f"{self.file_name(view)}.open3d.json")

    def points(self, index: int) -> Path:
        """Merged point cloud of an instant."""
        return self.path("points", f"{frame_name(index)}.ply")

    @property
    def static_points(self) -> Path:
        """Point cloud of what does not move, once for all instants."""
        return self.path("points", "static.ply")

    def moving_points(self, index: int) -> Path:
        """Point cloud of what moves at an instant."""
        return self.path("points", "moving", f"{frame_name(index)}.ply")

    def mesh(self, index: int) -> Path:
        """Mesh of an instant."""
        return self.path("mesh", f"{frame_name(index)}.ply")

    @property
    def static_mesh(self) -> Path:
        """Mesh of what does not move, once for all instants."""
        return self.path("mesh", "static.ply")

    def moving_mesh(self, index: int) -> Path:
        """Mesh of what moves at an instant."""
        return self.path("mesh", "moving", f"{frame_name(index)}.ply")

    def depth(self, index: int, view: str) -> Path:
        """Depth map of a frame."""
        return self.path("depth", self.file_name(view), f"{frame_name(index)}.png")

    def confidence(self, index: int, view: str) -> Path:
        """Confidence map of a frame."""
        return self.path("confidence", self.file_name(view), f"{frame_name(index)}.png")

    def dynamic(self, index: int, view: str) -> Path:
        """Motion mask of a frame."""
        return self.path("dynamic", self.file_name(view), f"{frame_name(index)}.png")

    def motion(self, index: int, view: str) -> Path:
        """Velocity map of a frame."""
        return self.path("motion", self.file_name(view), f"{frame_name(index)}.png")

    def motion_sigma(self, index: int, view: str) -> Path:
        """Standard deviations of the velocities of a frame."""
        return self.path("motion_sigma", self.file_name(view), f"{frame_name(index)}.png")

    @property
    def tracks(self) -> Path:
        """Trajectories of points."""
        return self.path("tracks", "tracks.npz")

    def preview(self, name: str) -> Path:
        """Preview picture or video, by its file name."""
        return self.path("preview", name)

    def state(self, name: str) -> Path:
        """Record from which a run is resumed, by its file name."""
        return self.path("state", name)

    def path(self, *parts: str) -> Path:
        """Join parts below the folder; a link at the last part itself is not followed.

        Raises:
            OutputError: if a link or a part would lead outside the folder.
        """
        path = self.folder.joinpath(*parts)
        if path.name in ("", "..") or not real_path(path.parent).is_relative_to(real_path(self.folder)):
            raise OutputError(f"'{path}' leads outside '{self.folder}'", "remove the link, or choose another folder")
        return path


def frame_name(index: int) -> str:
    """Return the name of an instant: zero-padded with a shared prefix, so that viewers import an animation."""
    return f"frame_{index:06d}"
