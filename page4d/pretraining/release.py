"""Released encoder of a run, with the metadata to reproduce it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import page4d
from page4d.pretraining.pretraining_state import PretrainState
from page4d.training.engine.logs import summarize_metrics
from page4d.weights.store import save_tensors
from page4d.weights.stream import TensorSpec

LICENCE = "that of the footage's owner: these weights were learned from it"


def release_encoder(state: PretrainState, path: Path, metrics: Sequence[Mapping[str, Any]]) -> None:
    """Write the encoder in float32; the metadata name folders of the user without their paths.

    Raises:
        OutputError: if the file cannot be written.
    """
    position, config = state.position, state.config
    names = tuple(Path(scene).name for scene in config.scenes)
    frozen = replace(config, scenes=names, decay_start_sample=position.decay_start)
    tensors = state.task.encoder.state_dict()
    specs = {name: TensorSpec(shape=tuple(value.shape), dtype=value.dtype) for name, value in tensors.items()}
    metadata = {
        "licence": LICENCE,
        "description": f"a ViT pretrained by {config.method.kind} on {position.samples} crops of {', '.join(names)}",
        "made_by": f"page4d {page4d.__version__}, torch {torch.__version__}",
        "training": frozen.to_json(),
        "samples": str(position.samples),
        "steps": str(position.step),
        "loss": json.dumps(summarize_metrics(metrics)["loss"]),
    }
    save_tensors(path, config.encoder, metadata, specs, lambda name: tensors[name].cpu())
