"""`page4d calibrate`: lenses and cameras of a static rig from a calibration board, for page4d and other programs."""

from contextlib import suppress
from pathlib import Path
from typing import Annotated

from page4d.errors import InterruptedRunError, Page4DError, Stopped
from page4d.io.atomic import check_file
from page4d.options import OUTPUT, CalibrateSettings, Option
from page4d_cli import console, options
from page4d_cli.progress import observed_run
from page4d_cli.stopping import stops_cleanly


@options.command
def calibrate(
    scene_folder: options.Folder,
    out: options.CalibrationOut,
    settings: CalibrateSettings,
    scene_options: options.Uncalibrated,
    report: Annotated[
        Path | None, Option("Picture of the corners that were used in every view.", OUTPUT, metavar="FILE.png")
    ] = None,
    file_format: options.FileFormat = None,
    overwrite: Annotated[bool, Option("Replace existing files.", OUTPUT)] = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Determine lenses and cameras of a rig from a calibration board.

    Move the board through the pictures of all cameras: near and far, in the corners, tilted by 30 degrees and more.
    Cameras that it does not determine are left out of the file, with a warning; fewer than two are an error. Of a
    single video, the lens is determined.
    """
    from page4d.formats.calibrations import check_calibration_target, choose_format, write_calibration
    from page4d.geometry.distortion import Distortion
    from page4d.rig.board import board_of
    from page4d.rig.lens import lenses_of
    from page4d.rig.opening import open_scene
    from page4d.run.calibration import calibrate as calibrate_rig
    from page4d.run.calibration import draw_corners
    from page4d_cli.reports import report_board, report_written, world_fields

    board_of(settings.board, scene_folder)
    chosen = choose_format(out, file_format)
    estimated = Distortion(model=settings.lens_model, coefficients=(0.0,) * 4)
    known = [("every view", estimated, 0.0)] if settings.intrinsics is None else []
    check_calibration_target(out, chosen, overwrite=overwrite, lenses=known)
    if report is not None:
        check_file(report, overwrite=overwrite)
    verbosity = console.Verbosity(quiet=quiet, verbose=verbose)
    with stops_cleanly():
        with observed_run(verbosity, "calibrate") as observer:
            opened = open_scene(scene_folder, scene_options, progress=observer.progress)
            lenses = zip(opened.view_names, lenses_of(opened, intrinsics=settings.intrinsics), strict=True)
            held = [(name, lens.distortion, lens.intrinsics[0, 1]) for name, lens in lenses]
            check_calibration_target(out, chosen, overwrite=overwrite, lenses=held)
            observer.notices_without_poses(opened.notices, settings.intrinsics)
            found = calibrate_rig(opened, settings=settings, observer=observer)
        if as_json:
            console.print_json({"out": str(out), **found.record.model_dump(mode="json")})
        elif not quiet:
            report_board(found.record)
        for notice in found.record.notices:
            console.print_notice(notice, verbosity)
        try:
            write_calibration(found.calibration, out, chosen, overwrite=overwrite)
        except Page4DError:  # of cameras that the format does not hold, and where they are kept
            with suppress(Page4DError):
                if report is not None:
                    draw_corners(found, report)
            raise
        if report is not None:
            try:
                draw_corners(found, report)
            except Stopped as stop:
                hint = f"the calibration is in '{out}'; --overwrite repeats it"
                raise InterruptedRunError("interrupted before the picture was drawn", hint, stop.number) from stop
    if not (as_json or quiet):
        placed = [camera.view for camera in found.record.cameras if camera.placed]
        world = world_fields(found.record.world)
        report_written("the board, lengths in metres", placed, opened, scene_folder, out, world)
