"""`page4d train`: train a network on synthetic captures, on folders with truth, or on both."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from page4d_cli import console, options
from page4d_cli.interrupts import noticed_stop
from page4d_cli.training_display import observed_training

if TYPE_CHECKING:
    from page4d.models.config import NetworkConfig
    from page4d.training.engine.step_plan import Budget
    from page4d.training.supervised.config import TrainConfig

LEARNING = "What is learned"
LENGTH = "How long"
RUNNING = "How it runs"


def train(
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder of the run.", rich_help_panel=options.OUTPUT)],
    preset: Annotated[
        str, typer.Option(metavar="NAME", help="demo, demo-gpu or tiny.", rich_help_panel=LEARNING)
    ] = "demo",
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Configuration as JSON, instead of a preset.", rich_help_panel=LEARNING),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="NAME|FILE", help="Preset of the network, or a JSON file.", rich_help_panel=LEARNING),
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Start from these weights.", rich_help_panel=LEARNING)
    ] = None,
    encoder_weights: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Start the encoder from this file, as pretrain and convert-weights write it.",
            rich_help_panel=LEARNING,
        ),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SOURCE", help="'synthetic', or a folder with truth; repeat to mix.", rich_help_panel=LEARNING
        ),
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option(metavar="R", help="Step size at its height.", rich_help_panel=LEARNING)
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of weights, samples and choices.", rich_help_panel=LEARNING)
    ] = None,
    until_seconds: Annotated[
        float | None, typer.Option(metavar="S", help="Train for so long.", rich_help_panel=LENGTH)
    ] = None,
    until_samples: Annotated[
        int | None, typer.Option(metavar="N", help="Train on so many samples.", rich_help_panel=LENGTH)
    ] = None,
    decay_fraction: Annotated[
        float | None,
        typer.Option(
            metavar="F", help="Part of the run, at its end, over which the rate falls.", rich_help_panel=LENGTH
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Continue the run in the folder; one that is given more goes back to before its rate fell.",
            rich_help_panel=LENGTH,
        ),
    ] = False,
    branch: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Start where the run in another folder stands.", rich_help_panel=LENGTH),
    ] = None,
    decay_only: Annotated[
        bool,
        typer.Option("--decay-only", help="With --branch: let the rate fall from the start.", rich_help_panel=LENGTH),
    ] = False,
    device: Annotated[
        str, typer.Option(metavar="NAME", help="auto, cpu, cuda or cuda:N.", rich_help_panel=RUNNING)
    ] = "auto",
    precision: Annotated[
        str | None, typer.Option(metavar="NAME", help="auto, fp32 or bf16.", rich_help_panel=RUNNING)
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of the CPU.", rich_help_panel=RUNNING)] = None,
    workers: Annotated[
        int | None, typer.Option(min=0, help="Processes that render ahead.", rich_help_panel=RUNNING)
    ] = None,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Log for TensorBoard, too.", rich_help_panel=options.OUTPUT)
    ] = False,
    fp32_weights: Annotated[
        bool, typer.Option("--fp32-weights", help="Write weights as fp32, not fp16.", rich_help_panel=options.OUTPUT)
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the configuration and stop.", rich_help_panel=options.OUTPUT)
    ] = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Train a network on exact synthetic captures, on folders with truth, or on both.

    For several devices: torchrun --nproc-per-node N -m page4d_cli train ...
    """
    import json

    import torch

    from page4d.training.engine.distributed import is_follower
    from page4d.training.supervised.train import TrainRequest
    from page4d.training.supervised.train import train as run_training

    asked = {"model": None if model is None else _network(model), "seed": seed, "decay_fraction": decay_fraction}
    continues = resume or branch is not None
    chosen = _configuration(preset, config, asked, learning_rate, data, continues=continues)
    if dry_run and chosen is not None:
        console.print_json(json.loads(chosen.to_json()))
        return
    request = TrainRequest(
        out=out,
        config=chosen,
        weights=weights,
        encoder_weights=encoder_weights,
        resume=resume,
        branch=branch,
        decay_only=decay_only,
        budget=_budget(until_seconds, until_samples),
        workers=workers,
        precision=options.parse_precision(precision),
        device=device,
        tensorboard=tensorboard,
        half=not fp32_weights,
    )
    if threads is not None:
        torch.set_num_threads(threads)
    with noticed_stop() as stop, observed_training(quiet or is_follower()) as observer:
        outcome = run_training(request, observer, lambda: stop.number)
    if is_follower():
        return
    if as_json:
        console.print_json(
            {
                "out": str(out),
                "weights": str(outcome.weights),
                "steps": outcome.steps,
                "samples": outcome.samples,
                "seconds": outcome.seconds,
                "skipped_steps": outcome.skipped,
            }
        )
    elif not quiet:
        console.print_text(f"trained on {outcome.samples:,} samples in {outcome.steps:,} steps: {outcome.weights}")


def _network(model: str) -> "str | NetworkConfig":
    """Return the name of a preset, or what a JSON file says."""
    from page4d.models.config import NetworkConfig

    if not model.endswith(".json"):
        return model
    return NetworkConfig.from_json(options.read_text(Path(model), "give a network as JSON, or the name of a preset"))


def _configuration(
    preset: str,
    path: Path | None,
    asked: dict[str, Any],
    learning_rate: float | None,
    data: list[str] | None,
    *,
    continues: bool,
) -> "TrainConfig | None":
    """Return what to train with; None to go on with what a run has."""
    from dataclasses import replace

    from page4d.errors import UsageError
    from page4d.training.supervised.config import SourceConfig
    from page4d.training.supervised.presets import PRESETS

    changes = {name: value for name, value in asked.items() if value is not None}
    if continues:
        if changes or learning_rate is not None or data:
            raise UsageError(
                "a run that is continued keeps what it learns",
                "edit a copy of its config.json and pass it with --config",
            )
        return None if path is None else _read(path)
    if preset not in PRESETS:
        raise UsageError(f"no training run is called '{preset}'", f"choose from {', '.join(PRESETS)}")
    config = PRESETS[preset] if path is None else _read(path)
    if learning_rate is not None:
        changes["optimizer"] = replace(config.optimizer, learning_rate=learning_rate)
    if data:
        changes["sources"] = tuple(SourceConfig(path=source) for source in data)
    return replace(config, **changes)


def _read(path: Path) -> "TrainConfig":
    from page4d.training.supervised.config import TrainConfig

    return TrainConfig.from_json(options.read_text(path, "give a configuration as --dry-run prints it"))


def _budget(seconds: float | None, samples: int | None) -> "Budget | None":
    from page4d.training.engine.step_plan import Budget

    return None if seconds is None and samples is None else Budget(seconds=seconds, samples=samples)
