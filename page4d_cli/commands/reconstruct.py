"""`page4d reconstruct`: from scenes to point clouds, depth maps and camera trajectories.

Execution of `page4d reconstruct`: one scene, its plan, or a batch, in this process or on a cluster.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
from page4d_cli.console import stops_cleanly
from page4d_cli.progress import observed_run
from page4d_cli.reports import report_batch, report_plan, report_run

if TYPE_CHECKING:
    from page4d.batch.jobs import SceneJob, SceneOutcome, Watch
    from page4d.output.record import RunRecord
    from page4d.run.chunk_source import OpenChunks
    from page4d.run.predictor import Predictor
    from page4d.run.progress import Observer
    from page4d.scene.records import Scene


@dataclass(frozen=True, kw_only=True)
class Request:
    """Options of a run, the same for all scenes of a batch; it can be sent to other processes."""

    scene: SceneOptions
    network: NetworkOptions
    settings: ReconstructSettings
    existing: ExistingOutput

    def predictor(self, scene: "Scene") -> "Predictor":
        """Build the predictor of a scene."""
        from page4d.run.predictor import predictor_for

        return predictor_for(scene, self.network, self.settings)


@dataclass(frozen=True, kw_only=True)
class Show:
    """What is printed."""

    as_json: bool
    verbosity: console.Verbosity


def run_one(request: Request, job: "SceneJob", show: Show, distributed: str | None) -> None:
    """Reconstruct a scene, with its chunks on a cluster if one is named, and print the result."""
    _fetch_weights(request, [job], show)
    with observed_run(show.verbosity) as observer:
        if distributed is None:
            record = run_scene(request, job, observer)
        else:
            from page4d.batch.ray import cluster_chunks
            from page4d.batch.ray_connection import joined_cluster, parse_distributed

            with joined_cluster(parse_distributed(distributed), observer.notice) as ray:
                record = run_scene(request, job, observer, partial(cluster_chunks, ray, request.predictor))
    if show.as_json:
        console.print_json({"out": str(job.out), **record.model_dump(mode="json")})
    elif not show.verbosity.quiet:
        report_run(record, job.out)


def run_scene(
    request: Request, job: "SceneJob", observer: "Observer", open_chunks: "OpenChunks | None" = None
) -> "RunRecord":
    """Reconstruct a scene and return the content of its `run.json`."""
    from page4d.installation import preload_open3d

    _check_target(request, job)
    preload_open3d()  # while torch and the network load
    from page4d.rig.opening import open_scene
    from page4d.run.chunk_source import local_chunks
    from page4d.run.reconstruct import reconstruct

    scene = open_scene(job.scene, request.scene, progress=observer.progress)
    return reconstruct(
        scene,
        request.predictor(scene),
        out=job.out,
        existing=request.existing,
        observer=observer,
        open_chunks=open_chunks or local_chunks,
    )


def plan_scene(request: Request, job: "SceneJob", show: Show) -> None:
    """Print the plan of a run."""
    from page4d.installation import preload_open3d

    _fetch_weights(request, [job], show)
    preload_open3d()  # while torch and the network load
    from page4d.rig.opening import open_scene
    from page4d.run.plan import plan_run

    with observed_run(show.verbosity, "plan") as observer:
        scene = open_scene(job.scene, request.scene, progress=observer.progress)
    notify = partial(console.print_notice, verbosity=show.verbosity)
    plan = plan_run(scene, request.predictor(scene))
    for notice in (*scene.notices, *plan.notices):
        notify(notice)
    report_plan(plan, job.out, as_json=show.as_json)


def run_batch(
    request: Request, jobs: list["SceneJob"], root: Path, show: Show, distributed: str | None, *, dry_run: bool
) -> None:
    """Reconstruct scenes one after another, or in parallel on a cluster, and print their outcomes.

    Raises:
        BatchError: if a scene failed.
        InterruptedRunError: if a signal ended the batch.
    """
    from page4d.batch.jobs import BatchRecord, SceneStatus, not_begun
    from page4d.errors import BatchError, InterruptedRunError
    from page4d.io.atomic import check_folder

    if dry_run:
        for job in jobs:
            plan_scene(request, job, show)
        return
    check_folder(root)
    _fetch_weights(request, [], show)
    ended = {job.name: not_begun(job) for job in jobs}
    record, stopped = BatchRecord(scenes=list(ended.values())), None
    try:
        with stops_cleanly():
            for outcome in _outcomes(request, jobs, show, distributed):
                ended[Path(outcome.out).name] = outcome
                record = BatchRecord(scenes=list(ended.values()))
                record.write(root)
                if outcome.status is SceneStatus.FAILED:
                    console.print_error(f"{Path(outcome.scene).name}: {outcome.error}", outcome.hint)
    except InterruptedRunError as error:
        stopped = error
    if show.as_json:
        console.print_json({"out": str(root), **record.model_dump(mode="json")})
    elif not show.verbosity.quiet:
        report_batch(record)
    if stopped is not None:
        done = f"{len(jobs) - record.num_failed} of {len(jobs)} scenes"
        raise InterruptedRunError(
            f"interrupted after {done}", "continue with --resume", stopped.exit_code - 128
        ) from stopped
    if record.num_failed:
        raise BatchError(
            f"{record.num_failed} of {len(jobs)} scenes failed",
            f"see '{root / 'batch.json'}'; --resume tries them again",
        )


def _outcomes(
    request: Request, jobs: list["SceneJob"], show: Show, distributed: str | None
) -> Iterator["SceneOutcome"]:
    if distributed is None:
        from page4d.batch.jobs import in_a_process

        yield from in_a_process(jobs, partial(_until_stopped, request), _watch(jobs, show))
        return
    from page4d.batch.ray import on_cluster
    from page4d.batch.ray_connection import joined_cluster, parse_distributed

    with joined_cluster(
        parse_distributed(distributed), partial(console.print_notice, verbosity=show.verbosity)
    ) as ray:
        device = request.network.device
        gpu = device.startswith("cuda") or (device == "auto" and ray.cluster_resources().get("GPU", 0) > 0)
        for number, outcome in enumerate(on_cluster(ray, jobs, partial(run_scene, request), gpu=gpu), start=1):
            _print_step(f"[{number}/{len(jobs)}] {Path(outcome.scene).name}: {outcome.status}", show)
            yield outcome


def _watch(jobs: list["SceneJob"], show: Show) -> "Watch":
    @contextmanager
    def watch(job: "SceneJob") -> Iterator["Observer"]:
        _print_step(f"[{jobs.index(job) + 1}/{len(jobs)}] {job.scene}", show)
        with observed_run(show.verbosity) as observer:
            yield observer

    return watch


def _print_step(text: str, show: Show) -> None:
    from page4d.scene.records import Level, Notice

    console.print_notice(Notice(text, Level.STEP), show.verbosity)


def _until_stopped(request: Request, job: "SceneJob", observer: "Observer") -> "RunRecord":
    """Reconstruct a scene; a signal stops it between two files."""
    with stops_cleanly():
        return run_scene(request, job, observer)


def _fetch_weights(request: Request, jobs: list["SceneJob"], show: Show) -> None:
    """Fetch and convert named weights, and the pose model, after what would refuse the run at once."""
    for job in jobs:
        _check_target(request, job)
        if not job.scene.is_dir():
            return  # opening the scene reports it
    network = request.network
    if network.weights is not None:
        from page4d_cli.progress import fetched_weights

        fetched_weights(network.weights, network.sha256, show.verbosity)
    if request.settings.register is Registration.PEOPLE:
        from page4d_cli.progress import fetched_pose_model

        fetched_pose_model(show.verbosity)


def _check_target(request: Request, job: "SceneJob") -> None:
    from page4d.errors import UsageError
    from page4d.io.atomic import real_path
    from page4d.run.reconstruct import check_target

    if real_path(job.out) == real_path(job.scene):
        raise UsageError(f"--out '{job.out}' is the scene itself", "give another folder, such as one below it")
    check_target(job.out, request.existing)


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
    show = Show(as_json=as_json, verbosity=console.Verbosity(quiet=quiet, verbose=verbose))
    with stops_cleanly():
        if len(scenes) > 1 or batch:
            run_batch(request, scene_jobs(scenes, out), out, show, distributed, dry_run=dry_run)
        elif dry_run:
            plan_scene(request, SceneJob(scene=scenes[0], out=out), show)
        else:
            run_one(request, SceneJob(scene=scenes[0], out=out), show, distributed)
