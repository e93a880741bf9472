"""`page4d synthesize`: render a synthetic capture as videos with exact ground truth."""

from pathlib import Path
from typing import Annotated

import typer

from page4d.choices import SceneFamily, Subject
from page4d.errors import counted
from page4d_cli import console, options
from page4d_cli.progress import count, displayed_progress

RIG = "Cameras"
WORLD = "World"
VIDEOS = "Videos"


def synthesize(
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="New folder for the videos and the ground truth.")],
    seed: Annotated[
        int, typer.Option(min=0, max=2**63 - 1, help="Random seed of the scene.", rich_help_panel=WORLD)
    ] = 0,
    subject: Annotated[
        Subject | None,
        typer.Option(help="Subject of the scene (default: drawn from the seed).", rich_help_panel=WORLD),
    ] = None,
    outdoors: Annotated[
        bool, typer.Option("--outdoors", help="Open ground and sky instead of a room.", rich_help_panel=WORLD)
    ] = False,
    views: Annotated[int, typer.Option(min=1, max=64, help="Number of cameras.", rich_help_panel=RIG)] = 4,
    family: Annotated[
        SceneFamily, typer.Option(help="Arrangement of the cameras.", rich_help_panel=RIG)
    ] = SceneFamily.ARC,
    spacing: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=180,
            metavar="DEG",
            help="Angle between neighbouring cameras (default: drawn from the seed).",
            rich_help_panel=RIG,
        ),
    ] = None,
    moving_cameras: Annotated[
        bool, typer.Option("--moving-cameras", help="Cameras sway instead of being static.", rich_help_panel=RIG)
    ] = False,
    photometric: Annotated[
        bool,
        typer.Option(
            "--photometric",
            help="Vary exposure, colour, noise and sharpness between cameras.",
            rich_help_panel=RIG,
        ),
    ] = False,
    readout: Annotated[
        float,
        typer.Option(min=0, metavar="MS", help="Readout time of a rolling shutter.", rich_help_panel=RIG),
    ] = 0.0,
    frames: Annotated[int, typer.Option(min=1, max=100_000, help="Number of instants.", rich_help_panel=VIDEOS)] = 24,
    size: Annotated[
        str, typer.Option(metavar="WxH", help="Size of the videos in pixels.", rich_help_panel=VIDEOS)
    ] = "320x240",
    mixed_sizes: Annotated[
        bool, typer.Option("--mixed-sizes", help="Make some views smaller or upright.", rich_help_panel=VIDEOS)
    ] = False,
    fps: Annotated[float, typer.Option(min=0.1, help="Frames per second.", rich_help_panel=VIDEOS)] = 12.0,
    supersample: Annotated[
        int,
        typer.Option(min=1, max=8, help="Rays per pixel and axis at edges.", rich_help_panel=VIDEOS),
    ] = 2,
    truth_stride: Annotated[
        int, typer.Option(min=1, help="Write depth and masks of every Nth instant.", rich_help_panel=VIDEOS)
    ] = 1,
    truth_motion: Annotated[
        bool,
        typer.Option(
            "--truth-motion",
            help="Write velocities of the same instants, and trajectories of points on moving objects.",
            rich_help_panel=VIDEOS,
        ),
    ] = False,
    crf: Annotated[
        int, typer.Option(min=0, max=51, help="H.264 constant rate factor; lower is better.", rich_help_panel=VIDEOS)
    ] = 18,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Render a synthetic capture: videos with exact depth, motion masks and cameras."""
    from page4d.lab.synthetic.capture import SyntheticCapture
    from page4d.lab.synthetic.write import write_capture

    capture = SyntheticCapture(
        seed=seed,
        family=family,
        subject=subject,
        outdoors=outdoors,
        num_views=views,
        num_times=frames,
        image_size=options.parse_size(size),
        mixed_sizes=mixed_sizes,
        fps=fps,
        spacing_deg=spacing,
        moving_cameras=moving_cameras,
        photometric=photometric,
        readout_s=readout / 1000,
        supersample=supersample,
    )
    with displayed_progress("render", count("frame"), quiet=quiet) as progress:
        write_capture(
            capture,
            out,
            truth_stride=truth_stride,
            truth_motion=truth_motion,
            quality_crf=crf,
            on_frame=progress.update,
        )
    if as_json:
        console.print_json({"out": str(out), "seed": seed, "views": list(capture.view_names), "frames": frames})
    elif not quiet:
        console.print_text(
            f"wrote {counted(views, 'video')} of {counted(frames, 'frame')} and the ground truth to {out}"
        )
