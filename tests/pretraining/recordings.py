"""Small recordings as image folders, and minimal pretraining runs."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch

from page4d.lab.pretraining.config import PretrainConfig
from page4d.lab.pretraining.data import CropConfig
from page4d.lab.pretraining.dino import DINOConfig, ProjectorConfig
from page4d.lab.pretraining.mae import MAEConfig
from page4d.lab.pretraining.pretrain import PretrainCheckpoint, PretrainOutcome, PretrainRequest, pretrain
from page4d.lab.training.checkpoint import RunFolder
from page4d.lab.training.logs import SilentTrainingObserver
from page4d.lab.training.optimizers import OptimizerConfig
from page4d.networks.encoders.vit import Pooling, ViTConfig
from tests.training.training_runs import never

ENCODER = ViTConfig(image_size=16, patch_size=8, embed_dim=16, depth=1, num_heads=2, pooling=Pooling.MEAN)
TINY_MAE = PretrainConfig(
    method=MAEConfig(encoder=ENCODER, decoder_dim=8, decoder_depth=1, decoder_heads=2),
    crops=CropConfig(size=16),
    batch=3,
    pool_frames=6,
    repeats=2,
    optimizer=OptimizerConfig(warmup_steps=2, average_decay=0.9),
    decay_fraction=0.5,
    save_every_seconds=0,
    log_every_steps=1,
)
TINY_DINO = replace(
    TINY_MAE,
    method=DINOConfig(
        encoder=replace(ENCODER, pooling=Pooling.CLASS),
        projector=ProjectorConfig(layers=2, hidden_dim=8, bottleneck_dim=6, classes=8),
        teacher_momentum=0.5,
    ),
    crops=CropConfig(size=16, area=(0.4, 1.0), num_large=2, small_size=8, num_small=1, recoloured=True),
)


def write_recording(folder: Path, frames: int = 5, views: tuple[str, ...] = ("a", "b"), side: int = 40) -> Path:
    """Write noise whose brightness increases with time; views differ in tint."""
    random = np.random.default_rng(0)
    for number, view in enumerate(views):
        (folder / view).mkdir(parents=True)
        for index in range(frames):
            pixels = random.integers(0, 100, (side, 30, 3), dtype=np.uint8) + 10 * index
            pixels[..., number] += 80
            cv2.imwrite(str(folder / view / f"{index:04d}.png"), pixels)
    return folder


def run_tiny(
    out: Path,
    config: PretrainConfig | None,
    steps: int | None,
    *,
    stop: Callable[[], int | None] = never,
    **more: Any,
) -> PretrainOutcome:
    """Pretrain on the CPU, without reports."""
    request = PretrainRequest(out=out, config=config, steps=steps, device="cpu", **more)
    return pretrain(request, SilentTrainingObserver(), stop)


def checkpoint_of(out: Path) -> PretrainCheckpoint:
    return PretrainCheckpoint.read(RunFolder(out).checkpoint)


def assert_equal_runs(first: Path, second: Path) -> None:
    """Compare modules, optimizer and position of two runs, bit for bit."""
    one, two = checkpoint_of(first), checkpoint_of(second)
    for name, module in one.modules.items():
        assert all(torch.equal(value, two.modules[name][key]) for key, value in module.items()), name
    for key, state in one.optimizer["state"].items():
        assert all(torch.equal(value, two.optimizer["state"][key][name]) for name, value in state.items())
    clock = {"seconds": 0.0, "samples_per_second": 0.0}
    assert replace(one.position, **clock) == replace(two.position, **clock)
