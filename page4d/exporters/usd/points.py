"""Points of USD: /World/points over time, and /World/static, which never move, of runs with layers."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from page4d.exporters.job import ExportJob
from page4d.exporters.spacing import point_spacing
from page4d.exporters.transfer import linear_from_srgb
from page4d.exporters.usd.cameras import ClippingRanges
from page4d.exporters.usd.stage import ROOT
from page4d.formats.ply import PointCloud

PATH = f"{ROOT}/points"
STATIC_PATH = f"{ROOT}/static"


def distinct_clouds(job: ExportJob) -> Iterator[PointCloud]:
    """Yield the cloud of every instant, of a run with layers what moves; the number of points always changes.

    Between two time codes USD interpolates arrays of equal length, and points of different instants do not belong
    together. Where two clouds have the same number, the last point of the second is repeated.
    """
    number = 0
    for place in range(job.num_times):
        cloud = job.moving_points(place) if job.has_layers else job.instant_points(place)
        if cloud.num_points and cloud.num_points == number:
            cloud = cloud[np.minimum(np.arange(number + 1), number - 1)]
        number = cloud.num_points
        yield cloud


def declare_points(stage: Any, path: str = PATH, *, has_velocity: bool = False) -> tuple[Any, dict[str, Any]]:
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

    def __init__(self, stage: Any, width: float = 0.0, path: str = PATH, *, has_velocity: bool = False) -> None:
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


def write_static(stage: Any, job: ExportJob, ranges: ClippingRanges) -> tuple[int, float]:
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
