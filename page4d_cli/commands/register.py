"""`page4d register`: cameras of a static rig from people and texture, for page4d and other programs."""

from pathlib import Path
from typing import Annotated

import typer

from page4d.choices import CalibrationFormat, Registration
from page4d.options import RegisterSettings, SceneOptions
from page4d_cli import console, options
from page4d_cli.console import stops_cleanly
from page4d_cli.progress import observed_run


def register(
    scene: options.Folder,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="Calibration to write: .json (page4d), .toml (Anipose, Pose2Sim), or a folder (COLMAP model).",
        ),
    ],
    file_format: Annotated[
        CalibrationFormat | None,
        typer.Option("--format", help="Format; default: by the name.", rich_help_panel=options.OUTPUT),
    ] = None,
    register: Annotated[
        Registration,
        typer.Option(
            "--register",
            metavar="auto|people|texture",
            help="Evidence: body keypoints of people ('page4d weights get people'), texture, or both.",
            rich_help_panel=options.RIG,
        ),
    ] = RegisterSettings.register,
    focal: options.Focal = None,
    intrinsics: options.Intrinsics = None,
    calib_resize: options.CalibResize = None,
    scale_from: options.ScaleFrom = None,
    max_instants: Annotated[
        int, typer.Option(min=1, help="Number of instants that are sampled.", rich_help_panel=options.RIG)
    ] = RegisterSettings.max_instants,
    seed: Annotated[int, typer.Option(min=0, help="Random seed.", rich_help_panel=options.RIG)] = 0,
    views: options.Views = None,
    fps: options.Fps = None,
    image_fps: options.ImageFps = None,
    stride: options.Stride = SceneOptions.stride,
    frames: options.Frames = None,
    max_frames: options.MaxFrames = None,
    sync: options.Sync = SceneOptions.sync,
    allow_damaged: options.AllowDamaged = False,
    max_pixels: options.MaxPixels = SceneOptions.max_megapixels,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing file.", rich_help_panel=options.OUTPUT)
    ] = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Determine the cameras of a rig from people and texture, and write them as a calibration.

    Cameras that evidence does not determine are left out of the file, with a warning; fewer than two are an error.
    The unit of length is arbitrary without --scale-from.
    """
    settings = RegisterSettings(
        register=register,
        focal=focal,
        intrinsics=intrinsics,
        scale_from=scale_from,
        max_instants=max_instants,
        seed=seed,
    )
    scene_options = SceneOptions(
        views=options.parse_views(views),
        sync=sync,
        fps=fps,
        image_fps=image_fps,
        stride=stride,
        frames=options.parse_frames(frames),
        max_frames=max_frames,
        calibration_resize=calib_resize,
        allow_damaged=allow_damaged,
        max_megapixels=max_pixels,
    )
    from page4d.formats.write import check_calibration_target, choose_format, write_calibration
    from page4d.rig.opening import open_scene
    from page4d.run.registration import placed_cameras, registration_notices, state_of
    from page4d.run.registration import register as register_rig
    from page4d_cli.progress import fetched_pose_model
    from page4d_cli.reports import report_registration

    chosen = choose_format(out, file_format)
    check_calibration_target(out, chosen, overwrite=overwrite)
    verbosity = console.Verbosity(quiet=quiet, verbose=verbose)
    if register is Registration.PEOPLE and scene.is_dir():
        fetched_pose_model(verbosity)
    with stops_cleanly():
        with observed_run(verbosity, "register") as observer:
            opened = open_scene(scene, scene_options, progress=observer.progress)
            for notice in opened.notices:
                observer.notice(notice)
            found = register_rig(opened, settings=settings, observer=observer)
        record = state_of(found, settings.register).record
        if as_json:
            console.print_json({"out": str(out), **record.model_dump(mode="json")})
        elif not quiet:
            report_registration(record, in_run=False)
        calibration = placed_cameras(found)
        write_calibration(calibration, out, chosen, overwrite=overwrite)
    if found.is_complete:
        return
    for notice in registration_notices(record, in_run=False):
        console.print_notice(notice, verbosity)
