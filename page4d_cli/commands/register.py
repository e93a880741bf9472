"""`page4d register`: cameras of a static rig from people and texture, for page4d and other programs."""

from typing import Annotated

from page4d.choices import Registration
from page4d.options import OUTPUT, Option, RegisterSettings
from page4d_cli import console, options
from page4d_cli.progress import observed_run
from page4d_cli.stopping import stops_cleanly


@options.command
def register(
    scene_folder: options.Folder,
    out: options.CalibrationOut,
    settings: RegisterSettings,
    scene_options: options.Unregistered,
    file_format: options.FileFormat = None,
    overwrite: Annotated[bool, Option("Replace an existing file.", OUTPUT)] = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Determine the cameras of a rig from people and texture.

    They are written as a calibration. Cameras that evidence does not determine are left out of the file, with a
    warning; fewer than two are an error. The unit of length is arbitrary without --scale-from. With --calibration the
    views that it lacks are placed in its world, and those of --again, which moved since.
    """
    from page4d.formats.calibrations import check_calibration_target, choose_format, write_calibration
    from page4d.rig.lens import lenses_of
    from page4d.rig.opening import open_scene
    from page4d.run.registration import placed_cameras, registration_notices
    from page4d.run.registration import register as register_rig
    from page4d_cli.progress import fetched_model
    from page4d_cli.reports import report_registered, report_registration

    chosen = choose_format(out, file_format)
    check_calibration_target(out, chosen, overwrite=overwrite)
    verbosity = console.Verbosity(quiet=quiet, verbose=verbose)
    if settings.register is Registration.PEOPLE and scene_folder.is_dir():
        fetched_model("people", verbosity)
    with stops_cleanly():
        with observed_run(verbosity, "register") as observer:
            opened = open_scene(scene_folder, scene_options, progress=observer.progress)
            lenses = zip(opened.view_names, lenses_of(opened, settings.focal, settings.intrinsics), strict=True)
            held = [(name, lens.distortion, lens.intrinsics[0, 1]) for name, lens in lenses]
            check_calibration_target(out, chosen, overwrite=overwrite, lenses=held)
            observer.notices_without_poses(opened.notices, settings.intrinsics)
            found = register_rig(opened, settings=settings, observer=observer)
        record = found.record
        if as_json:
            world = None if found.world is None else found.world.model_dump(mode="json")
            console.print_json({"out": str(out), **record.model_dump(mode="json"), "world": world})
        elif not quiet:
            report_registration(record, in_run=False, verbose=verbose)
        if not record.is_complete and record.is_used:
            for notice in registration_notices(record, in_run=False):
                console.print_notice(notice, verbosity)
        write_calibration(placed_cameras(found, opened), out, chosen, overwrite=overwrite)
    if not (as_json or quiet):
        report_registered(found, opened, scene_folder, out)
