"""`page4d held-out`: a network on synthetic scenes that no training sees, beside what one can say without looking."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from page4d_cli import console, options

if TYPE_CHECKING:
    from page4d.training.validation.validation_metrics import Figures

_COLUMNS = {
    "abs_rel": "AbsRel",
    "delta": "d<1.25",
    "rotation_deg": "rotation",
    "direction_deg": "direction",
    "rra_15": "RRA@15",
    "rta_15": "RTA@15",
    "focal": "focal",
    "mask_iou": "mask IoU",
    "ordering": "ordering",
}


def held_out(
    weights: Annotated[
        Path | None, typer.Argument(metavar="[WEIGHTS]", help="File of the network; else the one of page4d.")
    ] = None,
    scenes: Annotated[int, typer.Option(min=1, help="Scenes a family.")] = 200,
    families: Annotated[str, typer.Option(metavar="NAMES", help="Families of rigs.")] = "arc,ring,handheld,single",
    views: Annotated[int, typer.Option(min=1, help="Cameras of a rig.")] = 4,
    times: Annotated[int, typer.Option(min=1, help="Instants of a scene.")] = 2,
    size: Annotated[str, typer.Option(metavar="WxH", help="Size of the images in pixels.")] = "80x64",
    device: Annotated[str, typer.Option(metavar="NAME", help="auto, cpu, cuda or cuda:N.")] = "auto",
    precision: Annotated[str, typer.Option(metavar="NAME", help="auto, fp32, bf16 or fp16.")] = "auto",
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Measure a network on held-out synthetic scenes, with baselines beside it.

    Depth is compared after one scale a scene; rotations and directions are medians in degrees over pairs of views.
    """
    from page4d.errors import UsageError
    from page4d.synthetic.sampler import SceneFamily
    from page4d.training.validation.validation import (
        HeldOutRequest,
        baselines,
        held_out_truths,
        judge,
        network_guessers,
    )
    from page4d.training.validation.validation_metrics import FIGURES
    from page4d.weights.bundled import bundled_weights
    from page4d.weights.loading import load_network
    from page4d.weights.placement import choose_device, choose_precision

    names = [name.strip() for name in families.split(",")]
    unknown = [name for name in names if name not in list(SceneFamily)]
    if unknown:
        raise UsageError(f"no family is called '{unknown[0]}'", f"choose from {', '.join(SceneFamily)}")
    request = HeldOutRequest(
        scenes=scenes,
        times=times,
        views=views,
        image_size=options.parse_size(size),
        families=tuple(SceneFamily(name) for name in names),
    )
    target = choose_device(device)
    loaded = load_network(weights or bundled_weights(), target)
    network = network_guessers(loaded.network, choose_precision(precision, target))
    found: dict[str, dict[str, Figures]] = {}
    for family in request.families:
        if not quiet:
            console.error_console().print(f"{family.value}: {scenes} scenes", markup=False)
        truths = list(held_out_truths(request, family, target))
        found[family.value] = judge({**network, **baselines(request, family, target)}, truths)
    if as_json:
        console.print_json(
            {
                "weights": str(loaded.info.path),
                "sha256": loaded.info.sha256,
                "scenes": scenes,
                "views": views,
                "times": times,
                "size": list(reversed(request.image_size)),
                "definitions": FIGURES,
                "figures": found,
            }
        )
    else:
        _print(found, scenes)


def _print(found: "dict[str, dict[str, Figures]]", scenes: int) -> None:
    from rich import box
    from rich.table import Table

    for family, rows in found.items():
        table = Table(box=box.SIMPLE_HEAD, title=f"{family}: {scenes} held-out scenes", title_justify="left")
        table.add_column("")
        for title in _COLUMNS.values():
            table.add_column(title, justify="right")
        for row, figures in rows.items():
            values = (figures[name] for name in _COLUMNS)
            table.add_row(row, *("-" if value is None else f"{value:.3g}" for value in values))
        console.print_table(table)
