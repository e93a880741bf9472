"""OpenUSD: the points, cameras and tracks of a run over time, as one file or as value clips.

A stage has a prim that turns the world to y up, /World/cameras/<view>, /World/points over time, and, of runs that
have them, /World/static, which never moves, and /World/tracks, points with one identity over time. Value clips are
one file of points per instant, which a main file plays.

Source: the schemas UsdGeomPoints and UsdGeomCamera, and value clips, of https://openusd.org/release/.
"""

import errno
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from page4d.choices import UpAxis
from page4d.errors import OutputError
from page4d.exporters.job import ExportJob, Written, opengl_poses
from page4d.exporters.pictures import linear_from_srgb
from page4d.exporters.points import point_spacing
from page4d.formats.ply import PointCloud
from page4d.geometry.rotation import turn_up
from page4d.io.atomic import output_error, real_path
from page4d.output.layout import frame_name
from page4d.signals import deferred_signals

ROOT = "/World"

_DIGITS = 6
"""Decimals of time codes: programs evaluate whole frames, so 2.9999999 must be 3."""

_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EROFS, errno.EIO, errno.ENOENT)


def time_codes(job: ExportJob) -> tuple[float, ...]:
    """Return the time code of every instant: 0, 1, 2, ... for regular steps, else frames since the first instant."""
    if job.is_regular:
        return tuple(map(float, range(job.num_times)))
    frames = (job.seconds - job.seconds[0]) * job.frame_rate
    return tuple(round(float(frame), _DIGITS) for frame in frames)


def create_stage(path: Path, job: ExportJob, codes: Sequence[float]) -> Any:
    """Create a file with the metadata of a stage and the prim /World, and return its `Usd.Stage`.

    Raises:
        OutputError: if it cannot be created.
    """
    with deferred_signals():  # the first import prints exceptions and goes on without the module
        from pxr import Gf, Usd, UsdGeom

    with _usd_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        stage = Usd.Stage.CreateNew(str(path))
    rate = round(job.frame_rate, _DIGITS)
    stage.SetTimeCodesPerSecond(rate)
    stage.SetFramesPerSecond(rate)
    stage.SetStartTimeCode(codes[0])
    stage.SetEndTimeCode(codes[-1])
    UsdGeom.SetStageUpAxis(stage, UsdGeom.Tokens.y)
    UsdGeom.SetStageMetersPerUnit(stage, 1.0)
    stage.GetRootLayer().customLayerData = {
        "page4d": {"unit": job.output.run.unit, "scale": job.world.scale, "firstSecond": float(job.seconds[0])}
    }
    root = UsdGeom.Xform.Define(stage, ROOT)
    turn = turn_up(job.world.upward, UpAxis.Y.vector)
    matrix = Gf.Matrix4d(1.0).SetRotateOnly(Gf.Matrix3d(*turn.T.ravel()))  # USD multiplies row vectors
    root.AddTransformOp().Set(matrix)
    stage.SetDefaultPrim(root.GetPrim())
    return stage


def save_stage(stage: Any, path: Path) -> None:
    """Write what changed since the last time to the file of a stage.

    Raises:
        OutputError: if it cannot be written; the stage must not be used any more.
    """
    with _usd_errors(path):
        if not stage.GetRootLayer().Save():
            raise OSError(errno.EIO, os.strerror(errno.EIO))


@contextmanager
def _usd_errors(path: Path) -> Iterator[None]:
    """Translate errors of USD on writing a file, which state the cause only as text."""
    from pxr import Tf

    try:
        yield
    except OSError as error:
        raise output_error(error, path) from error
    except Tf.ErrorException as error:
        text = str(error)
        for number in _DISK_ERRORS:
            if os.strerror(number) in text:
                raise output_error(OSError(number, os.strerror(number)), path) from error
        reason = text.strip().splitlines()[-1].rpartition(" : ")[2].strip("'")
        raise OutputError(f"cannot write to '{path}': {reason}", "choose another folder") from error


APERTURE = 0.36
"""Width of the sensor in tenths of a unit, the unit of the schema: 36 mm where the unit is a metre."""

_MARGIN = 2.0
"""Factor between the nearest and farthest point and the clipping planes."""


class ClippingRanges:
    """The depth of the points in front of every view, collected instant by instant."""

    def __init__(self, job: ExportJob) -> None:
        self._job = job
        self._nearest = np.full(len(job.views), np.inf)
        self._farthest = np.zeros(len(job.views))

    def add(self, cloud: PointCloud, place: int) -> None:
        """Add the points of an instant: the view's own ones for the near plane, all for the far plane."""
        for view, record in enumerate(self._job.views):
            pose = self._job.world_to_camera[place, view]
            depth = cloud.xyz @ pose[2, :3] + pose[2, 3]
            ahead = depth > 0
            own = depth[ahead & (cloud.view == record.index)]
            self._nearest[view] = min(self._nearest[view], own.min(initial=np.inf))
            self._farthest[view] = max(self._farthest[view], depth.max(initial=0.0))

    def of(self, view: int) -> tuple[float, float] | None:
        """Return the distances of the near and far plane; None for a view without points."""
        nearest, farthest = self._nearest[view], self._farthest[view]
        return (float(nearest / _MARGIN), float(farthest * _MARGIN)) if nearest <= farthest else None


def define_cameras(stage: Any, job: ExportJob, codes: Sequence[float], ranges: ClippingRanges) -> None:
    """Define the cameras of all views; what does not change has one value.

    The parent is a typed prim: Blender does not apply the transforms above an untyped one. What the schema lacks is
    stored as properties of the user, which programs import: the true name of the view, (width, height) of its
    pictures, and the aspect of their pixels, with which programs that have one focal length reproduce two.
    """
    from pxr import Gf, Sdf, UsdGeom

    parent = UsdGeom.Xform.Define(stage, f"{ROOT}/cameras").GetPath()
    matrices = opengl_poses(job).swapaxes(-1, -2)  # USD multiplies row vectors
    names = prim_names([view.name for view in job.views])
    for view, (record, name) in enumerate(zip(job.views, names, strict=True)):
        camera = UsdGeom.Camera.Define(stage, parent.AppendChild(name))
        height, width = job.sizes[view]
        _set(camera.AddTransformOp(), [Gf.Matrix4d(matrix) for matrix in matrices[:, view]], codes)
        for name, values in lens_values(job.intrinsics[:, view], width, height).items():
            _set(getattr(camera, f"Create{name}Attr")(), values.tolist(), codes)
        if planes := ranges.of(view):
            camera.CreateClippingRangeAttr().Set(Gf.Vec2f(*planes))
        fx, fy = job.intrinsics[0, view, 0, 0], job.intrinsics[0, view, 1, 1]
        for key, kind, value in (
            ("view", Sdf.ValueTypeNames.String, record.name),
            ("imageSize", Sdf.ValueTypeNames.Int2, Gf.Vec2i(width, height)),
            ("pixelAspect", Sdf.ValueTypeNames.Float2, Gf.Vec2f(max(fy / fx, 1.0), max(fx / fy, 1.0))),
        ):
            camera.GetPrim().CreateAttribute(f"userProperties:{key}", kind).Set(value)


def lens_values(intrinsics: NDArray[np.float64], width: int, height: int) -> dict[str, NDArray[np.float64]]:
    """Return the attributes [T] of a camera with intrinsics [T, 3, 3] in pixels of a picture.

    The offsets are those of the window on the image plane: right and up are positive.
    """
    fx, fy, cx, cy = (intrinsics[:, row, column] for row, column in ((0, 0), (1, 1), (0, 2), (1, 2)))
    vertical = APERTURE * (height / width) * (fx / fy)
    return {
        "FocalLength": fx * APERTURE / width,
        "HorizontalAperture": np.full_like(fx, APERTURE),
        "VerticalAperture": vertical,
        "HorizontalApertureOffset": (width / 2 - cx) / width * APERTURE,
        "VerticalApertureOffset": (cy - height / 2) / height * vertical,
    }


def prim_names(names: Sequence[str]) -> list[str]:
    """Return a different identifier of ASCII letters, digits and underscores for every name."""
    found: list[str] = []
    for name in names:
        stem = re.sub(r"[^A-Za-z0-9_]", "_", name)
        stem = stem if re.match(r"[A-Za-z_]", stem) else f"_{stem}"
        candidate, number = stem, 2
        while candidate in found:
            candidate, number = f"{stem}_{number}", number + 1
        found.append(candidate)
    return found


def _set(attribute: Any, values: Sequence[Any], codes: Sequence[float]) -> None:
    """Set the values of an attribute, or of a transform: one per time code, or one alone if all are equal."""
    if all(value == values[0] for value in values):
        attribute.Set(values[0])
        return
    for code, value in zip(codes, values, strict=True):
        attribute.Set(value, code)


POINTS_PATH = f"{ROOT}/points"
STATIC_PATH = f"{ROOT}/static"


def distinct_clouds(job: ExportJob) -> Iterator[PointCloud]:
    """Yield the cloud of every instant, of a run with layers what moves; the number of points always changes.

    Between two time codes USD interpolates arrays of equal length, and points of different instants do not belong
    together. Where two clouds have the same number, the last point of the second is repeated.
    """
    number = 0
    for place in range(job.num_times):
        cloud = job.changing_points(place)
        if cloud.num_points and cloud.num_points == number:
            cloud = cloud[np.minimum(np.arange(number + 1), number - 1)]
        number = cloud.num_points
        yield cloud


def declare_points(stage: Any, path: str = POINTS_PATH, *, has_velocity: bool = False) -> tuple[Any, dict[str, Any]]:
    """Declare the prim and its attributes that change, without values; return the prim and the attributes by name.

    Blender reads of value clips only the attributes that are declared in the main file, too.
    """
    from pxr import Sdf, UsdGeom

    prim = UsdGeom.Points.Define(stage, path)
    primvars = UsdGeom.PrimvarsAPI(prim)
    types, vertex = Sdf.ValueTypeNames, UsdGeom.Tokens.vertex
    attributes = {
        "points": prim.CreatePointsAttr(),
        "extent": prim.CreateExtentAttr(),
        "color": prim.CreateDisplayColorPrimvar(vertex).GetAttr(),
        "confidence": primvars.CreatePrimvar("confidence", types.FloatArray, vertex).GetAttr(),
        "dynamic": primvars.CreatePrimvar("dynamic", types.UCharArray, vertex).GetAttr(),
        "view": primvars.CreatePrimvar("view", types.UCharArray, vertex).GetAttr(),
    }
    if has_velocity:
        attributes["velocity"] = prim.CreateVelocitiesAttr()
    return prim, attributes


class PointWriter:
    """Writes clouds to the points of a stage, one per time code or one for all; all points have one `width`.

    Unless it is given, the width is the distance between neighbouring points of the first cloud that has points.
    With `has_velocity` every point has a velocity, in units per second whatever the time codes; 0 where unknown.
    """

    def __init__(
        self, stage: Any, width: float = 0.0, path: str = POINTS_PATH, *, has_velocity: bool = False
    ) -> None:
        from pxr import UsdGeom

        prim, self._attributes = declare_points(stage, path, has_velocity=has_velocity)
        prim.SetWidthsInterpolation(UsdGeom.Tokens.constant)
        self._widths = prim.CreateWidthsAttr()
        self.width = width
        if width:
            self._widths.Set([width])

    def write(self, cloud: PointCloud, code: float | None = None) -> None:
        """Set the points at a time code, None for all; colours become linear light, as USD expects."""
        from pxr import Vt

        if not self.width and cloud.num_points > 1:
            self.width = point_spacing(cloud.xyz)
            self._widths.Set([self.width])
        values = {
            "points": Vt.Vec3fArray.FromNumpy(np.ascontiguousarray(cloud.xyz)),
            "extent": Vt.Vec3fArray.FromNumpy(point_extent(cloud.xyz, self.width)),
            "color": Vt.Vec3fArray.FromNumpy(linear_from_srgb(cloud.rgb)),
            "confidence": Vt.FloatArray.FromNumpy(np.ascontiguousarray(cloud.confidence)),
            "dynamic": Vt.UCharArray.FromNumpy(np.ascontiguousarray(cloud.dynamic)),
            "view": Vt.UCharArray.FromNumpy(np.ascontiguousarray(cloud.view)),
        }
        if "velocity" in self._attributes:
            velocity = np.zeros_like(cloud.xyz) if cloud.velocity is None else cloud.velocity
            values["velocity"] = Vt.Vec3fArray.FromNumpy(np.ascontiguousarray(velocity))
        for name, value in values.items():
            attribute = self._attributes[name]
            attribute.Set(value) if code is None else attribute.Set(value, code)


def write_static_points(stage: Any, job: ExportJob, ranges: ClippingRanges) -> tuple[int, float]:
    """Write the points that never move, of a run with layers; return their number and width, 0 without layers."""
    if not job.has_layers:
        return 0, 0.0
    cloud = job.static_points()
    for place in range(1 if job.is_static_rig else job.num_times):
        ranges.add(cloud, place)
    writer = PointWriter(stage, path=STATIC_PATH)
    writer.write(cloud)
    return cloud.num_points, writer.width


def point_extent(xyz: NDArray[np.float32], width: float) -> NDArray[np.float32]:
    """Return the lower and upper corner [2, 3] of the points with their width; reversed limits if there are none."""
    if len(xyz) == 0:
        largest = np.finfo(np.float32).max
        return np.array([[largest] * 3, [-largest] * 3], dtype=np.float32)
    half = np.float32(width / 2)
    return np.stack([xyz.min(axis=0) - half, xyz.max(axis=0) + half])


TRACKS_PATH = f"{ROOT}/tracks"


def define_tracks(stage: Any, job: ExportJob, codes: Sequence[float], width: float) -> None:
    """Define the tracks of a run as points with `ids`; nothing if it has none.

    All tracks exist at all time codes, so that programs interpolate each of them between its own positions. Where a
    track has not begun or has ended, it rests at its first or last position with a width of 0.
    """
    tracks = job.tracks
    if tracks is None:
        return
    from pxr import Sdf, UsdGeom, Vt

    types, vertex = Sdf.ValueTypeNames, UsdGeom.Tokens.vertex
    prim = UsdGeom.Points.Define(stage, TRACKS_PATH)
    prim.CreateIdsAttr().Set(Vt.Int64Array.FromNumpy(tracks.ids.astype(np.int64)))
    colors = prim.CreateDisplayColorPrimvar(vertex)
    colors.Set(Vt.Vec3fArray.FromNumpy(linear_from_srgb(tracks.colors)))
    prim.SetWidthsInterpolation(vertex)
    visible = UsdGeom.PrimvarsAPI(prim).CreatePrimvar("visible", types.UCharArray, vertex)
    points, extent, widths = prim.CreatePointsAttr(), prim.CreateExtentAttr(), prim.CreateWidthsAttr()
    coords, exists = tracks.held_coords().astype(np.float32), tracks.exists
    for place, code in enumerate(codes):
        points.Set(Vt.Vec3fArray.FromNumpy(np.ascontiguousarray(coords[place])), code)
        extent.Set(Vt.Vec3fArray.FromNumpy(point_extent(coords[place], width)), code)
        widths.Set(Vt.FloatArray.FromNumpy((exists[place] * width).astype(np.float32)), code)
        visible.GetAttr().Set(Vt.UCharArray.FromNumpy(tracks.visibs[place].astype(np.uint8)), code)


FOLDER = "points"
TRACKS = "tracks.usdc"
MANIFEST = f"{FOLDER}/manifest.usda"


def write_clips(job: ExportJob, folder: Path) -> Written:
    """Write `points/frame_000000.usdc` and so on, numbered as in the run, their manifest and the main file.

    Every file of points is a stage of its own with the same prims, so that it can be opened alone.

    Raises:
        OutputError: if a file cannot be written.
    """
    codes = time_codes(job)
    files = [f"{FOLDER}/{frame_name(instant)}.usdc" for instant in job.instants]
    ranges = ClippingRanges(job)
    stage = create_stage(folder / SPLIT_SCENE_NAME, job, codes)
    number, width = write_static_points(stage, job, ranges)
    for place, cloud in enumerate(distinct_clouds(job)):
        ranges.add(cloud, place)
        clip = create_stage(folder / files[place], job, codes[place : place + 1])
        points = PointWriter(clip, width, has_velocity=job.output.has_velocity)
        points.write(cloud, codes[place])
        save_stage(clip, folder / files[place])
        number, width = number + cloud.num_points, points.width

    manifest = create_stage(folder / MANIFEST, job, codes)
    declare_points(manifest, has_velocity=job.output.has_velocity)
    save_stage(manifest, folder / MANIFEST)

    PointWriter(stage, width, has_velocity=job.output.has_velocity)
    _play(stage, files, codes)
    define_cameras(stage, job, codes, ranges)
    if job.output.has_tracks:
        tracks = create_stage(folder / TRACKS, job, codes)
        define_tracks(tracks, job, codes, width)
        save_stage(tracks, folder / TRACKS)
        stage.GetRootLayer().subLayerPaths.append(f"./{TRACKS}")  # binary, as the main file is text
    save_stage(stage, folder / SPLIT_SCENE_NAME)
    return Written(num_points=number, times=codes)


def _play(stage: Any, files: Sequence[str], codes: Sequence[float]) -> None:
    """Take the values of the points at every time code from the file of that instant."""
    from pxr import Gf, Sdf, Usd, Vt

    clips = Usd.ClipsAPI(stage.GetPrimAtPath(POINTS_PATH))
    clips.SetClipPrimPath(POINTS_PATH)
    clips.SetClipManifestAssetPath(Sdf.AssetPath(f"./{MANIFEST}"))
    clips.SetClipAssetPaths(Sdf.AssetPathArray([Sdf.AssetPath(f"./{file}") for file in files]))
    clips.SetClipActive(Vt.Vec2dArray([Gf.Vec2d(code, place) for place, code in enumerate(codes)]))
    clips.SetClipTimes(Vt.Vec2dArray([Gf.Vec2d(code, code) for code in codes]))


SCENE_NAME = "scene.usdc"
SPLIT_SCENE_NAME = "scene.usda"

_UNSAVED_BYTES = 1 << 25
"""Size of the points after which the file is saved.

Points that are not saved need memory. Every save repeats the table of all earlier values, so that saving each of many
small clouds would multiply the size of the file.
"""


def write(job: ExportJob, folder: Path) -> Written:
    """Write `scene.usdc`; with `split` `scene.usda` and a file of points for every instant.

    The points keep the run's axes; the transform of the prim /World turns them to y up.
    """
    written = write_clips(job, folder) if job.settings.split else _write_single(job, folder)
    if np.array_equal(job.world.upward, UpAxis.Y.vector):
        return written
    up = job.world.exported_up if np.array_equal(job.world.upward, job.world.exported_up.vector) else "the vertical"
    return replace(
        written, remarks=(f"the points keep the run's axes; the prim /World turns {up} to y, which is up",)
    )


def _write_single(job: ExportJob, folder: Path) -> Written:
    """Write one file, saved again and again: memory does not grow with the number of instants."""
    codes = time_codes(job)
    path = folder / SCENE_NAME
    stage = create_stage(path, job, codes)
    ranges = ClippingRanges(job)
    number, width = write_static_points(stage, job, ranges)
    points, saved = PointWriter(stage, width, has_velocity=job.output.has_velocity), 0
    for place, cloud in enumerate(distinct_clouds(job)):
        ranges.add(cloud, place)
        points.write(cloud, codes[place])
        number += cloud.num_points
        if (number - saved) * job.format.point_bytes >= _UNSAVED_BYTES:
            save_stage(stage, path)
            saved = number
    define_cameras(stage, job, codes, ranges)
    define_tracks(stage, job, codes, points.width)
    save_stage(stage, path)
    return Written(num_points=number, times=codes)


def next_step(job: ExportJob, folder: Path) -> str:
    """Return how programs open the stage."""
    scene = real_path(folder) / (SPLIT_SCENE_NAME if job.settings.split else SCENE_NAME)
    return (
        f"Blender: File > Import > Universal Scene Description, '{scene}';\n"
        f"then set Output > Frame Rate to {job.frame_rate:.6g} fps (docs/blender.md)\n"
        f"usdview {shlex.quote(str(scene))}"
    )
