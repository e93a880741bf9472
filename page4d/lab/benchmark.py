"""Memory and time of a network over a grid of instants, views and image sizes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from page4d.choices import SceneFamily
from page4d.lab.synthetic.capture import SyntheticCapture
from page4d.plotting.canvas import INK, view_color
from page4d.plotting.charts import Chart, Curve, draw_charts
from page4d.run.memory import Cost, Extent, NetworkCost, cost_of, is_out_of_memory, noise_batch
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
    batch = replace(noise_batch(extent), images=capture.predictions(0, extent.times).images)
    return predictor.predict(batch).refine_seconds


def _measured(predictor: NetworkPredictor, extent: Extent) -> Cost | None:
    batch = noise_batch(extent)
    try:
        found = cost_of(predictor.device, partial(predictor.run, batch))
        # On a GPU the images are copied; elsewhere they exist before the pass.
        copied = predictor.device.type == "cuda"
        return found if copied else found._replace(num_bytes=found.num_bytes + batch.images.nbytes)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    if predictor.device.type == "cuda":
        torch.cuda.empty_cache()
    return None


def draw_grid(measurements: Sequence[Measurement], title: str) -> NDArray[np.uint8]:
    """Draw memory and time over the number of instants. Returns the picture [H, W, 3] in RGB."""
    largest = max(part.predicted_bytes for part in measurements)
    unit, label = (1e9, "GB") if largest > 1e9 else (1e6, "MB")
    memory = Chart(
        title=f"{title}: memory of a forward pass, without weights",
        x_label="instants",
        y_label=f"memory [{label}]",
        curves=[*_curves(measurements, unit), Curve(name="predicted", color=INK, width=1.2, style="--")],
        whole_x=True,
    )
    seconds = Chart(
        title=f"{title}: time of a forward pass",
        x_label="instants",
        y_label="time [s]",
        curves=_curves(measurements),
        whole_x=True,
    )
    return draw_charts([memory, seconds])


def _curves(measurements: Sequence[Measurement], unit: float | None = None) -> list[Curve]:
    """Return a curve per image size and number of views: of seconds, or of measured and predicted (dashed) bytes."""
    curves = []
    groups = dict.fromkeys((part.extent.size, part.extent.views) for part in measurements)
    for index, (size, views) in enumerate(groups):
        row = [part for part in measurements if (part.extent.size, part.extent.views) == (size, views)]
        instants, color = [float(part.extent.times) for part in row], view_color(index)
        measured = [
            None if (actual := part.actual) is None else actual.num_bytes / unit if unit else actual.seconds
            for part in row
        ]
        name = f"{size[1]}x{size[0]} px, {views} view{'s' if views > 1 else ''}"
        curves.append(Curve(name=name, color=color, x=instants, y=measured, marker="o"))
        if unit:
            predicted = [part.predicted_bytes / unit for part in row]
            curves.append(Curve(name="", color=color, x=instants, y=predicted, width=1.2, style="--"))
    return curves
