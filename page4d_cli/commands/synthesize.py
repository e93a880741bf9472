"""`page4d synthesize`: an exact synthetic capture, as videos with their truth."""

from pathlib import Path
from typing import Annotated

import typer

from page4d_cli import console, options


def synthesize(
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="New folder for the videos and the truth.")],
    seed: Annotated[int, typer.Option(min=0, help="A scene is a seed.")] = 0,
    views: Annotated[int, typer.Option(min=1, max=64, help="Number of cameras.")] = 4,
    frames: Annotated[int, typer.Option(min=1, help="Number of instants.")] = 24,
    size: Annotated[str, typer.Option(metavar="WxH", help="Size of the videos in pixels.")] = "320x240",
    fps: Annotated[float, typer.Option(min=0.1, help="Frames per second.")] = 12.0,
    spacing: Annotated[float | None, typer.Option(metavar="DEG", help="Angle between neighbouring cameras.")] = None,
    moving_cameras: Annotated[bool, typer.Option("--moving-cameras", help="Let the cameras sway.")] = False,
    supersample: Annotated[int, typer.Option(min=1, max=8, help="Colour samples a pixel, along each side.")] = 2,
    truth_stride: Annotated[int, typer.Option(min=1, help="Write depth and masks of every Nth instant.")] = 1,
    crf: Annotated[int, typer.Option(min=0, max=51, help="H.264 quality, lower is better.")] = 18,
    as_json: options.Json = False,
) -> None:
    """Render a room with moving objects: videos, depth, motion masks and cameras, exact to the last digit."""
    from page4d.synthetic.capture import SyntheticCapture
    from page4d.synthetic.write import write_capture

    capture = SyntheticCapture(
        seed=seed,
        num_views=views,
        num_times=frames,
        image_size=options.parse_size(size),
        fps=fps,
        spacing_deg=spacing,
        moving_cameras=moving_cameras,
        supersample=supersample,
    )
    write_capture(capture, out, truth_stride=truth_stride, quality_crf=crf)
    if as_json:
        console.print_json({"out": str(out), "seed": seed, "views": list(capture.view_names), "frames": frames})
    else:
        console.print_text(f"wrote {views} videos of {frames} frames with their truth to {out}")
