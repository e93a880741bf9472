"""Batches of training samples in the order of their steps, rendered on demand or by worker processes.

Samples come from synthetic scenes and from captures with ground truth on disk. A step of the curriculum is a function
of the configuration, the seed and the position.
"""

import io
import multiprocessing
import os
import signal
import threading
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from page4d.errors import CapabilityError, InputError, Page4DError, listed
from page4d.evaluation.comparison import open_truth
from page4d.geometry.camera import Cameras
from page4d.geometry.pixels import PixelTransform
from page4d.lab.synthetic.capture import SceneRequest, sample_truth
from page4d.lab.training.config import SYNTHETIC, TrainConfig, TrainedPart
from page4d.lab.training.schedule import Budget, PlannedStep, Position, begin_decay, fraction_done, rate_at
from page4d.lab.training.validation import training_seed
from page4d.records import GroundTruth
from page4d.scene.batches import open_placed_batches
from page4d.scene.open import open_scene
from page4d.scene.records import Scene

_STREAM = 0x7061
"""Separates the random draws of steps from all other uses of the run's seed."""


@dataclass(frozen=True, kw_only=True)
class CurriculumStep(PlannedStep):
    """A step: its curriculum stage and source, the known inputs of the network, and the part that it trains.

    Captures take the numbers and the size of the `request` alone.
    """

    stage: int
    source: int
    request: SceneRequest
    intrinsics_known: bool
    poses_known: bool
    masks_known: bool
    trained_part: TrainedPart


def advance(position: Position, config: TrainConfig, budget: Budget) -> Position:
    """Begin the next curriculum stages, and the learning rate decay, that are due."""
    done = fraction_done(position, budget)
    starts = position.stage_starts
    for stage in config.stages[len(starts) :]:
        is_due = done >= stage.start if stage.start_sample is None else position.samples >= stage.start_sample
        if not is_due:
            break
        starts = (*starts, position.samples)
    return begin_decay(replace(position, stage_starts=starts), config, budget)


def plan_step(config: TrainConfig, position: Position, num_processes: int = 1) -> CurriculumStep:
    """Draw the next step from the run's seed and the number of the step alone."""
    random = np.random.default_rng((config.seed, _STREAM, position.step))
    number = position.stage_at(position.samples)
    stage = config.stages[number]
    source = _draw(random, [source.weight for source in config.sources])
    shape = stage.shots[_draw(random, [shape.weight for shape in stage.shots])]
    size = stage.sizes[int(random.integers(len(stage.sizes)))]
    fitting = [family for family in stage.families if family.fits(shape.views)]
    family = fitting[_draw(random, [family.weight for family in fitting])]
    cameras, masks = random.random(2)
    return CurriculumStep(
        step=position.step,
        first_sample=position.samples,
        batch_size=max(1, stage.images_per_batch // (shape.times * shape.views)),
        num_batches=config.accumulation * num_processes,
        rate=rate_at(config, position),
        stage=number,
        source=source,
        request=SceneRequest(
            family=family.name,
            spacing_deg=family.spacing_deg,
            num_times=shape.times,
            num_views=shape.views,
            image_size=size,
        ),
        intrinsics_known=bool(cameras < config.hints.cameras + config.hints.intrinsics),
        poses_known=bool(cameras < config.hints.cameras),
        masks_known=bool(masks < config.hints.masks),
        trained_part=stage.learner,
    )


def _draw(random: np.random.Generator, weights: Sequence[float]) -> int:
    return int(random.choice(len(weights), p=np.asarray(weights) / np.sum(weights)))


_MAX_STRIDE = 4
_DECODED_TOGETHER = 8
"""Instants per decoded batch."""


class SyntheticSource:
    """Renders scenes; the number of a sample determines its seed."""

    def __init__(self, run_seed: int) -> None:
        self._run_seed = run_seed

    def read(self, samples: Sequence[int], request: SceneRequest, device: torch.device) -> GroundTruth:
        """Render one scene per number."""
        return sample_truth([training_seed(self._run_seed, sample) for sample in samples], request, device)


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

    def read(self, samples: Sequence[int], request: SceneRequest, device: torch.device) -> GroundTruth:
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

    def _window(self, sample: int, request: SceneRequest) -> tuple[Tensor, Tensor]:
        """Draw increasing instants and shuffled views, of which the first defines the world frame."""
        random = np.random.default_rng((self._run_seed, sample))
        length = min(request.num_times, self._scene.num_times)
        max_stride = (self._scene.num_times - 1) // max(1, length - 1)
        stride = int(random.integers(1, min(_MAX_STRIDE, max(1, max_stride)) + 1))
        start = int(random.integers(self._scene.num_times - stride * (length - 1)))
        views = random.permutation(self._scene.num_views)[: request.num_views]
        return start + stride * torch.arange(length), torch.from_numpy(views)


Source = SyntheticSource | CaptureSource
"""An infinite sequence of samples; a sample follows from its number."""


def open_training_sources(config: TrainConfig) -> list[Source]:
    """Open the sources of a configuration, in its order.

    Raises:
        InputError: if a folder is not a capture with ground truth.
    """
    return [
        SyntheticSource(config.seed) if source.path == SYNTHETIC else CaptureSource(Path(source.path), config.seed)
        for source in config.sources
    ]


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


PREFETCHED_STEPS = 2
"""Steps that each worker renders ahead of the training."""

_CPU = torch.device("cpu")
_Rendered = tuple[CurriculumStep, bytes] | Page4DError


def feed_batches(
    sources: Sequence[Source],
    steps: Iterator[CurriculumStep],
    batches: Sequence[int],
    device: torch.device,
    workers: int,
) -> Generator[tuple[CurriculumStep, list[GroundTruth]]]:
    """Yield every step with those of its batches that this process trains on; closing it ends the workers.

    Raises:
        InputError: if a source cannot be read.
    """
    if workers == 0:
        for step in steps:
            yield step, _read(sources, step, batches, device)
        return
    loader = DataLoader(
        _RenderedSteps(sources, batches),
        batch_size=None,
        sampler=steps,
        num_workers=workers,
        prefetch_factor=PREFETCHED_STEPS,
        worker_init_fn=_start_worker,
        multiprocessing_context="spawn",
        generator=torch.Generator(),
    )
    for rendered in _received(loader):
        if isinstance(rendered, Page4DError):
            raise rendered
        step, content = rendered
        yield step, torch.load(io.BytesIO(content), map_location=device, weights_only=False)


def _received(loader: "DataLoader[_Rendered]") -> Iterator[_Rendered]:
    """Yield what the workers send.

    Raises:
        CapabilityError: if one of them was ended from outside.
    """
    try:
        yield from loader
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        raise CapabilityError(
            "a process that renders batches was ended, perhaps because memory ran out",
            "use fewer ⟨workers⟩, then continue with ⟨resume=True⟩",
        ) from error


def _read(
    sources: Sequence[Source], step: CurriculumStep, batches: Sequence[int], device: torch.device
) -> list[GroundTruth]:
    return [sources[step.source].read(step.samples(batch), step.request, device) for batch in batches]


class _RenderedSteps(Dataset[_Rendered]):
    """Steps as bytes, which the DataLoader sends through a pipe; it would send tensors through scarce shared memory.

    Errors are returned: the DataLoader would lose their hints.
    """

    def __init__(self, sources: Sequence[Source], batches: Sequence[int]) -> None:
        self._sources, self._batches = sources, batches

    def __getitem__(self, step: CurriculumStep) -> _Rendered:
        content = io.BytesIO()
        try:
            torch.save(_read(self._sources, step, self._batches, _CPU), content)
        except Page4DError as error:
            return error
        return step, content.getvalue()


def _start_worker(_: int) -> None:
    """Ignore Ctrl-C, and exit with the parent process: a full pipe would keep a worker of the DataLoader alive."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def exit_with_parent() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=exit_with_parent, daemon=True).start()
