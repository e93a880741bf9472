"""`page4d reconstruct`: the main job."""

from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from page4d_cli import console, options
from page4d_cli.interrupts import stops_cleanly
from page4d_cli.predictor import NetworkChoice, Precision, choose_predictor

if TYPE_CHECKING:
    from page4d.export.run_record import AgreementRecord, NetworkRecord, RunRecord
    from page4d.inference.plan import RunPlan
    from page4d.scene.records import Scene


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
    scene: options.Folder,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Output folder.")],
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
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Reconstruct a folder of synchronized videos: points, depth and cameras for every instant."""
    from page4d.errors import UsageError
    from page4d.export.points import EdgeFilter, PointOptions, PointSource
    from page4d.geometry.preprocess import Preprocess
    from page4d.inference import pipeline
    from page4d.inference.memory import parse_memory
    from page4d.inference.motion import CameraMotion
    from page4d.inference.plan import plan_run
    from page4d.inference.settings import ReconstructSettings, describe_settings
    from page4d.inference.world import Poses
    from page4d.scene.open import SceneOptions, open_scene
    from page4d.scene.records import MaskMeaning, Notice
    from page4d.scene.rig import CalibrationMatch, CalibrationResize

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
    existing = pipeline.ExistingOutput.REFUSE
    if overwrite or resume:
        existing = pipeline.ExistingOutput.OVERWRITE if overwrite else pipeline.ExistingOutput.RESUME
    verbosity = console.Verbosity(quiet=quiet, verbose=verbose)
    with stops_cleanly():
        if out.resolve() == scene.resolve():
            raise UsageError(f"--out '{out}' is the scene itself", "give another folder, such as one below it")
        pipeline.check_target(out, existing)
        opened = open_scene(scene, scene_options)
        tells_cameras = poses is PosesOption.INPUT
        choice = NetworkChoice(weights, untrained, preset, device, precision, seed, tells_cameras)
        predictor, network = choose_predictor(opened, choice)
        if dry_run:
            tell = partial(console.print_notice, verbosity=verbosity)
            plan = plan_run(opened, settings, predictor, network, tell)
            for notice in (*opened.notices, *plan.notices):
                console.print_notice(notice, verbosity)
            _report_plan(opened, network, plan, out, as_json=as_json)
            return
        if network.notice:
            console.print_notice(Notice(network.notice), verbosity)
        with console.observed_run(verbosity) as observer:
            record = pipeline.reconstruct(
                opened,
                predictor,
                network,
                out,
                settings,
                command=describe_settings(scene_options, settings),
                existing=existing,
                observer=observer,
            )
    if as_json:
        console.print_json({"out": str(out), **record.model_dump(mode="json")})
    elif not quiet:
        _report(record, out, out / "preview" / "contact_sheet.png" if preview else out / "points")


def _report_plan(scene: "Scene", network: "NetworkRecord", plan: "RunPlan", out: Path, *, as_json: bool) -> None:
    """Print what a run would do."""
    height, width = plan.transforms[0].canvas_size
    peak = plan.forecast.peak_bytes(max(chunk.length for chunk in plan.chunks))
    seconds = plan.forecast.network_seconds(plan.chunks)
    if as_json:
        console.print_json(
            {
                "out": str(out),
                "network": network.name,
                "num_times": scene.num_times,
                "views": list(scene.view_names),
                "network_size": [width, height],
                "chunks": [[chunk.start, chunk.stop, chunk.overlap] for chunk in plan.chunks],
                "predicted_peak_memory_bytes": peak,
                "memory_bytes": plan.memory_limit.num_bytes,
                "predicted_network_seconds": round(seconds, 3),
                "bytes_on_disk": plan.bytes_on_disk,
            }
        )
        return
    lengths = sorted({chunk.length for chunk in plan.chunks})
    span = f"{lengths[0]} to {lengths[-1]}" if len(lengths) > 1 else f"{lengths[0]}"
    console.print_text(f"scene    {scene.name}: {scene.num_times} instants of {', '.join(scene.view_names)}")
    console.print_text(f"network  {network.name}{f', {network.notice}' if network.notice else ''}")
    console.print_text(f"images   {width}x{height} px")
    overlap = max(chunk.overlap for chunk in plan.chunks)
    console.print_text(f"chunks   {len(plan.chunks)} of {span} instants, {overlap} shared by neighbours")
    limit, source = plan.memory_limit, plan.forecast.device
    allowed = f"{console.human_size(limit.num_bytes)} {'allowed' if limit.is_strict else 'usable'}"
    console.print_text(f"memory   about {console.human_size(peak)} at the worst moment ({source}), {allowed}")
    if plan.forecast.cost is not None:
        console.print_text(f"time     about {seconds:.3g} s for the network alone")
    console.print_text(f"disk     at most {console.human_size(plan.bytes_on_disk)} in '{out}'")


def _report(record: "RunRecord", out: Path, look_at: Path) -> None:
    """Print what a run wrote."""
    from rich import box
    from rich.table import Table

    title = console.cell(f"{record.scene.name} -> {out}")
    table = Table(box=box.SIMPLE, show_header=False, title=title, title_justify="left")
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    seconds = record.timings["total"]
    table.add_row("instants", f"{len(record.times)}, {record.times[0]:.3f} to {record.times[-1]:.3f} s")
    table.add_row("views", console.cell(", ".join(view.name for view in record.views)))
    network = " - ".join(part for part in (record.network.name, record.network.notice) if part)
    table.add_row("network", console.cell(network))
    if record.rig is not None:
        table.add_row("cameras", "static, one a view" if record.rig.cameras == "static" else "moving")
    metric = record.unit == "metre"
    table.add_row("lengths", "metres" if metric else "in an arbitrary unit")
    table.add_row("points", f"{record.counts.points:,}")
    if record.chunks[1:]:
        seams = [chunk.seam.residual for chunk in record.chunks if chunk.seam is not None]
        known = [residual for residual in seams if residual is not None]
        worst = f"worst median residual {max(known):.3g}{' m' if metric else ''}" if known else "nothing to compare"
        table.add_row("seams", f"{len(seams)}, {worst}")
    table.add_row("time", f"{seconds:.1f} s, {len(record.times) * len(record.views) / seconds:.2f} images/s")
    peaks = [console.human_size(size or 0) for size in (record.peak_memory_bytes, record.predicted_peak_memory_bytes)]
    table.add_row("peak memory", f"{peaks[0]} ({record.device}), predicted {peaks[1]}")
    table.add_row("look at", console.cell(str(look_at)))
    console.print_table(table)
    if record.calibration_residuals is not None:
        _report_agreement(record.calibration_residuals, "m" if metric else "units")


def _report_agreement(agreement: "AgreementRecord", unit: str) -> None:
    """Print how far the network's cameras are from the calibrated ones."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE, title="network and calibration differ by", title_justify="left")
    table.add_column("view")
    for name in ("rotation", f"centre [{unit}]", "of the rig", "focal length"):
        table.add_column(name, justify="right")
    for camera in agreement.cameras:
        share = "" if camera.share is None else f"{camera.share:.1%}"
        rotation, focal = f"{camera.rotation_deg:.2f} deg", f"{camera.focal_percent:+.1f} %"
        fault = "  <- at fault" if camera.view == agreement.at_fault else ""
        table.add_row(console.cell(camera.view + fault), rotation, f"{camera.distance:.3f}", share, focal)
    console.print_table(table)
