"""A predictor that returns the ground truth of a synthetic capture, and functions that disturb it."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Self

import torch

from page4d.conventions import Scale
from page4d.geometry.camera import Cameras
from page4d.geometry.rotation import matrix_from_rotation_vector
from page4d.geometry.transforms import Sim3
from page4d.lab.synthetic.capture import SyntheticCapture
from page4d.networks.conditioning import Memory
from page4d.options import ReconstructSettings
from page4d.output.record import NetworkRecord
from page4d.records import Predictions
from page4d.run.predictor import CPU, PredictedChunk
from page4d.scene.batches import FrameBatch
from tests.synthetic.scenes import predictions_of


def random_similarity(seed: int, *, scale: bool = True) -> Sim3:
    """Return a similarity far from the identity."""
    generator = torch.Generator().manual_seed(seed)
    factor = torch.exp(torch.randn((), generator=generator, dtype=torch.float64)) if scale else torch.ones(())
    return Sim3(
        scale=factor.double(),
        rotation=matrix_from_rotation_vector(torch.randn(3, generator=generator, dtype=torch.float64)),
        translation=3 * torch.randn(3, generator=generator, dtype=torch.float64),
    )


@cache
def exact_predictions(capture: SyntheticCapture, scale: Scale = Scale.ARBITRARY) -> Predictions:
    """Return the ground truth of a whole capture with float64 cameras, as a perfect network would predict it."""
    truth = predictions_of(capture)
    cameras = capture.cameras
    return replace(
        truth,
        scale=scale,
        depth=truth.depth.double(),
        cameras=replace(
            truth.cameras,
            world_to_camera=cameras.world_to_camera[None].double(),
            intrinsics=cameras.intrinsics[None].double(),
        ),
    )


@dataclass
class TruthPredictor:
    """Returns the ground truth of a capture at its own size; `disturb` may change it, chunk by chunk."""

    capture: SyntheticCapture
    disturb: Callable[[int, Predictions], Predictions] = lambda _, predictions: predictions
    settings: ReconstructSettings = field(default_factory=ReconstructSettings)
    record: NetworkRecord = field(default_factory=lambda: NetworkRecord(name="truth", trained=True))
    multiple: int = 1
    default_long_side: int | None = None
    takes_mixed_sizes: bool = False
    uses_rig_cameras: bool = False
    scale: Scale | None = Scale.ARBITRARY
    device: torch.device = CPU
    precision: torch.dtype = torch.float32
    calls: list[tuple[int, int]] = field(default_factory=list)

    def with_settings(self, settings: ReconstructSettings) -> Self:
        """Return a predictor that appends to the same list of calls."""
        return replace(self, settings=settings)

    def predict(self, batch: FrameBatch, memory: Memory | None = None) -> PredictedChunk:  # noqa: ARG002  no memory
        start = int(torch.searchsorted(torch.from_numpy(self.capture.times), batch.times[0] - 1e-6))
        stop = start + len(batch.times)
        truth = exact_predictions(self.capture).at_times(start, stop)
        self.calls.append((start, stop))
        names, parts = self.capture.view_names, [one.source.slices for one in batch.pixel_transforms]
        places = [(names.index(name), *part) for name, part in zip(batch.view_names, parts, strict=True)]

        def shown(maps: torch.Tensor) -> torch.Tensor:
            return torch.stack([maps[:, :, view, ..., rows, columns] for view, rows, columns in places], dim=2)

        views = [view for view, *_ in places]
        matrices = truth.cameras.intrinsics[:, :, views].unbind(2)
        placed = [one.intrinsics_to_network(own) for one, own in zip(batch.pixel_transforms, matrices, strict=True)]
        predicted = replace(
            truth,
            view_names=batch.view_names,
            cameras=Cameras(
                world_to_camera=truth.cameras.world_to_camera[:, :, views],
                intrinsics=torch.stack(placed, dim=2),
                image_size=(batch.images.shape[-2], batch.images.shape[-1]),
            ),
            depth=shown(truth.depth),
            depth_confidence=shown(truth.depth_confidence),
            dynamic=None if truth.dynamic is None else shown(truth.dynamic),
            images=batch.images,
            valid=batch.valid,
            faults=batch.faults,
            pixel_transforms=batch.pixel_transforms,
        )
        return PredictedChunk(self.disturb(start, predicted), batch.cameras)
