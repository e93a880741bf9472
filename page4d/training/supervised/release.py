"""The weights that a run hands out, with everything that made them."""

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import page4d
from page4d.models.ood import OODLimits
from page4d.training.engine.step_plan import Position
from page4d.training.supervised.config import TrainConfig
from page4d.training.supervised.training_state import RunState
from page4d.weights.store import save_network

LICENCE = "Apache-2.0"
"""Of weights that were trained from nothing."""

_CURVE_POINTS = 24


def release_weights(
    state: RunState,
    path: Path,
    metrics: Sequence[Mapping[str, Any]],
    *,
    domain: OODLimits | None,
    processes: int,
    half: bool,
) -> None:
    """Write the averaged weights; `half` stores them as fp16. `metrics` are the lines of the run's file.

    `domain`, if known, lets `reconstruct` say when it is used elsewhere.

    Raises:
        OutputError: if the file cannot be written.
    """
    network = copy.deepcopy(state.average.network)
    at = state.position
    metadata = {
        "licence": state.history.get("licence", LICENCE),
        "description": f"{state.config.model_name} trained on {at.samples} samples",
        "made_by": f"page4d {page4d.__version__}, torch {torch.__version__}",
        "command": _command(at, processes),
        "training": replayed(state.config, at).to_json(),
        "seeds": f"run {state.config.seed}; scenes of training have even seeds, held-out scenes odd ones",
        "samples": str(at.samples),
        "steps": str(at.step),
        "curve": json.dumps(summary(metrics), sort_keys=True),
        **({} if domain is None else {"domain": domain.to_json()}),
        **{f"history_{name}": text for name, text in state.history.items()},
    }
    save_network(network.half() if half else network, path, metadata)


def _command(position: Position, processes: int) -> str:
    """Return the line that makes the weights again from the configuration under "training"."""
    start = "page4d" if processes == 1 else f"torchrun --nproc-per-node {processes} -m page4d_cli"
    samples = position.samples - position.first_sample
    return f"{start} train --config TRAINING.json --until-samples {samples} --out RUN"


def replayed(config: TrainConfig, position: Position) -> TrainConfig:
    """Return the configuration with everything that a clock decided replaced by the samples at which it happened."""
    starts = position.stage_starts
    stages = [replace(stage, start_sample=start) for stage, start in zip(config.stages, starts, strict=False)]
    return replace(config, stages=tuple(stages), decay_start_sample=position.decay_start)


def summary(metrics: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a few points of the loss, and every held-out figure."""
    steps = [line for line in metrics if line["kind"] == "step"]
    chosen = steps[:: max(1, len(steps) // _CURVE_POINTS)]
    return {
        "loss": [[line["samples"], line["losses"]["total"]] for line in chosen],
        "held_out": [[line["samples"], line["figures"]] for line in metrics if line["kind"] == "evaluation"],
        "baselines": [line["figures"] for line in metrics if line["kind"] == "baselines"],
    }
