"""The encoder that a run hands out, with everything that made it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import page4d
from page4d.pretraining.pretraining_state import PretrainState
from page4d.training.supervised.release import summary
from page4d.weights.store import save_tensors
from page4d.weights.stream import TensorSpec

LICENCE = "that of the footage's owner: these weights were learned from it"


def release_encoder(state: PretrainState, path: Path, metrics: Sequence[Mapping[str, Any]]) -> None:
    """Write the encoder in float32; folders of the user are named, not placed.

    Raises:
        OutputError: if the file cannot be written.
    """
    at, config = state.position, state.config
    names = tuple(Path(scene).name for scene in config.scenes)
    frozen = replace(config, scenes=names, decay_start_sample=at.decay_start)
    tensors = state.learner.encoder.state_dict()
    specs = {name: TensorSpec(shape=tuple(value.shape), dtype=value.dtype) for name, value in tensors.items()}
    metadata = {
        "licence": LICENCE,
        "description": f"a ViT pretrained by {config.method.kind} on {at.samples} crops of {', '.join(names)}",
        "made_by": f"page4d {page4d.__version__}, torch {torch.__version__}",
        "training": frozen.to_json(),
        "samples": str(at.samples),
        "steps": str(at.step),
        "loss": json.dumps(summary(metrics)["loss"]),
    }
    save_tensors(path, config.encoder, metadata, specs, lambda name: tensors[name].cpu())
