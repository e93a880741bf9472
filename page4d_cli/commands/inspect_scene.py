"""`page4d inspect-scene`: what page4d sees in a folder, before anything is run."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from page4d_cli import console, options

if TYPE_CHECKING:
    from page4d.scene.records import Scene


def inspect_scene(
    scene: options.Folder,
    views: options.Views = None,
    fps: options.Fps = None,
    image_fps: options.ImageFps = None,
    stride: options.Stride = 1,
    frames: options.Frames = None,
    max_frames: options.MaxFrames = None,
    sync: options.Sync = "auto",
    masks: options.Masks = None,
    allow_damaged: options.AllowDamaged = False,
    max_pixels: options.MaxPixels = 64.0,
    calibration: options.Calibration = None,
    calibration_unit: options.CalibrationUnit = None,
    calibration_match: options.CalibrationMatch = options.MatchOption.NAME,
    calib_resize: options.CalibResize = None,
    as_json: options.Json = False,
) -> None:
    """Print the views of a scene, their clocks, rates and faults, and what is ignored and why."""
    from page4d.scene.assign_cameras import CalibrationMatch, CalibrationResize
    from page4d.scene.open import SceneOptions, open_scene

    opened = open_scene(
        scene,
        SceneOptions(
            views=options.parse_views(views),
            sync=sync,
            fps=fps,
            image_fps=image_fps,
            stride=stride,
            frames=options.parse_frames(frames),
            max_frames=max_frames,
            calibration=calibration,
            calibration_unit=calibration_unit,
            calibration_match=CalibrationMatch(calibration_match),
            calibration_resize=None if calib_resize is None else CalibrationResize(calib_resize),
            masks=masks,
            allow_damaged=allow_damaged,
            max_megapixels=max_pixels,
        ),
    )
    rows = [_row(opened, place) for place in range(opened.num_views)]
    if as_json:
        console.print_json(_document(opened, rows))
        return
    _print(opened, rows)


def _row(scene: "Scene", place: int) -> dict[str, Any]:
    """Gather the facts of one view."""
    from page4d.scene.timeline import timing

    view = scene.views[place]
    rhythm = timing(view.source.frame_times)
    height, width = view.source.size
    return {
        "view": view.name,
        "file": view.source.label,
        "codec": view.source.codec,
        "size": [width, height],
        **asdict(rhythm),
        "offset_s": view.clock.offset_s,
        "rate": view.clock.rate,
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
        "calibration": scene.calibration,
        "scale": scene.scale.value,
        "notices": [{"level": notice.level.value, "text": notice.text} for notice in scene.notices],
    }


def _print(scene: "Scene", rows: list[dict[str, Any]]) -> None:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, title=console.cell(scene.name), title_justify="left", title_style="bold")
    for name in ("view", "file", "codec"):
        table.add_column(name, overflow="fold")
    for name in ("size", "fps", "frames", "offset", "rate", "duration", "dropped", "doubled"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("calibration")
    for row in rows:
        calibrated = "-" if not row["calibrated"] else "lens undistorted" if row["distorted"] else "pinhole"
        table.add_row(
            console.cell(row["view"]),
            console.cell(row["file"]),
            console.cell(row["codec"]),
            "x".join(map(str, row["size"])),
            f"{row['fps']:.4g}" + (" varies" if row["is_variable"] else ""),
            str(row["num_frames"]),
            f"{row['offset_s']:+.4f} s",
            f"{row['rate']:.6g}",
            f"{row['duration_s']:.3f} s",
            str(row["dropped"]),
            str(row["duplicated"]),
            calibrated,
        )
    console.print_table(table)
    console.print_text(f"instants         {scene.num_times}, {scene.times[0]:.3f} to {scene.times[-1]:.3f} s")
    console.print_text(f"synchronisation  {scene.synchronisation}")
    console.print_text(f"calibration      {scene.calibration or 'none'}")
    console.print_text(f"scale            {scene.scale}")
    for notice in scene.notices:
        console.print_text(f"{notice.level + ':':<16} {notice.text}")
