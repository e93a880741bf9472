"""Time and memory of a network over a grid of instants, views and image sizes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from page4d.inference.cost import Extent, NetworkCost
from page4d.inference.memory import is_out_of_memory
from page4d.inference.predictor import NetworkPredictor
from page4d.inference.probe import Cost, cost_of, probe_batch
from page4d.plotting.canvas import INK, VIEW_COLORS
from page4d.plotting.charts import Curve, line_chart


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What a forward pass took beside the weights; None where memory ran out. `predicted` was said before."""

    extent: Extent
    predicted: Cost
    actual: Cost | None

    @property
    def images_per_second(self) -> float | None:
        """Frames of all views in a second."""
        return None if self.actual is None else self.extent.times * self.extent.views / self.actual.seconds


def measure_grid(predictor: NetworkPredictor, cost: NetworkCost, extents: Sequence[Extent]) -> Iterator[Measurement]:
    """Run a network on noise of every extent; one that does not fit is no reason to stop."""
    predictor.run(probe_batch(extents[0]))
    for extent in extents:
        predicted = Cost(cost.num_bytes(extent), cost.seconds(extent))
        yield Measurement(extent=extent, predicted=predicted, actual=_measured(predictor, extent))


def _measured(predictor: NetworkPredictor, extent: Extent) -> Cost | None:
    try:
        return cost_of(predictor.device, partial(predictor.run, probe_batch(extent)))
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    if predictor.device.type == "cuda":
        torch.cuda.empty_cache()
    return None


def draw_grid(measurements: Sequence[Measurement], title: str) -> NDArray[np.uint8]:
    """Draw memory above time over instants: coloured as measured, thin and dark as predicted."""
    most = max(part.predicted.num_bytes for part in measurements)
    unit, label = (1e9, "GB") if most > 1e9 else (1e6, "MB")
    memory = line_chart(_curves(measurements, 0, unit), f"{title}: memory beside the weights", "instants", label)
    seconds = line_chart(_curves(measurements, 1, 1.0), f"{title}: time of a forward pass", "instants", "s")
    return np.concatenate([memory, seconds])


def _curves(measurements: Sequence[Measurement], field: int, unit: float) -> list[Curve]:
    curves = []
    times: list[float] = []
    predicted: list[float | None] = []
    groups = dict.fromkeys((part.extent.size, part.extent.views) for part in measurements)
    for number, (size, views) in enumerate(groups):
        row = [part for part in measurements if (part.extent.size, part.extent.views) == (size, views)]
        instants = [float(part.extent.times) for part in row]
        values = [None if part.actual is None else part.actual[field] / unit for part in row]
        name = f"{size[1]}x{size[0]}, {views} view{'s' if views > 1 else ''}"
        color = VIEW_COLORS[number % len(VIEW_COLORS)]
        curves.append(Curve(name=name, color=color, x=instants, y=values, width=5))
        times += [*instants, instants[-1]]
        predicted += [*(part.predicted[field] / unit for part in row), None]  # a gap between the groups
    return [*curves, Curve(name="predicted", color=INK, x=times, y=predicted, width=1)]
