"""The formats of `page4d export` as data: what each needs, and its defaults. Imports no torch."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum, StrEnum, auto
from importlib import import_module
from typing import TYPE_CHECKING, Any

from page4d.choices import ImageFormat, Pinhole
from page4d.errors import InputError, UsageError, counted, did_you_mean, listed, shortened

if TYPE_CHECKING:
    from page4d.exporters.job import ExportJob


class PictureUse(StrEnum):
    """Use of the scene's pictures by a format."""

    NONE = "none"
    OPTIONAL = "optional"
    NEEDED = "needed"


class BudgetScope(StrEnum):
    """What the largest number of points applies to."""

    CAPTURE = "capture"
    """The points of all instants together."""

    INSTANT = "instant"
    """The points of each instant."""


class Points(Enum):
    """Points that a format writes."""

    NONE = auto()
    INSTANTS = auto()
    """Those of every instant."""

    MODEL = auto()
    """Static ones once, moving ones of every instant."""

    LAYERS = auto()
    """Those of every instant; of a run with layers static ones once, and what moves at every instant."""

    FIRST = auto()
    """Those of the first instant."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Files of a format besides pictures: a number in all, for each view, instant and picture; its points and maps.

    `masks` are motion masks of the size of the pictures. `map_bytes` are those per pixel of the maps of a view and
    instant. `frame_bytes` is the size of the camera of a view and instant, `velocity_bytes` that of the
    velocity of a point, and `track_bytes` that of the position of a track at an instant.
    """

    files: int = 0
    per_view: int = 0
    per_instant: int = 0
    per_picture: int = 0
    points: Points = Points.NONE
    map_bytes: int = 0
    masks: bool = False
    frame_bytes: int = 100
    velocity_bytes: int = 0
    track_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Format:
    """A format, and what its readers need.

    `title` is the content of its files, `used_by` what reads them, and `layout` bounds the size of an export.
    `module`, by default that of its name, has `write(job, folder) -> Written`, which raises `InputError` if a frame
    or file of the run cannot be read and `OutputError` if a file cannot be written, and
    `next_step(job, folder) -> str`, the command or menu that uses the result. It may have `check(job)`, which refuses
    a job before anything is written. `up` is the axis that points up in its world, "" where the run's world is kept.
    `point_bytes` is the size of a point in its files. `options` are the fields of `ExportSettings` that only some
    formats take. A format that `cuts_outliers` drops points far outside the scene, because its readers derive the
    extent of the scene from them. Unless the user gives a scale, a run is scaled so that no point is nearer than
    `nearest` (0: any); metres are kept if none is nearer than half of it. Formats of the `same_size` take pictures of
    one size alone. A format that `needs_velocity` takes runs with velocities alone. Readers of one that `tests_first`
    test its first view, so that one alone may be held out.
    Formats with `animated_points` contain the middle instant alone; `animated`, all instants with up to that many.
    """

    name: str
    title: str
    used_by: str
    layout: "Layout | Callable[[ExportJob], Layout]"
    pictures: PictureUse = PictureUse.NEEDED
    module: str = ""
    extra: str = ""
    image_format: ImageFormat = ImageFormat.PNG
    pinhole: Pinhole = Pinhole.KEEP
    image_size: tuple[int, int] | None = None
    point_bytes: int = 0
    max_points: int = 0
    budget: BudgetScope = BudgetScope.CAPTURE
    up: str = ""
    static_rig: bool = False
    min_instants: int = 1
    max_instants: int | None = None
    min_views: int = 1
    max_views: int | None = None
    same_size: bool = False
    cuts_outliers: bool = True
    nearest: float = 0.0
    needs_velocity: bool = False
    tests_first: bool = False
    animated_points: int = 0
    options: frozenset[str] = frozenset()

    @property
    def code(self) -> Any:
        """The module of the format."""
        return import_module(f"page4d.exporters.{self.module or self.name}")

    def check_number(self, noun: str, number: int, least: int, most: int | None, hints: tuple[str, str]) -> None:
        """Refuse fewer views or instants than readers need, or more than they take, with a hint for each.

        Raises:
            InputError: naming both numbers.
        """
        if number < least:
            raise InputError(f"{self.name} needs at least {counted(least, noun)}; this export has {number}", hints[0])
        if most is not None and number > most:
            raise InputError(f"{self.name} takes at most {counted(most, noun)}; this export has {number}", hints[1])


VIEW_HINTS = ("export more views, or use another format", "choose some with ⟨views⟩")


def _colmap(job: "ExportJob") -> Layout:
    if job.settings.per_instant:
        return Layout(per_instant=8, points=Points.INSTANTS)
    return Layout(files=9 if job.is_static_rig else 6, points=Points.MODEL)


def _nerfstudio(job: "ExportJob") -> Layout:
    layout = Layout(per_picture=1, map_bytes=2, frame_bytes=900)
    if job.settings.per_instant:
        return replace(layout, per_instant=2, points=Points.INSTANTS)
    return replace(layout, files=2, points=Points.MODEL, masks=job.num_times > 1)


def _easyvolcap(job: "ExportJob") -> Layout:
    layout = Layout(files=1, per_view=2, per_instant=1, points=Points.INSTANTS, masks=True)
    return replace(layout, files=3, per_view=0) if job.is_static_rig else layout


def _usd(job: "ExportJob") -> Layout:
    layout = Layout(files=1, points=Points.LAYERS, velocity_bytes=12, track_bytes=17)
    if job.settings.split:
        return replace(layout, files=3 if job.output.has_tracks else 2, per_instant=1)
    return layout


def _npz(job: "ExportJob") -> Layout:
    tracks, velocity = job.output.has_tracks, job.output.has_velocity
    return Layout(per_view=1 + tracks, map_bytes=26 if velocity else 10, track_bytes=15 * len(job.views))


_PICTURE_OPTIONS = frozenset({"image_format", "image_size", "pinhole", "pinhole_focal"})

_FORMATS = (
    Format(
        name="colmap",
        title="pictures, camera rig, points with tracks, times",
        used_by="COLMAP, gsplat, 3D Gaussian trainers, colmap4d",
        layout=_colmap,
        pictures=PictureUse.OPTIONAL,
        point_bytes=90,
        max_points=200_000,
        options=_PICTURE_OPTIONS | {"per_instant", "text", "images"},
    ),
    Format(
        name="nerfstudio",
        title="pictures, depth, masks, points",
        used_by="nerfstudio, readers of transforms.json",
        layout=_nerfstudio,
        point_bytes=15,
        max_points=200_000,
        up="z",
        options=_PICTURE_OPTIONS | {"per_instant", "hold_out"},
    ),
    Format(
        name="4dgaussians",
        title="pictures and points, one pinhole for all views",
        used_by="4DGaussians (MultipleView)",
        module="trainers.multipleview",
        layout=Layout(files=5, points=Points.MODEL, frame_bytes=0),
        image_format=ImageFormat.JPG,
        pinhole=Pinhole.COMMON,
        point_bytes=70,
        max_points=40_000,
        static_rig=True,
        min_views=2,  # of a single view the reader derives a scene of extent 0
        min_instants=2,
        options=frozenset({"image_size", "pinhole_focal"}),
    ),
    Format(
        name="4dgaussians-dynerf",
        title="videos, pictures, points",
        used_by="4DGaussians (Neural 3D Video)",
        module="trainers.dynerf",
        layout=Layout(files=2, per_view=1, points=Points.MODEL, frame_bytes=0),
        pinhole=Pinhole.COMMON,
        image_size=(1014, 1352),
        point_bytes=27,
        max_points=40_000,
        static_rig=True,
        min_views=3,  # one is for testing, and of a single other view the reader derives extent 0
        min_instants=2,
        max_instants=300,
        tests_first=True,
        options=frozenset({"pinhole_focal", "hold_out"}),
    ),
    Format(
        name="fudan-4dgs",
        title="pictures, points with times; cameras may move",
        used_by="4d-gaussian-splatting of Fudan University",
        module="trainers.fudan",
        layout=Layout(files=3, points=Points.MODEL, frame_bytes=600),
        point_bytes=31,
        max_points=300_000,
        min_instants=2,
        options=_PICTURE_OPTIONS | {"hold_out"},
    ),
    Format(
        name="spacetime",
        title="pictures and points, one COLMAP model per instant",
        used_by="SpacetimeGaussians",
        module="trainers.spacetime",
        layout=Layout(files=2, per_instant=3, points=Points.INSTANTS, frame_bytes=150),
        pinhole=Pinhole.CENTERED,
        point_bytes=43,
        max_points=4_000,
        budget=BudgetScope.INSTANT,
        static_rig=True,
        min_views=2,  # the trainer draws two at a time
        min_instants=2,
        tests_first=True,
        options=frozenset({"image_format", "image_size", "hold_out"}),
    ),
    Format(
        name="dynamic3dgs",
        title="pictures, masks, points of the first instant",
        used_by="Dynamic3DGaussians, 4DGaussians (PanopticSports)",
        module="trainers.dynamic3d",
        layout=Layout(files=3, points=Points.FIRST, masks=True, frame_bytes=600),
        image_format=ImageFormat.JPG,
        point_bytes=56,
        max_points=100_000,
        budget=BudgetScope.INSTANT,
        min_instants=2,
        max_views=50,
        same_size=True,
        up="-y",
        nearest=2.0,
        options=_PICTURE_OPTIONS | {"hold_out"},
    ),
    Format(
        name="easyvolcap",
        title="pictures, masks, points of every instant",
        used_by="EasyVolcap, trainers that are built on it",
        module="trainers.easyvolcap",
        layout=_easyvolcap,
        image_format=ImageFormat.JPG,
        point_bytes=27,
        max_points=100_000,
        budget=BudgetScope.INSTANT,
        options=_PICTURE_OPTIONS,
    ),
    Format(
        name="freetimegs",
        title="points with velocities and times (NumPy)",
        used_by="FreeTimeGS (FreeTimeGsVanilla)",
        module="trainers.freetime",
        layout=Layout(files=1, points=Points.MODEL, frame_bytes=0),
        pictures=PictureUse.NONE,
        point_bytes=45,
        max_points=1_000_000,
        min_instants=2,
        needs_velocity=True,
    ),
    Format(
        name="usd",
        title="points and cameras over time (OpenUSD)",
        used_by="Blender, Houdini, Nuke, usdview",
        layout=_usd,
        pictures=PictureUse.NONE,
        cuts_outliers=False,
        extra="usd",
        point_bytes=30,
        budget=BudgetScope.INSTANT,
        options=frozenset({"split"}),
    ),
    Format(
        name="glb",
        title="points and cameras of one instant, or animated",
        used_by="web viewers, Blender",
        layout=Layout(files=1, points=Points.LAYERS),
        pictures=PictureUse.NONE,
        cuts_outliers=False,
        point_bytes=20,
        max_points=1_000_000,
        up="y",
        animated_points=2_000_000,
        options=frozenset({"animated"}),
    ),
    Format(
        name="splat",
        title="3D Gaussian splats of every instant (PLY)",
        used_by="SuperSplat, viewers of 3D Gaussian splats",
        layout=Layout(per_instant=1, points=Points.INSTANTS, frame_bytes=0),
        pictures=PictureUse.NONE,
        cuts_outliers=False,
        point_bytes=68,
        budget=BudgetScope.INSTANT,
        up="-y",
    ),
    Format(
        name="npz",
        title="depth, confidence, motion, cameras (NumPy)",
        used_by="Python",
        layout=_npz,
        pictures=PictureUse.NONE,
    ),
    Format(
        name="exr",
        title="depth and confidence of every frame (OpenEXR)",
        used_by="Nuke, Blender",
        layout=Layout(per_picture=1, map_bytes=6, frame_bytes=500),
        pictures=PictureUse.NONE,
        extra="exr",
    ),
    Format(
        name="chan",
        title="cameras over time (.chan)",
        used_by="Nuke, Blender (add-on)",
        layout=Layout(per_view=1),
        pictures=PictureUse.NONE,
        up="y",
    ),
)

FORMATS = {format.name: format for format in _FORMATS}
"""All formats by name, in the order of `page4d export --list`."""

_USD_INSTEAD = "export usd; Blender converts its cameras"
_ELSEWHERE = {
    "alembic": ("Alembic has no writer for Python", _USD_INSTEAD),
    "abc": ("Alembic has no writer for Python", _USD_INSTEAD),
    "fbx": ("FBX has no free writer", _USD_INSTEAD),
    "ply": ("it is that of the run's clouds", "use the run's points/*.ply"),
    "tum": ("it is that of the run's trajectories", "use the run's cameras/*.tum"),
    "open3d": ("it is that of the run's cameras", "use the run's cameras/*.open3d.json and points/*.ply"),
}
"""Why a format is not exported, and what to do, by name."""


def find_format(name: str) -> Format:
    """Return the format of a name.

    Raises:
        UsageError: if there is none, naming a similar one.
    """
    if name in FORMATS:
        return FORMATS[name]
    if name.lower() in _ELSEWHERE:
        reason, hint = _ELSEWHERE[name.lower()]
        raise UsageError(f"no format '{shortened(name)}': {reason}", hint)
    rest = "'page4d export --list' prints all"
    reader = re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w-])", re.IGNORECASE)
    read = [one.name for one in FORMATS.values() if reader.search(one.used_by)]
    hint = f"{name} reads {listed(read)}; {rest}" if read else did_you_mean(name, FORMATS, rest)
    raise UsageError(f"no format '{shortened(name)}'", hint)
