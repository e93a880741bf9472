"""Sources of training samples: synthetic scenes, and captures with ground truth on disk."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from page4d.errors import InputError, listed
from page4d.evaluation.truth_folder import open_truth
from page4d.geometry.camera import Cameras
from page4d.geometry.pixels import PixelTransform
from page4d.ground_truth import GroundTruth
from page4d.scene.batches import open_placed_batches
from page4d.scene.open import open_scene
from page4d.scene.records import Scene
from page4d.synthetic.sampler import SceneRequest, sample_truth
from page4d.training.supervised.config import SYNTHETIC, TrainConfig
from page4d.training.supervised.curriculum import BatchRequest
from page4d.training.validation.held_out import training_seed

_MAX_STRIDE = 4
_DECODED_TOGETHER = 8
"""Instants per decoded batch."""


class Source(Protocol):
    """An infinite sequence of samples; a sample follows from its number."""

    def read(self, samples: Sequence[int], request: BatchRequest, device: torch.device) -> GroundTruth:
        """Return the samples with these numbers as one batch."""
        ...


class SyntheticSource:
    """Renders scenes; the number of a sample determines its seed."""

    def __init__(self, run_seed: int) -> None:
        self._run_seed = run_seed

    def read(self, samples: Sequence[int], request: BatchRequest, device: torch.device) -> GroundTruth:
        """Render one scene per number."""
        scenes = SceneRequest(
            family=request.family.name,
            spacing_deg=request.family.spacing_deg,
            num_times=request.num_times,
            num_views=request.num_views,
            image_size=request.image_size,
        )
        return sample_truth([training_seed(self._run_seed, sample) for sample in samples], scenes, device)


def open_sources(config: TrainConfig) -> list[Source]:
    """Open the sources of a configuration, in its order.

    Raises:
        InputError: if a folder is not a capture with ground truth.
    """
    return [
        SyntheticSource(config.seed) if source.path == SYNTHETIC else CaptureSource(Path(source.path), config.seed)
        for source in config.sources
    ]


@dataclass(frozen=True, kw_only=True)
class _Frames:
    """A capture at the size of network images, in memory with 8 to 9 bytes per pixel."""

    images: UInt8[Tensor, "T V 3 H W"]
    valid: Bool[Tensor, "T V H W"]
    depth: Float[Tensor, "T V H W"]
    dynamic: Bool[Tensor, "T V H W"] | None
    cameras: Cameras
    times: Float[Tensor, " T"]


class CaptureSource:
    """Draws windows from a folder as `page4d synthesize` writes it: videos or images, and a folder `truth`.

    Images are scaled to cover the canvas and center-cropped. A capture with fewer views or instants than a step
    requests provides all of them.

    Raises:
        InputError: if the folder has no cameras, no depth, or cannot be read.
    """

    def __init__(self, folder: Path, run_seed: int) -> None:
        self._run_seed = run_seed
        self._scene = _open(folder)
        self._frames: dict[tuple[int, int], _Frames] = {}

    def read(self, samples: Sequence[int], request: BatchRequest, device: torch.device) -> GroundTruth:
        """Return one window per sample number."""
        size = request.image_size
        if size not in self._frames:
            self._frames[size] = _decode(self._scene, size)
        frames = self._frames[size]
        times, views = (torch.stack(axis) for axis in zip(*(self._window(n, request) for n in samples), strict=True))
        at = (times[:, :, None], views[:, None, :])
        return GroundTruth(
            images=(frames.images[at].float() / 255).to(device),
            valid=frames.valid[at].to(device),
            depth=frames.depth[at].to(device),
            dynamic=None if frames.dynamic is None else frames.dynamic[at].to(device),
            cameras=frames.cameras[at].to(device),
            times=frames.times[times].to(device),
        )

    def _window(self, sample: int, request: BatchRequest) -> tuple[Tensor, Tensor]:
        """Draw increasing instants and shuffled views, of which the first defines the world frame."""
        random = np.random.default_rng((self._run_seed, sample))
        length = min(request.num_times, self._scene.num_times)
        max_stride = (self._scene.num_times - 1) // max(1, length - 1)
        stride = int(random.integers(1, min(_MAX_STRIDE, max(1, max_stride)) + 1))
        start = int(random.integers(self._scene.num_times - stride * (length - 1)))
        views = random.permutation(self._scene.num_views)[: request.num_views]
        return start + stride * torch.arange(length), torch.from_numpy(views)


def _open(folder: Path) -> Scene:
    """Open a capture at the frames with known depth."""
    truth = open_truth(folder)
    missing = [view.name for view in truth.views if not view.depth_files]
    if missing:
        raise InputError(f"'{folder}' has no depth for {listed(missing)}", "give a capture with depth of every view")
    numbers = sorted(truth.views[0].depth_files)
    masks = truth.folder / "dynamic"
    return open_scene(
        truth.folder.parent,
        calibration=truth.folder / "cameras.json",
        depth=truth.folder / "depth",
        masks=masks if masks.is_dir() else None,
        stride=numbers[1] - numbers[0] if len(numbers) > 1 else 1,
    )


def _decode(scene: Scene, canvas: tuple[int, int]) -> _Frames:
    """Read the whole capture once."""
    transforms = tuple(_covering(view.source.size, canvas) for view in scene.views)
    starts = range(0, scene.num_times, _DECODED_TOGETHER)
    with open_placed_batches(scene, transforms) as reader:
        parts = [reader.read(start, min(start + _DECODED_TOGETHER, scene.num_times)) for start in starts]
    cameras = [part.cameras for part in parts if part.cameras is not None]
    depths = [part.depth for part in parts if part.depth is not None]
    masks = [part.dynamic for part in parts if part.dynamic is not None]
    masked = all(view.mask is not None for view in scene.views)
    return _Frames(
        images=torch.cat([torch.round(part.images[0] * 255).to(torch.uint8) for part in parts]),
        valid=torch.cat([part.valid[0] for part in parts]),
        depth=torch.cat([depth[0] for depth in depths]).float(),
        dynamic=torch.cat([mask[0] for mask in masks]) > 0.5 if masked else None,
        cameras=Cameras(
            world_to_camera=torch.cat([part.world_to_camera[0] for part in cameras]).float(),
            intrinsics=torch.cat([part.intrinsics[0] for part in cameras]).float(),
            image_size=canvas,
        ),
        times=torch.cat([part.times for part in parts]).float(),
    )


def _covering(original: tuple[int, int], canvas: tuple[int, int]) -> PixelTransform:
    """Scale an image to cover the canvas and crop it at the center."""
    factor = max(canvas[0] / original[0], canvas[1] / original[1])
    height, width = (max(round(side * factor), minimum) for side, minimum in zip(original, canvas, strict=True))
    return PixelTransform(
        original_size=original,
        content_size=(height, width),
        canvas_size=canvas,
        left=-((width - canvas[1]) // 2),
        top=-((height - canvas[0]) // 2),
    )
