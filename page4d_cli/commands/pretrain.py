"""`page4d pretrain`: pretrain an encoder on footage without labels."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import Field

from page4d.choices import PretrainMethod
from page4d.errors import UsageError, unknown_name
from page4d.io.atomic import check_folder
from page4d.options import AllowDamaged, MaxPixels, Option
from page4d_cli import console, options, training

if TYPE_CHECKING:
    from page4d.lab.pretraining.config import PretrainConfig
    from page4d.networks.encoders.build import EncoderConfig


@options.command
def pretrain(
    out: training.Out,
    scenes: Annotated[list[Path] | None, typer.Argument(metavar="SCENE", help="Folders of videos.")] = None,
    method: Annotated[
        PretrainMethod | None,
        Option("mae: masked autoencoder (MAE). dino: self-distillation (DINO). Default: mae.", training.TRAINING),
    ] = None,
    encoder: Annotated[
        str | None,
        Option(
            "ViT preset such as vit-s16 or vit-b16, or a JSON file; default: a small ViT for CPUs.",
            training.TRAINING,
            "PRESET|FILE",
        ),
    ] = None,
    config: Annotated[
        Path | None, Option("Configuration as JSON, as --dry-run prints it.", training.TRAINING, "FILE")
    ] = None,
    size: Annotated[
        int | None,
        Field(ge=8),
        Option(
            "Long side of the crops in pixels, which are NxN; default: the image size of the encoder.",
            training.TRAINING,
            "N",
        ),
    ] = None,
    batch: Annotated[int | None, Field(ge=1), Option("Frames per batch and process.", training.TRAINING)] = None,
    learning_rate: training.LearningRate = None,
    seed: training.Seed = None,
    steps: Annotated[int | None, Field(ge=1), Option("Number of steps.", training.LENGTH, "N")] = None,
    until_seconds: training.UntilSeconds = None,
    resume: training.Resume = False,
    device: training.Device = "auto",
    precision: training.Precision = None,
    threads: training.Threads = None,
    allow_damaged: AllowDamaged = False,
    max_pixels: MaxPixels = 64.0,
    dry_run: training.DryRun = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Pretrain an image encoder on unlabelled footage.

    For train --encoder-weights. Writes encoder.safetensors and metrics.jsonl. For several devices:
    torchrun --nproc-per-node N -m page4d_cli pretrain ...
    """
    from page4d.lab.pretraining.pretrain import PretrainRequest
    from page4d.lab.pretraining.pretrain import pretrain as run_pretraining
    from page4d.scene.discover import check_is_no_view

    settings = (method, encoder, config, size, batch, learning_rate, seed)
    if resume and (scenes or any(value is not None for value in settings)):
        raise UsageError("a run that is resumed keeps its configuration", "leave the scenes and settings out")
    chosen = None
    if not resume:
        chosen = _configuration(method, config, encoder, size)
        folders = tuple(str(scene.resolve()) for scene in scenes or ())
        given: dict[str, Any] = {"scenes": folders or None, "batch": batch, "seed": seed}
        if learning_rate is not None:
            given["optimizer"] = replace(chosen.optimizer, learning_rate=learning_rate)
        chosen = replace(chosen, **{name: value for name, value in given.items() if value is not None})
    if dry_run and chosen is not None:
        console.print_json(json.loads(chosen.to_json()))
        return
    check_folder(out)
    check_is_no_view(out, scenes or [])
    request = PretrainRequest(
        out=out,
        config=chosen,
        resume=resume,
        steps=steps,
        seconds=until_seconds,
        precision=precision,
        device=device,
        allow_damaged=allow_damaged,
        max_megapixels=max_pixels,
    )
    with training.running("pretrain", threads, quiet) as (observer, stop):
        outcome = run_pretraining(request, observer, stop)
    training.report(
        outcome.position,
        {"out": out, "encoder": outcome.encoder},
        "crop",
        "page4d train --out trained --encoder-weights",
        as_json=as_json,
        quiet=quiet,
        loss=outcome.loss,
    )


def _configuration(
    method: PretrainMethod | None, path: Path | None, encoder: str | None, size: int | None
) -> "PretrainConfig":
    """Return a preset, or the configuration in a file, with the chosen encoder and size of crops."""
    from page4d.lab.pretraining.config import PRESETS, PretrainConfig, with_encoder, with_size

    if path is not None and method is not None:
        raise UsageError("--config and --method contradict each other", "the configuration names the method")
    if path is None:
        chosen = PRESETS[method or PretrainMethod.MAE]
    else:
        text = options.read_text(path, "give a configuration as --dry-run prints it")
        chosen = PretrainConfig.from_json(text)
    if encoder is not None:
        chosen = with_encoder(chosen, _encoder(encoder))
    return chosen if size is None else with_size(chosen, size)


def _encoder(name: str) -> "EncoderConfig":
    """Return a preset, or the configuration in a JSON file."""
    from page4d.networks.encoders.build import ENCODER_PRESETS, encoder_from_json

    if name.endswith(".json"):
        return encoder_from_json(options.read_text(Path(name), "give an encoder as JSON, or the name of a preset"))
    if name not in ENCODER_PRESETS:
        raise unknown_name("encoder", name, ENCODER_PRESETS)
    return ENCODER_PRESETS[name]
