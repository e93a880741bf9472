"""Value clips of USD: one file of points per instant, which a main file plays."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from page4d.exporters.job import ExportJob, Written
from page4d.exporters.usd.cameras import ClippingRanges, define_cameras
from page4d.exporters.usd.points import PATH, PointWriter, declare_points, distinct_clouds, write_static
from page4d.exporters.usd.stage import create_stage, save_stage, time_codes
from page4d.exporters.usd.tracks import define_tracks
from page4d.output.layout import frame_name

FOLDER = "points"
TRACKS = "tracks.usdc"
MANIFEST = f"{FOLDER}/manifest.usda"


def write_clips(job: ExportJob, folder: Path, scene_name: str) -> Written:
    """Write `points/frame_000000.usdc` and so on, numbered as in the run, their manifest and the main file.

    Every file of points is a stage of its own with the same prims, so that it can be opened alone.

    Raises:
        OutputError: if a file cannot be written.
    """
    codes = time_codes(job)
    files = [f"{FOLDER}/{frame_name(instant)}.usdc" for instant in job.instants]
    ranges = ClippingRanges(job)
    stage = create_stage(folder / scene_name, job, codes)
    number, width = write_static(stage, job, ranges)
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
    save_stage(stage, folder / scene_name)
    return Written(num_points=number, times=codes)


def _play(stage: Any, files: Sequence[str], codes: Sequence[float]) -> None:
    """Take the values of the points at every time code from the file of that instant."""
    from pxr import Gf, Sdf, Usd, Vt

    clips = Usd.ClipsAPI(stage.GetPrimAtPath(PATH))
    clips.SetClipPrimPath(PATH)
    clips.SetClipManifestAssetPath(Sdf.AssetPath(f"./{MANIFEST}"))
    clips.SetClipAssetPaths(Sdf.AssetPathArray([Sdf.AssetPath(f"./{file}") for file in files]))
    clips.SetClipActive(Vt.Vec2dArray([Gf.Vec2d(code, place) for place, code in enumerate(codes)]))
    clips.SetClipTimes(Vt.Vec2dArray([Gf.Vec2d(code, code) for code in codes]))
