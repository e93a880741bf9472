"""Memory and time of a network over a grid of instants, views and image sizes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from page4d.choices import SceneFamily
from page4d.lab.synthetic.capture import SyntheticCapture
from page4d.run.memory import Cost, Extent, NetworkCost, cost_of, noise_batch, unless_out_of_memory
from page4d.run.predictor import NetworkPredictor

_SEED, _SPACING_DEG = 7, 5.0
"""Of the scene whose refinement is measured."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Operations, predicted memory and measured cost of a forward pass; `actual` is None if it ran out of memory.

    `refinement` are the seconds of refining its output, None if that is not measured or not possible.
    """

    extent: Extent
    tflop: float
    predicted_bytes: int
    actual: Cost | None
    refinement: float | None = None

    @property
    def images_per_second(self) -> float | None:
        """Throughput in images of all views per second."""
        return None if self.actual is None else self.extent.times * self.extent.views / self.actual.seconds


def measure_grid(
    predictor: NetworkPredictor, extents: Sequence[Extent], *, refine: bool = False
) -> Iterator[Measurement]:
    """Measure forward passes on noise of every extent; running out of memory does not end the benchmark.

    With `refine`, the refinement of a pass on rendered views, 5 degrees apart, is measured as well.
    """
    cost = NetworkCost(config=predictor.network.config, device=predictor.device)
    predictor.run(noise_batch(extents[0]))
    for extent in extents:
        actual = _measured(predictor, extent)
        refinement = _refinement_seconds(predictor, extent) if refine and actual is not None else None
        yield Measurement(
            extent=extent,
            tflop=cost.tflop(extent),
            predicted_bytes=cost.num_bytes(extent),
            actual=actual,
            refinement=refinement,
        )


def _refinement_seconds(predictor: NetworkPredictor, extent: Extent) -> float | None:
    if predictor.network.config.matches is None:
        return None
    capture = SyntheticCapture(
        seed=_SEED,
        family=SceneFamily.ARC,
        num_views=extent.views,
        num_times=extent.times,
        image_size=extent.size,
        spacing_deg=min(_SPACING_DEG, 360 / extent.views),
    )
    frames = [capture.rendered(time, view).image for time in range(extent.times) for view in range(extent.views)]
    images = torch.stack(frames).reshape(1, extent.times, extent.views, 3, *extent.size)
    return predictor.predict(replace(noise_batch(extent), images=images)).refine_seconds


def _measured(predictor: NetworkPredictor, extent: Extent) -> Cost | None:
    batch, device = noise_batch(extent), predictor.device
    found = unless_out_of_memory(device, partial(cost_of, device, partial(predictor.run, batch)))
    if found is None or device.type == "cuda":
        return found
    # On a GPU the images are copied; elsewhere they exist before the pass.
    return found._replace(num_bytes=found.num_bytes + batch.images.nbytes)
