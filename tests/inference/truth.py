"""A predictor that knows the truth of a synthetic capture, and ways to spoil what it says."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache

import torch

from page4d.conventions import Scale
from page4d.geometry.rotation import matrix_from_rotation_vector
from page4d.geometry.similarity import Sim3
from page4d.inference.predictor import CPU, Predicted
from page4d.models.conditioning import Memory
from page4d.predictions import Predictions
from page4d.scene.records import FrameBatch
from page4d.synthetic.capture import SyntheticCapture


def random_similarity(seed: int, *, scale: bool = True) -> Sim3:
    """Return a map far from the identity."""
    generator = torch.Generator().manual_seed(seed)
    factor = torch.exp(torch.randn((), generator=generator, dtype=torch.float64)) if scale else torch.ones(())
    return Sim3(
        scale=factor.double(),
        rotation=matrix_from_rotation_vector(torch.randn(3, generator=generator, dtype=torch.float64)),
        translation=3 * torch.randn(3, generator=generator, dtype=torch.float64),
    )


@cache
def exact_predictions(capture: SyntheticCapture, scale: Scale = Scale.ARBITRARY) -> Predictions:
    """Return the truth of a whole capture with float64 cameras, as a perfect network would give it."""
    truth = capture.predictions()
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
    """Says the truth for any batch of a capture at its own size; `spoil` may change it, chunk by chunk."""

    capture: SyntheticCapture
    spoil: Callable[[int, Predictions], Predictions] = lambda _, predictions: predictions
    multiple: int = 1
    default_long_side: int | None = None
    takes_mixed_sizes: bool = False
    uses_rig_cameras: bool = False
    predicts_points: bool = False
    device: torch.device = CPU
    precision: torch.dtype = torch.float32
    calls: list[tuple[int, int]] = field(default_factory=list)

    def predict(self, batch: FrameBatch, memory: Memory | None = None) -> Predicted:  # noqa: ARG002  the truth needs none
        start = int(torch.searchsorted(torch.from_numpy(self.capture.times), batch.times[0] - 1e-6))
        stop = start + len(batch.times)
        truth = exact_predictions(self.capture).at_times(start, stop)
        self.calls.append((start, stop))
        said = replace(truth, images=batch.images, valid=batch.valid, pixel_transforms=batch.pixel_transforms)
        return Predicted(self.spoil(start, said))
