"""`page4d reconstruct`: from scenes to point clouds, depth maps and camera trajectories."""

from pathlib import Path
from typing import Annotated

import typer

from page4d.choices import (
    CameraMotion,
    DepthSize,
    EdgeFilter,
    ExistingOutput,
    PointSource,
    Poses,
    Preprocess,
    Registration,
)
from page4d.options import (
    MAX_LONG_SIDE,
    MIN_LONG_SIDE,
    NetworkOptions,
    PointOptions,
    ReconstructSettings,
    SceneOptions,
    parse_memory,
)
from page4d_cli import console, options
from page4d_cli.interrupts import stops_cleanly
from page4d_cli.scene_runs import Request, Show, plan_scene, run_batch, run_one


def reconstruct(
    scenes: Annotated[
        list[Path], typer.Argument(metavar="SCENE", help="Folders of synchronized videos or image folders.")
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", metavar="FOLDER", help="Output folder; with several scenes, one folder per scene below it."
        ),
    ],
    views: options.Views = None,
    fps: options.Fps = None,
    image_fps: options.ImageFps = None,
    stride: options.Stride = SceneOptions.stride,
    frames: options.Frames = None,
    max_frames: options.MaxFrames = None,
    sync: options.Sync = SceneOptions.sync,
    masks: options.Masks = None,
    mask_meaning: options.MaskUse = SceneOptions.mask_meaning,
    depth: options.Depth = None,
    depth_levels: options.DepthLevels = SceneOptions.depth_levels,
    allow_damaged: options.AllowDamaged = False,
    max_pixels: options.MaxPixels = SceneOptions.max_megapixels,
    calibration: options.Calibration = None,
    calibration_unit: options.CalibrationUnit = None,
    calibration_match: options.CalibrationPairing = SceneOptions.calibration_match,
    calib_resize: options.CalibResize = None,
    poses: Annotated[
        Poses,
        typer.Option(
            help="Cameras of the result with a calibration: the calibrated or the predicted ones.",
            rich_help_panel=options.RIG,
        ),
    ] = ReconstructSettings.poses,
    cameras: Annotated[
        CameraMotion,
        typer.Option(
            help="Predicted cameras: one per view for the whole capture (static), or one per instant (moving); "
            "auto: measured per view from pixels.",
            rich_help_panel=options.RIG,
        ),
    ] = ReconstructSettings.camera_motion,
    register: Annotated[
        Registration,
        typer.Option(
            help="Cameras without a calibration: from people ('page4d weights get people'), from texture, or the "
            "network's; auto: people and texture where they determine cameras, else the network. off: the network's.",
            rich_help_panel=options.RIG,
        ),
    ] = ReconstructSettings.register,
    focal: options.Focal = None,
    intrinsics: options.Intrinsics = None,
    scale_from: options.ScaleFrom = None,
    check: Annotated[
        bool,
        typer.Option(
            help="Compare the calibration of static cameras with people, if 'page4d weights get people' was run: "
            "swapped, turned and duplicated cameras are warnings.",
            rich_help_panel=options.RIG,
        ),
    ] = ReconstructSettings.check_calibration,
    refine: Annotated[
        bool,
        typer.Option(
            help="Refine cameras and depth (bundle adjustment and multi-view stereo), if the network has matches.",
            rich_help_panel=options.RIG,
        ),
    ] = ReconstructSettings.refine,
    fuse: Annotated[
        bool,
        typer.Option(
            help="Give static parts of static cameras one depth from several instants, and compare the depth of all "
            "views.",
            rich_help_panel=options.RIG,
        ),
    ] = ReconstructSettings.fuse,
    weights: Annotated[
        str | None,
        typer.Option(
            metavar=options.WEIGHTS_METAVAR,
            help=f"{options.WEIGHTS_HELP} Default: the bundled network mv-demo, for demonstrations.",
            rich_help_panel=options.NETWORK,
        ),
    ] = None,
    sha256: options.Sha256 = None,
    untrained: Annotated[
        bool,
        typer.Option(
            "--untrained",
            help="Run a network with random weights: THE VALUES ARE NOISE.",
            rich_help_panel=options.NETWORK,
        ),
    ] = False,
    preset: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help=f"Network that --untrained builds: {options.NETWORK_PRESETS}.",
            rich_help_panel=options.NETWORK,
        ),
    ] = NetworkOptions.preset,
    size: Annotated[
        int | None,
        typer.Option(
            min=MIN_LONG_SIDE,
            max=MAX_LONG_SIDE,
            metavar="N",
            help="Long side of the network's images in pixels; default: that of its training.",
            rich_help_panel=options.NETWORK,
        ),
    ] = None,
    depth_size: Annotated[
        str,
        typer.Option(
            metavar="NAME|N",
            help="Long side of depth maps and clouds in pixels, or video, network (theirs) or auto: 512 with known "
            "cameras and no --size, else network. Depth is upsampled along colour edges, and refined by the pictures "
            "where cameras are known.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = DepthSize.AUTO,
    preprocess: Annotated[
        Preprocess,
        typer.Option(
            help="native: --size, without cropping or stretching. Others as in the published code: VGGT at 518 px, "
            "cropped or padded; Pi3 at 255,000 pixels per image.",
            rich_help_panel=options.NETWORK,
        ),
    ] = ReconstructSettings.preprocess,
    chunk: Annotated[
        str,
        typer.Option(
            metavar="auto|N",
            help="Instants per chunk, predicted together; auto: 8, or fewer if memory requires it.",
            rich_help_panel=options.NETWORK,
        ),
    ] = "auto",
    overlap: Annotated[
        int, typer.Option(min=0, help="Instants that neighbouring chunks share.", rich_help_panel=options.NETWORK)
    ] = ReconstructSettings.overlap,
    memory: Annotated[
        str,
        typer.Option(
            metavar="auto|SIZE",
            help="Memory limit such as 20GB: of a GPU, or of the process; auto: the free memory.",
            rich_help_panel=options.NETWORK,
        ),
    ] = "auto",
    strict_seams: Annotated[
        bool,
        typer.Option(
            "--strict-seams",
            help="Fail, instead of warning, if neighbouring chunks do not fit together.",
            rich_help_panel=options.NETWORK,
        ),
    ] = False,
    device: options.Device = NetworkOptions.device,
    precision: options.NetworkPrecision = NetworkOptions.precision,
    seed: Annotated[
        int, typer.Option(min=0, help="Random seed.", rich_help_panel=options.NETWORK)
    ] = ReconstructSettings.seed,
    points_from: Annotated[
        PointSource,
        typer.Option(help="Make point clouds from depth maps or the point head.", rich_help_panel=options.OUTPUT),
    ] = PointOptions.source,
    min_confidence: Annotated[
        float, typer.Option(min=0, max=1, help="Drop points below this confidence.", rich_help_panel=options.OUTPUT)
    ] = PointOptions.min_confidence,
    min_views: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=256,
            help="Views that must see a point where it is, its own included, and not fewer than see through it; 0 "
            "keeps all points. Default: 2, or 1 with two views, or 0 where the views do not agree.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = PointOptions.min_views,
    edges: Annotated[
        EdgeFilter,
        typer.Option(
            help="Detection of flying pixels: by --edge-angle, or as in Pi3's code.", rich_help_panel=options.OUTPUT
        ),
    ] = PointOptions.edges,
    edge_angle: Annotated[
        float,
        typer.Option(
            min=1,
            max=90,
            metavar="DEG",
            help="Drop points on surfaces seen at a larger angle from their normal (flying pixels); 90 keeps all.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = PointOptions.edge_angle_deg,
    voxel: Annotated[
        float,
        typer.Option(
            min=0, help="Keep one point per voxel of this side length; 0 keeps all.", rich_help_panel=options.OUTPUT
        ),
    ] = PointOptions.voxel_size,
    outliers: Annotated[
        bool,
        typer.Option(
            "--outliers", help="Remove statistical outliers from the clouds.", rich_help_panel=options.OUTPUT
        ),
    ] = PointOptions.outliers,
    normals: Annotated[
        bool,
        typer.Option("--normals", help="Add surface normals to the clouds.", rich_help_panel=options.OUTPUT),
    ] = PointOptions.normals,
    max_points: Annotated[
        int,
        typer.Option(
            min=0, help="Maximum number of points per instant; 0 keeps all.", rich_help_panel=options.OUTPUT
        ),
    ] = PointOptions.max_points,
    layers: Annotated[
        bool,
        typer.Option(
            "--layers",
            help="Also write the static points once, and the moving ones of each instant.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = ReconstructSettings.layers,
    mesh: Annotated[
        bool,
        typer.Option(
            "--mesh",
            help="Fuse the depth maps of each instant into a mesh (TSDF); with --layers, static surfaces once and "
            "moving ones of each instant.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = ReconstructSettings.mesh,
    mesh_voxel: Annotated[
        float,
        typer.Option(
            min=0, help="Voxel size of the mesh; 0: from the image resolution.", rich_help_panel=options.OUTPUT
        ),
    ] = ReconstructSettings.mesh_voxel,
    motion: Annotated[
        bool,
        typer.Option(
            "--motion",
            help="Measure the velocity of every point: velocity maps, and velocities in the clouds.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = ReconstructSettings.motion,
    motion_size: Annotated[
        int,
        typer.Option(
            min=MIN_LONG_SIDE,
            max=MAX_LONG_SIDE,
            help="Maximum long side in pixels of the images whose optical flow is measured.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = ReconstructSettings.motion_size,
    tracks: Annotated[
        int,
        typer.Option(
            min=0,
            max=1_000_000,
            help="With --motion, follow points through the capture, at most N at a time; 0: none.",
            metavar="N",
            rich_help_panel=options.OUTPUT,
        ),
    ] = ReconstructSettings.tracks,
    tracks2d: Annotated[
        Path | None,
        typer.Option(
            help="With --motion, lift 2D tracks of other trackers: a folder of VIEW.npz (TAPIR, TAPNext, CoTracker).",
            metavar="DIR",
            rich_help_panel=options.OUTPUT,
        ),
    ] = ReconstructSettings.tracks2d,
    preview: Annotated[
        bool, typer.Option(help="Write preview pictures and a video.", rich_help_panel=options.OUTPUT)
    ] = ReconstructSettings.preview,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing result.", rich_help_panel=options.OUTPUT)
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue an interrupted run.", rich_help_panel=options.OUTPUT)
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan and exit.", rich_help_panel=options.OUTPUT)
    ] = False,
    measure: Annotated[
        bool,
        typer.Option(
            "--measure",
            help="Measure the time of the network again, and forget the times of earlier runs.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = False,
    batch: Annotated[
        bool,
        typer.Option(
            "--batch",
            help="Run a single scene as a batch: result in FOLDER/<scene name>, summary in FOLDER/batch.json.",
            rich_help_panel=options.BATCH,
        ),
    ] = False,
    distributed: Annotated[
        str | None,
        typer.Option(
            metavar="ray[://HOST:PORT]",
            help="Run several scenes, or the chunks of one, on a Ray cluster; ray: that of this machine, started if "
            "necessary.",
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
    from page4d.run.cost import forget_measurements

    if overwrite and resume:
        raise UsageError("--overwrite and --resume contradict each other", "give one of them")
    request = Request(
        scene=SceneOptions(
            views=options.parse_views(views),
            sync=sync,
            fps=fps,
            image_fps=image_fps,
            stride=stride,
            frames=options.parse_frames(frames),
            max_frames=max_frames,
            calibration=calibration,
            calibration_unit=calibration_unit,
            calibration_match=calibration_match,
            calibration_resize=calib_resize,
            masks=masks,
            mask_meaning=mask_meaning,
            depth=depth,
            depth_levels=depth_levels,
            allow_damaged=allow_damaged,
            max_megapixels=max_pixels,
        ),
        network=NetworkOptions(
            weights=weights,
            sha256=sha256,
            untrained=untrained,
            preset=preset,
            device=device,
            precision=precision,
        ),
        settings=ReconstructSettings(
            long_side=size,
            depth_size=options.parse_depth_size(depth_size),
            preprocess=preprocess,
            chunk=options.parse_chunk(chunk),
            overlap=overlap,
            memory_bytes=parse_memory(memory),
            poses=poses,
            camera_motion=cameras,
            register=register,
            focal=focal,
            intrinsics=intrinsics,
            scale_from=scale_from,
            check_calibration=check,
            refine=refine,
            fuse=fuse,
            points=PointOptions(
                source=points_from,
                min_confidence=min_confidence,
                min_views=min_views,
                edges=edges,
                edge_angle_deg=edge_angle,
                voxel_size=voxel,
                outliers=outliers,
                normals=normals,
                max_points=max_points,
            ),
            layers=layers,
            mesh=mesh,
            mesh_voxel=mesh_voxel,
            motion=motion,
            motion_size=motion_size,
            tracks=tracks,
            tracks2d=tracks2d,
            preview=preview,
            strict_seams=strict_seams,
            seed=seed,
        ),
        existing=(
            ExistingOutput.OVERWRITE if overwrite else ExistingOutput.RESUME if resume else ExistingOutput.REFUSE
        ),
    )
    if measure:
        forget_measurements()
    show = Show(as_json=as_json, verbosity=console.Verbosity(quiet=quiet, verbose=verbose))
    with stops_cleanly():
        if len(scenes) > 1 or batch:
            run_batch(request, scene_jobs(scenes, out), out, show, distributed, dry_run=dry_run)
        elif dry_run:
            plan_scene(request, SceneJob(scene=scenes[0], out=out), show)
        else:
            run_one(request, SceneJob(scene=scenes[0], out=out), show, distributed)
