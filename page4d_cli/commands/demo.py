"""`page4d demo`: reconstruct a sample that is installed with page4d, and evaluate it where it has a ground truth."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

import page4d
from page4d.choices import Sample
from page4d.options import OUTPUT, NetworkOptions, Option, PointOptions
from page4d_cli import console, options
from page4d_cli.commands.evaluate import evaluate
from page4d_cli.commands.reconstruct import reconstruct

CALIBRATIONS = {Sample.GYM: "Calib.qca.txt", Sample.OFFICE: "camera_array.toml"}
"""Calibrations of the samples of real footage."""

_MIN_CONFIDENCE = 0.25
"""Of points of real footage, for which the bundled network was not trained."""


def sample_folder(sample: Sample) -> Path:
    """Return the folder of a sample: in the package if a wheel was installed, else next to it."""
    package = Path(page4d.__file__).parent
    installed = package / "samples" / sample
    return installed if installed.is_dir() else package.parent / "samples" / sample


@options.command
def demo(
    sample: Annotated[
        Sample,
        typer.Argument(
            metavar="gym|office|room",
            help="gym, office: four calibrated cameras around a man. room: synthetic, with ground truth.",
        ),
    ] = Sample.GYM,
    *,
    network: Annotated[NetworkOptions, options.Without(("sha256", "untrained", "preset", "precision"))],
    out: Annotated[Path, Option("Output folder.", metavar="FOLDER", also="-o")] = Path("demo_out"),
    overwrite: Annotated[bool, Option("Replace an existing result.", OUTPUT)] = False,
    resume: Annotated[bool, Option("Continue an interrupted run.", OUTPUT)] = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Reconstruct a sample that is installed with page4d."""
    folder = sample_folder(sample)
    is_real = sample in CALIBRATIONS
    calibration = folder / CALIBRATIONS[sample] if is_real else None
    min_confidence = _MIN_CONFIDENCE if is_real else PointOptions.min_confidence
    if not quiet:
        known = ("--calibration", calibration, "--min-confidence", min_confidence) if is_real else ()
        chosen = ("--weights", network.weights) if network.weights else ()
        words = ("page4d", "reconstruct", folder, *known, "--out", out, *chosen)
        console.print_message("the command of this demo, whose options are named below:")
        console.print_message(shlex.join(map(str, words)))
    reconstruct(
        scenes=[folder],
        out=out,
        scene__calibration=calibration,
        settings__points__min_confidence=min_confidence,
        network__weights=network.weights,
        network__device=network.device,
        overwrite=overwrite,
        resume=resume,
        quiet=quiet,
        verbose=verbose,
    )
    if (folder / "truth").is_dir():
        if not quiet:
            console.print_text("")
        evaluate(out=out, truth=folder, quiet=quiet)
