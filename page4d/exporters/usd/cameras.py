"""Cameras of USD over time: /World/cameras/<view>."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from page4d.exporters.job import ExportJob
from page4d.exporters.opengl import opengl_poses
from page4d.exporters.usd.stage import ROOT
from page4d.formats.ply import PointCloud

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
        lens = lens_values(job.intrinsics[:, view], width, height)
        for attribute, values in (
            (camera.CreateFocalLengthAttr(), lens["focalLength"]),
            (camera.CreateHorizontalApertureAttr(), lens["horizontalAperture"]),
            (camera.CreateVerticalApertureAttr(), lens["verticalAperture"]),
            (camera.CreateHorizontalApertureOffsetAttr(), lens["horizontalApertureOffset"]),
            (camera.CreateVerticalApertureOffsetAttr(), lens["verticalApertureOffset"]),
        ):
            _set(attribute, values.tolist(), codes)
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
        "focalLength": fx * APERTURE / width,
        "horizontalAperture": np.full_like(fx, APERTURE),
        "verticalAperture": vertical,
        "horizontalApertureOffset": (width / 2 - cx) / width * APERTURE,
        "verticalApertureOffset": (cy - height / 2) / height * vertical,
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
