"""`page4d benchmark`: what a network takes on this device, beside what was foretold."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from page4d_cli import console, options
from page4d_cli.predictor import NetworkChoice, Precision, choose_network

if TYPE_CHECKING:
    from page4d.benchmark.grid import Measurement


def benchmark(
    weights: Annotated[Path | None, typer.Option(metavar="FILE", help="Network of a weights file.")] = None,
    preset: Annotated[
        str, typer.Option(help="Network by name, with random weights, where no file is given.")
    ] = "mv-demo",
    times: Annotated[str, typer.Option(metavar="T,T,...", help="Numbers of instants.")] = "1,2,4",
    views: Annotated[str, typer.Option(metavar="V,V,...", help="Numbers of views.")] = "2,4",
    sizes: Annotated[
        str | None, typer.Option(metavar="WxH,...", help="Image sizes in pixels; default: half the network's own.")
    ] = None,
    device: Annotated[str, typer.Option(metavar="auto|cpu|cuda|cuda:N", help="Where to compute.")] = "auto",
    precision: Annotated[
        Precision, typer.Option(help="auto: bf16 on a GPU that has it, else fp32.")
    ] = Precision.AUTO,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw memory and time as a PNG.")] = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Measure time and memory of a network over a grid of instants, views and sizes, beside what was predicted.

    Memory is what a forward pass takes beside the weights: on a GPU by its allocator, elsewhere all its tensors.
    """
    from functools import partial

    import torch

    from page4d.benchmark.grid import draw_grid, measure_grid
    from page4d.export.maps import write_png
    from page4d.inference.cost import Extent
    from page4d.inference.probe import network_cost

    grid = [(time, view) for view in _numbers(views, "--views") for time in _numbers(times, "--times")]
    choice = NetworkChoice(weights, weights is None, preset, device, precision, seed=0)
    predictor, network = choose_network(choice)
    extents = [
        Extent(times=time, views=view, size=size)
        for size in _sizes(sizes, predictor.default_long_side or 0, predictor.multiple)
        for time, view in grid
    ]
    verbosity = console.Verbosity(quiet=quiet)
    cost = network_cost(predictor, network.sha256, tell=partial(console.print_notice, verbosity=verbosity))
    found = []
    for measurement in measure_grid(predictor, cost, extents):
        found.append(measurement)
        if not quiet:
            console.error_console().print(f"{len(found)}/{len(extents)}", markup=False)
    name = network.weights or network.preset or network.name
    if plot is not None:
        write_png(plot, draw_grid(found, f"{name} on {predictor.device}"))
    if as_json:
        about = {"network": name, "device": str(predictor.device), "torch": torch.__version__}
        console.print_json({**about, "measurements": [_document(measurement) for measurement in found]})
    else:
        _print(found, f"{name} on {predictor.device}")


def _numbers(text: str, option: str) -> list[int]:
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise typer.BadParameter(f"'{text}' is no list of numbers from 1 on", param_hint=f"'{option}'")
    return sorted({int(part) for part in parts})


def _sizes(text: str | None, own: int, multiple: int) -> list[tuple[int, int]]:
    """Read sizes; by default a square of half the side that a network was made for."""
    from page4d.errors import UsageError

    side = max(own // 2 // multiple, 1) * multiple
    found = [(side, side)] if text is None else [options.parse_size(part.strip()) for part in text.split(",")]
    for height, width in found:
        if height % multiple or width % multiple:
            raise UsageError(
                f"images of {width}x{height} px do not divide into patches of {multiple} px",
                f"give multiples of {multiple}",
            )
    return found


def _document(measurement: "Measurement") -> dict[str, Any]:
    extent, actual = measurement.extent, measurement.actual
    return {
        "times": extent.times,
        "views": extent.views,
        "size": [extent.size[1], extent.size[0]],
        "predicted_bytes": measurement.predicted.num_bytes,
        "predicted_seconds": measurement.predicted.seconds,
        "bytes": None if actual is None else actual.num_bytes,
        "seconds": None if actual is None else actual.seconds,
        "images_per_second": measurement.images_per_second,
    }


def _print(found: "list[Measurement]", title: str) -> None:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, title=console.cell(title), title_justify="left")
    for heading in ("size", "views", "instants", "seconds", "predicted", "images/s", "memory", "predicted"):
        table.add_column(heading, justify="right")
    for measurement in found:
        extent, actual, predicted = measurement.extent, measurement.actual, measurement.predicted
        table.add_row(
            f"{extent.size[1]}x{extent.size[0]}",
            str(extent.views),
            str(extent.times),
            "-" if actual is None else f"{actual.seconds:.3g}",
            f"{predicted.seconds:.3g}",
            "-" if actual is None else f"{measurement.images_per_second:.3g}",
            "out of memory" if actual is None else console.human_size(actual.num_bytes),
            console.human_size(predicted.num_bytes),
        )
    console.print_table(table)
