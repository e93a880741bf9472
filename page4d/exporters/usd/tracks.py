"""Tracks of USD: /World/tracks, points with one identity over time, of runs with tracks."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from page4d.exporters.job import ExportJob
from page4d.exporters.transfer import linear_from_srgb
from page4d.exporters.usd.points import point_extent
from page4d.exporters.usd.stage import ROOT

PATH = f"{ROOT}/tracks"


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
    prim = UsdGeom.Points.Define(stage, PATH)
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
