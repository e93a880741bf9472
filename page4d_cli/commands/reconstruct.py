"""`page4d reconstruct`: the main job."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from page4d_cli import console, options
from page4d_cli.interrupts import stops_cleanly
from page4d_cli.predictor import NetworkChoice, Precision
from page4d_cli.scene_runs import Request, Show, plan_scene, run_batch, run_one


class PosesOption(StrEnum):
    """Whose cameras the result has."""

    INPUT = "input"
    PREDICTED = "predicted"


class CamerasOption(StrEnum):
    """Whether each view has one camera for the whole capture."""

    STATIC = "static"
    MOVING = "moving"
    AUTO = "auto"


class PointsOption(StrEnum):
    """Which prediction the clouds come from."""

    DEPTH = "depth"
    POINTS = "points"


class PreprocessOption(StrEnum):
    """How images come to the network's size."""

    NATIVE = "native"
    VGGT_CROP = "vggt-crop"
    VGGT_PAD = "vggt-pad"
    PI3 = "pi3"


class EdgesOption(StrEnum):
    """How flying pixels are found."""

    SLANT = "slant"
    PI3 = "pi3"


def reconstruct(
    scenes: Annotated[
        list[Path], typer.Argument(metavar="SCENE...", help="Folders of synchronized videos or image folders.")
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", metavar="FOLDER", help="Output folder; of several scenes one folder a scene, by its name."
        ),
    ],
    views: options.Views = None,
    fps: options.Fps = None,
    image_fps: options.ImageFps = None,
    stride: options.Stride = 1,
    frames: options.Frames = None,
    max_frames: options.MaxFrames = None,
    sync: options.Sync = "auto",
    masks: options.Masks = None,
    mask_meaning: options.MaskMeaning = options.MaskMeaningOption.DYNAMIC,
    depth: options.Depth = None,
    depth_levels: options.DepthLevels = 1000.0,
    allow_damaged: options.AllowDamaged = False,
    max_pixels: options.MaxPixels = 64.0,
    calibration: options.Calibration = None,
    calibration_unit: options.CalibrationUnit = None,
    calibration_match: options.CalibrationMatch = options.MatchOption.NAME,
    calib_resize: options.CalibResize = None,
    poses: Annotated[
        PosesOption,
        typer.Option(help="With a calibration: whose cameras the result has.", rich_help_panel=options.RIG),
    ] = PosesOption.INPUT,
    cameras: Annotated[
        CamerasOption,
        typer.Option(
            help="Predicted cameras: static gives a view one for the whole capture, auto does if they stand still.",
            rich_help_panel=options.RIG,
        ),
    ] = CamerasOption.AUTO,
    scale_from: Annotated[
        str | None,
        typer.Option(
            metavar="A-B=1.25m",
            help="Metres by the known distance between the cameras of views A and B (m, cm, mm, ft).",
            rich_help_panel=options.RIG,
        ),
    ] = None,
    refine: Annotated[
        bool,
        typer.Option(
            help="Make cameras and depth agree with the matches that the network finds, if it looks for any.",
            rich_help_panel=options.RIG,
        ),
    ] = True,
    weights: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Weights (.safetensors).", rich_help_panel=options.NETWORK)
    ] = None,
    untrained: Annotated[
        bool,
        typer.Option(
            "--untrained",
            help="Run a network of random weights: THE VALUES ARE NOISE.",
            rich_help_panel=options.NETWORK,
        ),
    ] = False,
    preset: Annotated[
        str, typer.Option(help="Which network --untrained builds.", rich_help_panel=options.NETWORK)
    ] = "mv-small",
    size: Annotated[
        int | None,
        typer.Option(min=8, help="Long side of the network's images in pixels.", rich_help_panel=options.NETWORK),
    ] = None,
    preprocess: Annotated[
        PreprocessOption,
        typer.Option(
            help="native: --size, nothing cut or stretched; else exactly as public code does it: VGGT's 518 px, "
            "cropped or padded, or Pi3's 255,000 px.",
            rich_help_panel=options.NETWORK,
        ),
    ] = PreprocessOption.NATIVE,
    chunk: Annotated[
        str,
        typer.Option(
            metavar="auto|N",
            help="Instants predicted together; auto: as many as are good, 8, or fewer if memory asks for it.",
            rich_help_panel=options.NETWORK,
        ),
    ] = "auto",
    overlap: Annotated[
        int, typer.Option(min=0, help="Instants that neighbouring chunks share.", rich_help_panel=options.NETWORK)
    ] = 2,
    memory: Annotated[
        str,
        typer.Option(
            metavar="auto|SIZE",
            help="Memory to stay within, such as 20GB: a GPU's, or the process's; auto: what is free.",
            rich_help_panel=options.NETWORK,
        ),
    ] = "auto",
    strict_seams: Annotated[
        bool,
        typer.Option(
            "--strict-seams",
            help="Fail, instead of warning, where neighbouring chunks do not fit together.",
            rich_help_panel=options.NETWORK,
        ),
    ] = False,
    device: Annotated[
        str, typer.Option(metavar="auto|cpu|cuda|cuda:N", help="Where to compute.", rich_help_panel=options.NETWORK)
    ] = "auto",
    precision: Annotated[
        Precision, typer.Option(help="auto: bf16 on a GPU that has it, else fp32.", rich_help_panel=options.NETWORK)
    ] = Precision.AUTO,
    seed: Annotated[int, typer.Option(min=0, help="Of all random choices.", rich_help_panel=options.NETWORK)] = 0,
    points_from: Annotated[
        PointsOption,
        typer.Option(help="Clouds from depth maps or from the point head.", rich_help_panel=options.OUTPUT),
    ] = PointsOption.DEPTH,
    min_confidence: Annotated[
        float, typer.Option(min=0, max=1, help="Leave out points below.", rich_help_panel=options.OUTPUT)
    ] = 0.0,
    edges: Annotated[
        EdgesOption,
        typer.Option(
            help="How flying pixels are found: by --edge-angle, or as Pi3's code does.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = EdgesOption.SLANT,
    edge_angle: Annotated[
        float,
        typer.Option(
            min=1,
            max=90,
            metavar="DEG",
            help="Leave out surfaces seen more slantwise (flying pixels); 90 keeps all.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = 85.0,
    voxel: Annotated[
        float,
        typer.Option(
            min=0, help="Keep one point per cube of this side; 0 keeps all.", rich_help_panel=options.OUTPUT
        ),
    ] = 0.0,
    max_points: Annotated[
        int,
        typer.Option(min=0, help="At most so many points an instant; 0 keeps all.", rich_help_panel=options.OUTPUT),
    ] = 0,
    preview: Annotated[bool, typer.Option(help="Write the preview pictures.", rich_help_panel=options.OUTPUT)] = True,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a result that is there.", rich_help_panel=options.OUTPUT)
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue an interrupted run.", rich_help_panel=options.OUTPUT)
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan and stop.", rich_help_panel=options.OUTPUT)
    ] = False,
    batch: Annotated[
        bool,
        typer.Option(
            "--batch",
            help="Treat one scene like several: its result in FOLDER/<its name>, a summary in FOLDER/batch.json.",
            rich_help_panel=options.BATCH,
        ),
    ] = False,
    distributed: Annotated[
        str | None,
        typer.Option(
            metavar="ray[://HOST:PORT]",
            help="Several scenes, or the chunks of one, on a Ray cluster; ray: this machine's, or a new one.",
            rich_help_panel=options.BATCH,
        ),
    ] = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Reconstruct folders of synchronized videos: points, depth and cameras for every instant."""
    from page4d.batch.jobs import SceneJob, scene_jobs
    from page4d.errors import UsageError
    from page4d.export.points import EdgeFilter, PointOptions, PointSource
    from page4d.geometry.preprocess import Preprocess
    from page4d.inference.memory import parse_memory
    from page4d.inference.motion import CameraMotion
    from page4d.inference.output_policy import ExistingOutput
    from page4d.inference.settings import ReconstructSettings
    from page4d.inference.world import Poses
    from page4d.scene.assign_cameras import CalibrationMatch, CalibrationResize
    from page4d.scene.open import SceneOptions
    from page4d.scene.records import MaskMeaning

    if overwrite and resume:
        raise UsageError("--overwrite and --resume contradict each other", "give one of them")
    scene_options = SceneOptions(
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
        mask_meaning=MaskMeaning(mask_meaning),
        depth=depth,
        depth_levels=depth_levels,
        allow_damaged=allow_damaged,
        max_megapixels=max_pixels,
    )
    settings = ReconstructSettings(
        long_side=size,
        preprocess=Preprocess(preprocess),
        chunk=options.parse_chunk(chunk),
        overlap=overlap,
        memory_bytes=parse_memory(memory),
        poses=Poses(poses),
        camera_motion=CameraMotion(cameras),
        scale_from=scale_from,
        refine=refine,
        points=PointOptions(
            source=PointSource(points_from),
            min_confidence=min_confidence,
            edges=EdgeFilter(edges),
            edge_angle_deg=edge_angle,
            voxel_size=voxel,
            max_points=max_points,
            seed=seed,
        ),
        preview=preview,
        strict_seams=strict_seams,
    )
    existing = ExistingOutput.REFUSE
    if overwrite or resume:
        existing = ExistingOutput.OVERWRITE if overwrite else ExistingOutput.RESUME
    verbosity = console.Verbosity(quiet=quiet, verbose=verbose)
    choice = NetworkChoice(weights, untrained, preset, device, precision, seed, poses is PosesOption.INPUT, refine)
    request = Request(scene_options=scene_options, settings=settings, choice=choice, existing=existing)
    show = Show(as_json=as_json, verbosity=verbosity)
    with stops_cleanly():
        if len(scenes) > 1 or batch:
            run_batch(request, scene_jobs(scenes, out), out, show, distributed, dry_run=dry_run)
        elif dry_run:
            plan_scene(request, SceneJob(scene=scenes[0], out=out), show)
        else:
            run_one(request, SceneJob(scene=scenes[0], out=out), show, distributed)
