"""`page4d held-out`: evaluate a network and baselines on held-out synthetic scenes."""

from typing import TYPE_CHECKING, Annotated

import typer

from page4d.choices import Precision, SceneFamily
from page4d.errors import counted
from page4d_cli import console, options
from page4d_cli.progress import fetched_weights
from page4d_cli.tables import Column, print_table

if TYPE_CHECKING:
    from page4d.lab.training.validation import Metrics

_COLUMNS = {
    "abs_rel": "AbsRel",
    "delta": "d<1.25",
    "rotation_deg": "rota-\ntion",
    "direction_deg": "direc-\ntion",
    "rra_15": "RRA@15",
    "rta_15": "RTA@15",
    "focal": "focal",
    "mask_iou": "mask\nIoU",
    "ordering": "order-\ning",
}


def held_out(
    weights: Annotated[
        str | None,
        typer.Argument(
            metavar="WEIGHTS",
            help=f"{options.WEIGHTS_HELP} Default: the bundled network mv-demo.",
        ),
    ] = None,
    sha256: options.Sha256 = None,
    scenes: Annotated[int, typer.Option(min=1, max=10**6, help="Scenes per family.")] = 200,
    families: Annotated[
        str, typer.Option(metavar="NAMES", help=f"Scene families of {', '.join(SceneFamily)}; default: all.")
    ] = "",
    views: Annotated[int, typer.Option(min=1, max=64, help="Cameras per rig.")] = 4,
    times: Annotated[int, typer.Option(min=1, max=100_000, help="Instants per scene.")] = 2,
    size: Annotated[str, typer.Option(metavar="WxH", help="Size of the images in pixels.")] = "80x64",
    device: options.Device = "auto",
    precision: options.NetworkPrecision = Precision.AUTO,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Evaluate a network and baselines on held-out synthetic scenes.

    Depth is compared after one scale per scene; rotations and directions are medians in degrees over pairs of views.
    """
    from page4d.errors import UsageError
    from page4d.io.atomic import parse_pin
    from page4d.lab.training.validation import (
        METRICS,
        HeldOutScenes,
        baselines,
        evaluate_all,
        held_out_truths,
        network_predictors,
    )
    from page4d.weights.loading import choose_device, choose_precision, load_network

    names = [name.strip() for name in families.split(",")] if families else list(SceneFamily)
    unknown = [name for name in names if name not in list(SceneFamily)]
    if unknown:
        raise UsageError(f"no family is called '{unknown[0]}'", f"choose from {', '.join(SceneFamily)}")
    held_out_scenes = HeldOutScenes(
        scenes=scenes,
        times=times,
        views=views,
        image_size=options.parse_size(size),
        families=tuple(SceneFamily(name) for name in names),
    )
    target, pin = choose_device(device), parse_pin(weights, sha256)
    chosen = fetched_weights(weights, pin, console.Verbosity(quiet=quiet))
    loaded = load_network(chosen.path, target, sha256=chosen.sha256)
    predictors = network_predictors(loaded.network, choose_precision(precision, target))
    found: dict[str, dict[str, Metrics]] = {}
    for family in held_out_scenes.families:
        if not quiet:
            console.print_message(f"{family.value}: {counted(scenes, 'scene')}")
        truths = list(held_out_truths(held_out_scenes, family, target))
        found[family.value] = evaluate_all({**predictors, **baselines(held_out_scenes, family, target)}, truths)
    if as_json:
        console.print_json(
            {
                "weights": str(loaded.info.path),
                "sha256": loaded.info.sha256,
                "scenes": scenes,
                "views": views,
                "times": times,
                "size": list(reversed(held_out_scenes.image_size)),
                "definitions": METRICS,
                "figures": found,
            }
        )
    else:
        _print(found, scenes)


def _print(found: "dict[str, dict[str, Metrics]]", scenes: int) -> None:
    columns = [Column("network or baseline", wraps=True), *(Column(title, right=True) for title in _COLUMNS.values())]
    for family, rows in found.items():
        cells = []
        for row, metrics in rows.items():
            values = (metrics[name] for name in _COLUMNS)
            cells.append((row, *("-" if value is None else f"{value:.3g}" for value in values)))
        print_table(columns, cells, f"{family}: {counted(scenes, 'held-out scene')}")
