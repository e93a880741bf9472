"""`page4d pretrain`: teach an encoder on one's own footage, without labels."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from page4d_cli import console, options
from page4d_cli.interrupts import noticed_stop
from page4d_cli.training_display import observed_training

if TYPE_CHECKING:
    from page4d.encoders.build import EncoderConfig
    from page4d.pretraining.config import PretrainConfig

LEARNING = "What is learned"
LENGTH = "How long"
RUNNING = "How it runs"


class MethodOption(StrEnum):
    """What teaches the encoder."""

    MAE = "mae"
    DINO = "dino"


def pretrain(
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder of the run.", rich_help_panel=options.OUTPUT)],
    scenes: Annotated[
        list[Path] | None, typer.Argument(metavar="SCENE", help="Folders of videos, as many as you like.")
    ] = None,
    method: Annotated[
        MethodOption | None,
        typer.Option(
            help="mae: paint hidden patches. dino: say of parts what an average of itself says of the whole. "
            "Default: mae.",
            rich_help_panel=LEARNING,
        ),
    ] = None,
    encoder: Annotated[
        str | None,
        typer.Option(
            metavar="PRESET|FILE",
            help="A ViT: vit-s16, vit-b16 ... or a JSON file; default: a small one for a CPU.",
            rich_help_panel=LEARNING,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Everything as JSON, as --dry-run prints it.", rich_help_panel=LEARNING),
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(
            min=8, metavar="PX", help="Side of the crops; default: the encoder's images.", rich_help_panel=LEARNING
        ),
    ] = None,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Frames a batch, in every process.", rich_help_panel=LEARNING)
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option(metavar="R", help="Step size at its height.", rich_help_panel=LEARNING)
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of weights, frames and crops.", rich_help_panel=LEARNING)
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Take so many steps.", rich_help_panel=LENGTH)
    ] = None,
    until_seconds: Annotated[
        float | None, typer.Option(metavar="S", help="Learn for so long.", rich_help_panel=LENGTH)
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Continue the run in the folder; one that is given more goes back to before its rate fell.",
            rich_help_panel=LENGTH,
        ),
    ] = False,
    device: Annotated[
        str, typer.Option(metavar="NAME", help="auto, cpu, cuda or cuda:N.", rich_help_panel=RUNNING)
    ] = "auto",
    precision: Annotated[
        str | None, typer.Option(metavar="NAME", help="auto, fp32 or bf16.", rich_help_panel=RUNNING)
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of the CPU.", rich_help_panel=RUNNING)] = None,
    allow_damaged: options.AllowDamaged = False,
    max_pixels: options.MaxPixels = 64.0,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Log for TensorBoard, too.", rich_help_panel=options.OUTPUT)
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the configuration and stop.", rich_help_panel=options.OUTPUT)
    ] = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Teach an image encoder on unlabelled footage, for train --encoder-weights.

    Leaves encoder.safetensors, curve.png, and a picture: reconstruction.png (mae), or attention.png (dino) with what
    the class token looks at. For several devices: torchrun --nproc-per-node N -m page4d_cli pretrain ...
    """
    import json

    import torch

    from page4d.errors import UsageError
    from page4d.pretraining.pretrain import PretrainRequest
    from page4d.pretraining.pretrain import pretrain as run_pretraining
    from page4d.training.engine.distributed import is_follower

    asked = (method, encoder, config, size, batch, learning_rate, seed)
    if resume and (scenes or any(value is not None for value in asked)):
        raise UsageError("a run that is resumed keeps what it learns", "leave the scenes and settings out")
    chosen = None
    if not resume:
        chosen = _configuration(method, config, encoder, size)
        chosen = _changed(chosen, scenes or [], batch, learning_rate, seed)
    if dry_run and chosen is not None:
        console.print_json(json.loads(chosen.to_json()))
        return
    request = PretrainRequest(
        out=out,
        config=chosen,
        resume=resume,
        steps=steps,
        seconds=until_seconds,
        precision=options.parse_precision(precision),
        device=device,
        tensorboard=tensorboard,
        allow_damaged=allow_damaged,
        max_megapixels=max_pixels,
    )
    if threads is not None:
        torch.set_num_threads(threads)
    with noticed_stop() as stop, observed_training(quiet or is_follower()) as observer:
        outcome = run_pretraining(request, observer, lambda: stop.number)
    if is_follower():
        return
    if as_json:
        console.print_json(
            {
                "out": str(out),
                "encoder": str(outcome.encoder),
                "steps": outcome.steps,
                "samples": outcome.samples,
                "seconds": outcome.seconds,
                "skipped_steps": outcome.skipped,
                "loss": outcome.loss,
            }
        )
    elif not quiet:
        console.print_text(f"learned from {outcome.samples:,} crops in {outcome.steps:,} steps: {outcome.encoder}")


def _configuration(
    method: MethodOption | None, path: Path | None, encoder: str | None, size: int | None
) -> "PretrainConfig":
    """Return a preset, or what a file says, with the encoder and the size of crops that were asked for."""
    from page4d.errors import UsageError
    from page4d.pretraining.config import PRESETS, Method, PretrainConfig, with_encoder, with_size

    if path is not None and method is not None:
        raise UsageError("--config and --method contradict each other", "the configuration names the method")
    if path is None:
        chosen = PRESETS[Method(method or MethodOption.MAE)]
    else:
        text = options.read_text(path, "give a configuration as --dry-run prints it")
        chosen = PretrainConfig.from_json(text)
    if encoder is not None:
        chosen = with_encoder(chosen, _encoder(encoder))
    return chosen if size is None else with_size(chosen, size)


def _changed(
    config: "PretrainConfig",
    scenes: list[Path],
    batch: int | None,
    learning_rate: float | None,
    seed: int | None,
) -> "PretrainConfig":
    """Return a configuration with what was asked for."""
    from dataclasses import replace

    rate = config.optimizer.learning_rate if learning_rate is None else learning_rate
    return replace(
        config,
        scenes=tuple(str(scene.resolve()) for scene in scenes) or config.scenes,
        batch=batch or config.batch,
        seed=config.seed if seed is None else seed,
        optimizer=replace(config.optimizer, learning_rate=rate),
    )


def _encoder(name: str) -> "EncoderConfig":
    """Return a preset, or what a JSON file says."""
    from page4d.encoders.build import encoder_from_json
    from page4d.encoders.presets import ENCODER_PRESETS
    from page4d.errors import UsageError

    if name.endswith(".json"):
        return encoder_from_json(options.read_text(Path(name), "give an encoder as JSON, or the name of a preset"))
    if name not in ENCODER_PRESETS:
        raise UsageError(f"no encoder is called '{name}'", f"choose from {', '.join(ENCODER_PRESETS)}")
    return ENCODER_PRESETS[name]
