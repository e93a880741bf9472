"""`page4d synthesize`: render a synthetic capture as videos with exact ground truth."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from page4d.choices import SceneFamily, Subject
from page4d.errors import counted
from page4d.options import Option
from page4d_cli import console, options
from page4d_cli.progress import count, displayed_progress

RIG = "Cameras"
WORLD = "World"
VIDEOS = "Videos"


@options.command
def synthesize(
    out: Annotated[Path, Option("New folder for the videos and the ground truth.", metavar="FOLDER")],
    seed: Annotated[int, Field(ge=0, le=2**63 - 1), Option("Random seed of the scene.", WORLD)] = 0,
    subject: Annotated[Subject | None, Option("Subject of the scene (default: drawn from the seed).", WORLD)] = None,
    outdoors: Annotated[bool, Option("Open ground and sky instead of a room.", WORLD)] = False,
    board: Annotated[
        str | None,
        Option(
            "Calibration board that moves in front of the cameras, as for 'page4d calibrate'.", WORLD, "BOARD|FILE"
        ),
    ] = None,
    views: Annotated[int, Field(ge=1, le=64), Option("Number of cameras.", RIG)] = 4,
    family: Annotated[SceneFamily, Option("Arrangement of the cameras.", RIG)] = SceneFamily.ARC,
    spacing: Annotated[
        float | None,
        Field(ge=0, le=180),
        Option("Angle between neighbouring cameras (default: drawn from the seed).", RIG, "DEG"),
    ] = None,
    moving_cameras: Annotated[bool, Option("Cameras sway instead of being static.", RIG)] = False,
    photometric: Annotated[bool, Option("Vary exposure, colour, noise and sharpness between cameras.", RIG)] = False,
    readout: Annotated[float, Field(ge=0), Option("Readout time of a rolling shutter.", RIG, "MS")] = 0.0,
    frames: Annotated[int, Field(ge=1, le=100_000), Option("Number of instants.", VIDEOS)] = 24,
    size: Annotated[str, Option("Size of the videos in pixels.", VIDEOS, "WxH")] = "320x240",
    mixed_sizes: Annotated[bool, Option("Make some views smaller or upright.", VIDEOS)] = False,
    fps: Annotated[float, Field(ge=0.1), Option("Frames per second.", VIDEOS)] = 12.0,
    supersample: Annotated[int, Field(ge=1, le=8), Option("Rays per pixel and axis at edges.", VIDEOS)] = 2,
    truth_stride: Annotated[int, Field(ge=1), Option("Write depth and masks of every Nth instant.", VIDEOS)] = 1,
    truth_motion: Annotated[
        bool, Option("Write velocities of the same instants, and trajectories of points on moving objects.", VIDEOS)
    ] = False,
    crf: Annotated[int, Field(ge=0, le=51), Option("H.264 constant rate factor; lower is better.", VIDEOS)] = 18,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Render a synthetic capture with exact ground truth."""
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
        board=board,
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
