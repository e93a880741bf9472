"""`page4d train`: train a network on synthetic captures and on captures with ground truth."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from page4d.errors import UsageError, unknown_name
from page4d.io.atomic import check_folder, parse_pin
from page4d.options import NETWORK_PRESETS, OUTPUT, WEIGHTS_HELP, WEIGHTS_METAVAR, Option
from page4d_cli import console, options, training
from page4d_cli.progress import fetched_weights

if TYPE_CHECKING:
    from page4d.lab.training.config import TrainConfig
    from page4d.networks.config import NetworkConfig


@options.command
def train(
    out: training.Out,
    preset: Annotated[
        str | None, Option("Training preset: demo, motion or tiny. Default: demo.", training.TRAINING, "NAME")
    ] = None,
    config: Annotated[
        Path | None, Option("Configuration as JSON, instead of a preset.", training.TRAINING, "FILE")
    ] = None,
    model: Annotated[
        str | None,
        Option(
            f"Network: {NETWORK_PRESETS}, or a JSON file. Default: that of the training preset.",
            training.TRAINING,
            "NAME|FILE",
        ),
    ] = None,
    weights: Annotated[
        str | None,
        Option(f"Initial weights; default: random ones. {WEIGHTS_HELP}", training.TRAINING, WEIGHTS_METAVAR),
    ] = None,
    sha256: training.Sha256 = None,
    encoder_weights: Annotated[
        Path | None,
        Option("Initial weights of the encoder, from pretrain or convert-weights.", training.TRAINING, "FILE"),
    ] = None,
    data: Annotated[
        list[str] | None,
        Option("'synthetic', or a folder with ground truth; repeat to mix.", training.TRAINING, "SOURCE"),
    ] = None,
    learning_rate: training.LearningRate = None,
    seed: training.Seed = None,
    until_seconds: training.UntilSeconds = None,
    until_samples: Annotated[int | None, Option("Number of training samples.", training.LENGTH, "N")] = None,
    decay_fraction: Annotated[
        float | None, Option("Fraction of the run, at its end, with learning rate decay.", training.LENGTH, "F")
    ] = None,
    resume: training.Resume = False,
    device: training.Device = "auto",
    precision: training.Precision = None,
    threads: training.Threads = None,
    workers: Annotated[
        int | None, Field(ge=0, le=1024), Option("Processes that render batches ahead.", training.RUNNING)
    ] = None,
    fp32_weights: Annotated[bool, Option("Write weights as fp32, not fp16.", OUTPUT)] = False,
    dry_run: training.DryRun = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Train a network on captures with ground truth.

    For several devices: torchrun --nproc-per-node N -m page4d_cli train ...
    """
    from page4d.lab.training.schedule import Budget
    from page4d.lab.training.train import TrainRequest
    from page4d.lab.training.train import train as run_training

    overrides = {"model": None if model is None else _network(model), "seed": seed, "decay_fraction": decay_fraction}
    has_end = not (until_seconds is None and until_samples is None)
    chosen = _configuration(preset, config, overrides, learning_rate, data, resume=resume)
    if dry_run and chosen is not None:
        console.print_json(json.loads(chosen.to_json()))
        return
    check_folder(out)
    if weights is not None and not resume:
        fetched_weights(weights, parse_pin(weights, sha256), console.Verbosity(quiet=quiet))
    request = TrainRequest(
        out=out,
        config=chosen,
        weights=weights,
        sha256=sha256,
        encoder_weights=encoder_weights,
        resume=resume,
        budget=Budget(seconds=until_seconds, samples=until_samples) if has_end else None,
        workers=workers,
        precision=precision,
        device=device,
        half=not fp32_weights,
    )
    with training.running("train", threads, quiet) as (observer, stop):
        outcome = run_training(request, observer, stop)
    training.report(
        outcome.position,
        {"out": out, "weights": outcome.weights},
        "sample",
        "page4d reconstruct rig --out result --weights",
        as_json=as_json,
        quiet=quiet,
    )


def _network(model: str) -> "str | NetworkConfig":
    """Return the name of a preset, or the configuration in a JSON file."""
    if not model.endswith(".json"):
        return model
    return options.read_network(Path(model), "give a network as JSON, or the name of a preset")


def _configuration(
    preset: str | None,
    path: Path | None,
    overrides: dict[str, Any],
    learning_rate: float | None,
    data: list[str] | None,
    *,
    resume: bool,
) -> "TrainConfig | None":
    """Return the configuration; None to continue a run with its own."""
    from page4d.lab.training.config import TRAINING_PRESETS, SourceConfig

    changes = {name: value for name, value in overrides.items() if value is not None}
    if resume:
        if changes or preset is not None or learning_rate is not None or data:
            raise UsageError(
                "a run that is continued keeps its configuration",
                "leave the settings out, or pass an edited copy of its config.json with --config",
            )
        return None if path is None else _read(path)
    if preset is not None and path is not None:
        raise UsageError("--preset and --config contradict each other", "leave out one of them")
    if preset is not None and preset not in TRAINING_PRESETS:
        raise unknown_name("training preset", preset, TRAINING_PRESETS)
    config = TRAINING_PRESETS[preset or "demo"] if path is None else _read(path)
    if learning_rate is not None:
        changes["optimizer"] = replace(config.optimizer, learning_rate=learning_rate)
    if data:
        changes["sources"] = tuple(SourceConfig(path=source) for source in data)
    return replace(config, **changes)


def _read(path: Path) -> "TrainConfig":
    from page4d.lab.training.config import TrainConfig

    return TrainConfig.from_json(options.read_text(path, "give a configuration as --dry-run prints it"))
