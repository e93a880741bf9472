"""Evaluate a network and baselines on held-out synthetic scenes: the figures of docs/training_report.md.

    python tools/held_out.py [WEIGHTS] [--scenes 200] [--families arc,ring] [--size 128x96] [--json]

WEIGHTS is a file or a name of `page4d weights list`; default: the bundled network. Depth is compared after one scale
per scene; rotations and directions are medians in degrees over pairs of views.
"""

import argparse
import json
from collections.abc import Sequence

from page4d.choices import Precision, SceneFamily
from page4d.errors import counted
from page4d.io.atomic import parse_pin
from page4d.lab.training.validation import (
    HeldOutScenes,
    Metrics,
    baselines,
    evaluate_all,
    held_out_truths,
    network_predictors,
)
from page4d.weights.loading import choose_device, choose_precision, load
from page4d_cli import console
from page4d_cli.options import parse_size
from page4d_cli.progress import fetched_weights
from page4d_cli.tables import Column, print_table

COLUMNS = {
    "abs_rel": ("AbsRel", "depth: mean of |p - g| / g after one scale per scene"),
    "delta": ("d<1.25", "depth: fraction of pixels with max(p / g, g / p) < 1.25"),
    "rotation_deg": ("rota-\ntion", "cameras: median error of the relative rotation of two views"),
    "direction_deg": (
        "direc-\ntion",
        "cameras: median angle between the directions of the relative translations, up to 180",
    ),
    "rra_15": ("RRA@15", "cameras: fraction of pairs with a rotation error below 15 degrees"),
    "rta_15": ("RTA@15", "cameras: fraction of pairs with a direction error below 15 degrees"),
    "focal": ("focal", "cameras: mean relative error of the focal lengths"),
    "mask_iou": ("mask\nIoU", "motion: intersection over union, mean over scenes with moving pixels"),
    "ordering": ("order-\ning", "confidence: 1 orders the depth errors perfectly, 0 not at all"),
}
"""Titles of columns and definitions by the names in files."""


def show(found: dict[str, dict[str, Metrics]], scenes: int) -> None:
    columns = [
        Column("network or baseline", wraps=True),
        *(Column(title, right=True) for title, _ in COLUMNS.values()),
    ]
    for family, rows in found.items():
        cells = []
        for row, metrics in rows.items():
            values = (metrics[name] for name in COLUMNS)
            cells.append((row, *("-" if value is None else f"{value:.3g}" for value in values)))
        print_table(columns, cells, f"{family}: {counted(scenes, 'held-out scene')}")


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", nargs="?")
    parser.add_argument("--sha256", help="refuse weights whose SHA-256 is another one")
    parser.add_argument("--scenes", type=int, default=200, help="scenes per family")
    parser.add_argument("--families", default=",".join(SceneFamily), help="scene families, separated by commas")
    parser.add_argument("--views", type=int, default=4, help="cameras per rig")
    parser.add_argument("--times", type=int, default=2, help="instants per scene")
    parser.add_argument("--size", default="80x64", help="size of the images in pixels, WxH")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", choices=list(Precision), default=Precision.AUTO)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    given = parser.parse_args(words)
    scenes = HeldOutScenes(
        scenes=given.scenes,
        times=given.times,
        views=given.views,
        image_size=parse_size(given.size),
        families=tuple(given.families.split(",")),
    )
    device = choose_device(given.device)
    chosen = fetched_weights(given.weights, parse_pin(given.weights, given.sha256), console.Verbosity())
    network = load(chosen.path, device, "fp32", chosen.sha256)
    predictors = network_predictors(network, choose_precision(Precision(given.precision), device))
    found: dict[str, dict[str, Metrics]] = {}
    for family in scenes.families:
        console.print_message(f"{family.value}: {counted(scenes.scenes, 'scene')}")
        truths = list(held_out_truths(scenes, family, device))
        found[family.value] = evaluate_all({**predictors, **baselines(scenes, family, device)}, truths)
    if given.json:
        about = {"weights": str(network.info.path), "sha256": network.info.sha256, "size": scenes.image_size[::-1]}
        counts = {"scenes": scenes.scenes, "views": scenes.views, "times": scenes.times}
        definitions = {name: definition for name, (_, definition) in COLUMNS.items()}
        print(json.dumps({**about, **counts, "definitions": definitions, "figures": found}, indent=2))
    else:
        show(found, scenes.scenes)


if __name__ == "__main__":
    main()
