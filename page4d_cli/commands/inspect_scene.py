"""`page4d inspect-scene`: views, clocks and faults of a scene folder."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from page4d.choices import MEASURED_CLOCKS
from page4d.errors import Level, UsageError
from page4d.options import RIG, Option, SceneOptions, in_options
from page4d_cli import console, options
from page4d_cli.progress import observed_run
from page4d_cli.tables import Cell, Column, print_fields, print_table

if TYPE_CHECKING:
    from page4d.output.rig_record import CalibrationCheckRecord
    from page4d.scene.records import Scene, View
    from page4d_cli.tables import Row


@options.command
def inspect_scene(
    scene: options.Folder,
    scene_options: Annotated[SceneOptions, options.Without(("mask_meaning", "depth", "depth_levels"))],
    check: Annotated[
        bool,
        Option(
            "Compare the calibration of static cameras with people and texture, and the clocks with people; needs "
            "--calibration, and 'page4d weights get people' for people.",
            RIG,
        ),
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Print the views of a scene with their clocks and faults.

    Frame rates, dropped frames, calibration, and all ignored files.
    """
    from page4d.rig.opening import open_scene
    from page4d.rig.samples import with_notices_on_content

    scene_options.check_resize()
    if check and scene_options.calibration is None:
        raise UsageError("--check without --calibration", "pass the calibration that is to be checked")
    if scene_options.sync in MEASURED_CLOCKS:
        with observed_run(console.Verbosity(), "inspect-scene") as observer:
            opened = open_scene(scene, scene_options, progress=observer.progress)
    else:
        opened = open_scene(scene, scene_options)
    opened = with_notices_on_content(opened)
    rows = [_row(view) for view in opened.views]
    record, moving = _checked(opened) if check else (None, [])
    if as_json:
        checked = {} if record is None else {"check": record.model_dump(mode="json"), "moving_views": moving}
        console.print_json({**_document(opened, rows), **checked})
        return
    _print(opened, rows)
    if record is not None:
        from page4d_cli.reports import report_check

        console.print_text("")
        report_check(record)
        print_fields([("motion:", f"the camera of {view} moves, but its calibration is static") for view in moving])


def _checked(scene: "Scene") -> "tuple[CalibrationCheckRecord, list[str]]":
    """Check the calibration of a scene; return the record, and the views whose camera moves."""
    from page4d.rig.calibration_check import check_scene
    from page4d.rig.evidence import PixelEvidence

    if not scene.has_static_rig:
        raise UsageError("--check of a single or a moving camera", "it compares two or more static cameras")
    with observed_run(console.Verbosity(), "check") as observer:
        pixels = PixelEvidence(scene, progress=observer.progress)
        moving = [motion.view for motion in pixels.motions if motion.is_static is False]
        return check_scene(pixels), moving


def _row(view: "View") -> dict[str, Any]:
    import numpy as np

    from page4d.scene.timeline import timing

    height, width = view.source.size
    return {
        "view": view.name,
        "file": view.source.label,
        "codec": view.source.codec,
        "size": [width, height],
        **asdict(timing(np.array(view.clock.frame_times or view.source.frame_times))),
        "offset_s": view.clock.offset_s,
        "rate": view.clock.rate,
        "std_seconds": view.clock.std_seconds,
        "calibrated": view.camera is not None,
        "distorted": view.camera is not None and view.camera.distortion is not None,
        "masked": view.mask is not None,
    }


def _document(scene: "Scene", rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "scene": scene.name,
        "views": rows,
        "num_times": scene.num_times,
        "first_s": float(scene.times[0]),
        "last_s": float(scene.times[-1]),
        "synchronisation": scene.synchronisation,
        "start_ns": scene.start_ns,
        "calibration": scene.calibration,
        "scale": scene.scale.value,
        "notices": [
            {"level": notice.level.value, "text": in_options(notice.marked_text)} for notice in scene.notices
        ],
    }


def _print(scene: "Scene", rows: list[dict[str, Any]]) -> None:
    from page4d_cli.reports import clock_fields

    numbers = (
        *(Column("size", right=True), Column("fps", right=True), Column("frames", right=True)),
        *(Column("offset", right=True, usual="+0.0000 s"), Column("clock rate", right=True, usual="1")),
        *(Column("duration", right=True), Column("dropped", True, "0"), Column("duplicated", True, "0")),
    )
    columns = (Column("view"), Column("file"), Column("codec"), *numbers, Column("calibration"))
    print_table(columns, [_cells(row) for row in rows], scene.name)
    after = "" if scene.start_ns is None else f" after the time stamp {scene.start_ns / 1e9:.3f} s"
    fields = [
        ("instants", f"{scene.num_times}, {scene.times[0]:.3f} to {scene.times[-1]:.3f} s{after}"),
        *clock_fields(scene.synchronisation, [view.clock for view in scene.views], scene.options.sync),
        ("calibration", scene.calibration or "none"),
        ("scale", scene.scale.value),
    ]
    notices = sorted(scene.notices, key=lambda notice: notice.level is not Level.WARNING)
    print_fields([*fields, *((f"{notice.level.value}:", in_options(notice.marked_text)) for notice in notices)])


def _cells(row: dict[str, Any]) -> "Row":
    calibrated = "-" if not row["calibrated"] else "with distortion" if row["distorted"] else "pinhole"
    return (
        row["view"],
        Cell(row["file"], informs=Path(row["file"]).stem != row["view"]),
        row["codec"],
        "x".join(map(str, row["size"])),
        f"{row['fps']:.4g}" + (" variable" if row["is_variable"] else ""),
        str(row["num_frames"]),
        f"{row['offset_s']:+.4f} s",
        f"{row['rate']:.6g}",
        f"{row['duration_s']:.3f} s",
        str(row["dropped"]),
        str(row["duplicated"]),
        calibrated,
    )
