"""`page4d synthesize`: an exact synthetic capture, as videos with their truth."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from page4d_cli import console, options

RIG = "Cameras"
WORLD = "World"
VIDEOS = "Videos"


class FamilyOption(StrEnum):
    """How the cameras stand."""

    ARC = "arc"
    RING = "ring"
    HANDHELD = "handheld"
    SINGLE = "single"


class SubjectOption(StrEnum):
    """What the cameras are turned to."""

    PEOPLE = "people"
    TABLE = "table"


def synthesize(
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="New folder for the videos and the truth.")],
    seed: Annotated[int, typer.Option(min=0, help="A scene is a seed.", rich_help_panel=WORLD)] = 0,
    subject: Annotated[
        SubjectOption | None,
        typer.Option(help="What is filmed; the seed decides unless given.", rich_help_panel=WORLD),
    ] = None,
    outdoors: Annotated[
        bool, typer.Option("--outdoors", help="Open ground under a sky, not a room.", rich_help_panel=WORLD)
    ] = False,
    views: Annotated[int, typer.Option(min=1, max=64, help="Number of cameras.", rich_help_panel=RIG)] = 4,
    family: Annotated[
        FamilyOption, typer.Option(help="Arc, ring, close together by hand, or one camera.", rich_help_panel=RIG)
    ] = FamilyOption.ARC,
    spacing: Annotated[
        float | None,
        typer.Option(min=0, max=180, metavar="DEG", help="Angle between neighbours.", rich_help_panel=RIG),
    ] = None,
    moving_cameras: Annotated[
        bool, typer.Option("--moving-cameras", help="Let the cameras sway.", rich_help_panel=RIG)
    ] = False,
    photometric: Annotated[
        bool,
        typer.Option(
            "--photometric", help="Cameras differ in exposure, colour, noise, sharpness.", rich_help_panel=RIG
        ),
    ] = False,
    readout: Annotated[
        float, typer.Option(min=0, metavar="MS", help="Rolling shutter, first to last row.", rich_help_panel=RIG)
    ] = 0.0,
    frames: Annotated[int, typer.Option(min=1, help="Number of instants.", rich_help_panel=VIDEOS)] = 24,
    size: Annotated[
        str, typer.Option(metavar="WxH", help="Size of the videos in pixels.", rich_help_panel=VIDEOS)
    ] = "320x240",
    mixed_sizes: Annotated[
        bool, typer.Option("--mixed-sizes", help="Some views smaller or upright.", rich_help_panel=VIDEOS)
    ] = False,
    fps: Annotated[float, typer.Option(min=0.1, help="Frames per second.", rich_help_panel=VIDEOS)] = 12.0,
    supersample: Annotated[
        int,
        typer.Option(min=1, max=8, help="Colour samples a pixel at edges, along each side.", rich_help_panel=VIDEOS),
    ] = 2,
    truth_stride: Annotated[
        int, typer.Option(min=1, help="Write depth and masks of every Nth instant.", rich_help_panel=VIDEOS)
    ] = 1,
    crf: Annotated[
        int, typer.Option(min=0, max=51, help="H.264 quality, lower is better.", rich_help_panel=VIDEOS)
    ] = 18,
    as_json: options.Json = False,
) -> None:
    """Render people, rooms and moving things: videos, depth, motion masks and cameras, exact to the last digit."""
    from page4d.synthetic.camera_rigs import SceneFamily, Subject
    from page4d.synthetic.capture import SyntheticCapture
    from page4d.synthetic.write import write_capture

    capture = SyntheticCapture(
        seed=seed,
        family=SceneFamily(family),
        subject=None if subject is None else Subject(subject),
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
    write_capture(capture, out, truth_stride=truth_stride, quality_crf=crf)
    if as_json:
        console.print_json({"out": str(out), "seed": seed, "views": list(capture.view_names), "frames": frames})
    else:
        console.print_text(f"wrote {views} videos of {frames} frames with their truth to {out}")
