"""`page4d benchmark`: measured and predicted memory and time of a network on this device."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from page4d.errors import UsageError, human_size, shortened
from page4d.io.atomic import parse_pin
from page4d.options import (
    NETWORK_PRESETS,
    WEIGHTS_HELP,
    WEIGHTS_METAVAR,
    Device,
    NetworkOptions,
    NetworkPrecision,
    Option,
    Sha256,
    parse_count,
)
from page4d_cli import console, options
from page4d_cli.progress import count, displayed_progress, fetched_weights
from page4d_cli.tables import number_columns, print_table

if TYPE_CHECKING:
    from page4d.lab.benchmark import Measurement


_MAX_IMAGES = 100_000
"""Largest number of views or instants."""


@options.command
def benchmark(
    weights: Annotated[
        str | None, Option(f"{WEIGHTS_HELP} Default: --preset, untrained.", metavar=WEIGHTS_METAVAR)
    ] = None,
    sha256: Sha256 = None,
    preset: Annotated[
        str, Option(f"Untrained network, used without --weights: {NETWORK_PRESETS}.", metavar="NAME")
    ] = "mv-demo",
    times: Annotated[str, Option("Numbers of instants.", metavar="T,T,...", is_list=True)] = "1,2,4",
    views: Annotated[str, Option("Numbers of views.", metavar="V,V,...", is_list=True)] = "2,4",
    size: Annotated[
        str | None,
        Option(
            "Sizes of the images in pixels; N is NxN. Default: half the network's default size.",
            metavar="WxH,N,...",
            is_list=True,
        ),
    ] = None,
    device: Device = NetworkOptions.device,
    precision: NetworkPrecision = NetworkOptions.precision,
    refine: Annotated[bool, Option("Also measure refinement, on rendered views 5 degrees apart.")] = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Measure memory and time of a network.

    Both are compared with the predictions. All combinations of instants, views and image sizes are measured. Memory
    is that of a forward pass without the weights: on a GPU as counted by its allocator, elsewhere all tensors.
    """
    import torch

    from page4d.lab.benchmark import measure_grid
    from page4d.run.memory import Extent
    from page4d.run.predictor import build_predictor

    grid = [(time, view) for view in _numbers(views, "--views") for time in _numbers(times, "--times")]
    verbosity = console.Verbosity(quiet=quiet)
    if weights is not None:
        fetched_weights(weights, parse_pin(weights, sha256), verbosity)
    predictor = build_predictor(
        weights, device=device, precision=precision, untrained=weights is None, preset=preset, sha256=sha256
    )
    network = predictor.record
    extents = [
        Extent(times=time, views=view, size=size)
        for size in _sizes(size, predictor.default_long_side or 0, predictor.multiple)
        for time, view in grid
    ]
    found: list[Measurement] = []
    with displayed_progress("benchmark", count("measurement"), quiet=quiet) as progress:
        progress.update(0, len(extents))
        for measurement in measure_grid(predictor, extents, refine=refine):
            found.append(measurement)
            progress.update(len(found), len(extents))
    name = (network.source.name if network.source else network.weights) or network.preset or network.name
    if as_json:
        about = {"network": name, "device": str(predictor.device), "torch": torch.__version__}
        console.print_json({**about, "measurements": [_document(measurement) for measurement in found]})
    else:
        _print(found, f"{name} on {predictor.device}", refine=refine)


def _numbers(text: str, option: str) -> list[int]:
    numbers = {parse_count(part.strip()) for part in text.split(",")}
    if not all(1 <= number <= _MAX_IMAGES for number in numbers):
        raise typer.BadParameter(
            f"'{shortened(text)}' is not a list of numbers from 1 to {_MAX_IMAGES:,}", param_hint=f"'{option}'"
        )
    return sorted(numbers)


def _sizes(text: str | None, own: int, multiple: int) -> list[tuple[int, int]]:
    """Parse image sizes; the default is a square of half the network's default side."""
    side = max(own // 2 // multiple, 1) * multiple
    found = [(side, side)] if text is None else [options.parse_size(part, square=True) for part in text.split(",")]
    for height, width in found:
        if height % multiple or width % multiple:
            raise UsageError(
                f"images of {width}x{height} px do not divide into patches of {multiple} px",
                f"use multiples of {multiple}",
            )
    return found


def _document(measurement: "Measurement") -> dict[str, Any]:
    extent, actual = measurement.extent, measurement.actual
    return {
        "times": extent.times,
        "views": extent.views,
        "size": [extent.size[1], extent.size[0]],
        "tflop": measurement.tflop,
        "predicted_bytes": measurement.predicted_bytes,
        "bytes": None if actual is None else actual.num_bytes,
        "seconds": None if actual is None else actual.seconds,
        "images_per_second": measurement.images_per_second,
        "refinement_seconds": measurement.refinement,
    }


def _print(found: "list[Measurement]", title: str, *, refine: bool) -> None:
    headings = ["views", "instants", "time", "TFLOP/s", "images/s", "memory", "predicted\nmemory"]
    if refine:
        headings += ["refine-\nment", "us per\npixel"]
    rows = []
    for measurement in found:
        extent, actual = measurement.extent, measurement.actual
        rows.append(
            (
                f"{extent.size[1]}x{extent.size[0]}",
                str(extent.views),
                str(extent.times),
                "-" if actual is None else f"{actual.seconds:.3g} s",
                "-" if actual is None else f"{measurement.tflop / actual.seconds:.3g}",
                "-" if actual is None else f"{measurement.images_per_second:.3g}",
                "out of memory" if actual is None else human_size(actual.num_bytes),
                human_size(measurement.predicted_bytes),
                *(_refinement(measurement) if refine else ()),
            )
        )
    print_table(number_columns("size", headings), rows, title)


def _refinement(measurement: "Measurement") -> tuple[str, str]:
    """Return the time of refinement, and that per pixel, which shows how it grows."""
    if measurement.refinement is None:
        return "-", "-"
    per_pixel = measurement.refinement / measurement.extent.num_pixels * 1e6
    return f"{measurement.refinement:.3g} s", f"{per_pixel:.3g}"
