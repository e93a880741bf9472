"""Released weights of a run, with the metadata to reproduce them."""

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import page4d
from page4d.models.ood import OODLimits
from page4d.training.engine.logs import summarize_metrics
from page4d.training.engine.step_plan import Position
from page4d.training.supervised.config import TrainConfig
from page4d.training.supervised.training_state import TrainingState
from page4d.weights.store import save_network

LICENCE = "Apache-2.0"
"""Licence of weights that were trained from random ones."""


def release_weights(
    state: TrainingState,
    path: Path,
    metrics: Sequence[Mapping[str, Any]],
    *,
    limits: OODLimits | None,
    processes: int,
    half: bool,
) -> None:
    """Write the EMA weights; `half` stores them as fp16. `metrics` are the lines of the run's metrics file.

    With `limits`, `reconstruct` warns of out-of-distribution footage.

    Raises:
        OutputError: if the file cannot be written.
    """
    network = copy.deepcopy(state.average.network)
    position = state.position
    metadata = {
        "licence": state.history.get("licence", LICENCE),
        "description": f"{state.config.model_name} trained on {position.samples} samples",
        "made_by": f"page4d {page4d.__version__}, torch {torch.__version__}",
        "command": _command(position, processes),
        "training": _replayed(state.config, position).to_json(),
        "seeds": f"run {state.config.seed}; scenes of training have even seeds, held-out scenes odd ones",
        "samples": str(position.samples),
        "steps": str(position.step),
        "curve": json.dumps(summarize_metrics(metrics), sort_keys=True),
        **({} if limits is None else {"domain": limits.to_json()}),
        **{f"history_{name}": text for name, text in state.history.items()},
    }
    save_network(network.half() if half else network, path, metadata)


def _command(position: Position, processes: int) -> str:
    """Return the command that reproduces the weights from the configuration under "training"."""
    start = "page4d" if processes == 1 else f"torchrun --nproc-per-node {processes} -m page4d_cli"
    samples = position.samples - position.first_sample
    return f"{start} train --config TRAINING.json --until-samples {samples} --out RUN"


def _replayed(config: TrainConfig, position: Position) -> TrainConfig:
    """Return the configuration with the starts of stages and decay in samples, as they happened."""
    starts = position.stage_starts
    stages = [replace(stage, start_sample=start) for stage, start in zip(config.stages, starts, strict=False)]
    return replace(config, stages=tuple(stages), decay_start_sample=position.decay_start)
