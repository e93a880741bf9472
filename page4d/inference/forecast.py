"""How long chunks may be, and what they are expected to take."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from page4d.errors import MemoryBudgetError
from page4d.inference.chunks import Chunk
from page4d.inference.cost import Extent, NetworkCost, process_bytes
from page4d.scene.records import Notice

LONGEST_CHUNK = 8
"""Instants of a chunk where the user does not say: networks are trained on few, and are worse with many more."""


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What chunks of a run are expected to take, beside `used_bytes` that are in use before.

    `size` is (height, width) in network pixels, `own_sizes` are those of views that differ; `source_pixels` are those
    of a frame of every video. Without `cost` no network is run. A `preview` is drawn at the end.
    """

    views: int
    size: tuple[int, int]
    device: torch.device
    used_bytes: int
    cost: NetworkCost | None
    own_sizes: tuple[tuple[int, int], ...] = ()
    source_pixels: int = 0
    preview: bool = False

    def peak_bytes(self, length: int) -> int:
        """Return the most memory with chunks of `length` instants: on a GPU its own, otherwise the process's."""
        extent = self._extent(length)
        network = 0 if self.cost is None else self.cost.num_bytes(extent)
        if self.device.type == "cuda":
            return self.used_bytes + network
        return self.used_bytes + process_bytes(extent, network, self.source_pixels, preview=self.preview)

    def network_seconds(self, chunks: Sequence[Chunk]) -> float:
        """Return how long the network runs, roughly."""
        return 0.0 if self.cost is None else sum(self.cost.seconds(self._extent(chunk.length)) for chunk in chunks)

    def _extent(self, length: int) -> Extent:
        return Extent(times=length, views=self.views, size=self.size, own_sizes=self.own_sizes)


@dataclass(frozen=True, kw_only=True)
class MemoryLimit:
    """How much memory may be used. `is_strict` if the user said so, not what happens to be free."""

    num_bytes: int
    is_strict: bool


def choose_length(
    forecast: Forecast, limit: MemoryLimit, wanted: int | None, least: int, num_times: int
) -> tuple[int, list[Notice]]:
    """Return how many instants a chunk holds: as wanted, or as many as are good and fit; and what to warn of.

    Raises:
        MemoryBudgetError: if a limit that the user gave does not suffice.
    """
    longest = min(wanted or max(LONGEST_CHUNK, least), num_times)
    shortest = longest if wanted else min(least, num_times)
    fitting = [length for length in range(shortest, longest + 1) if forecast.peak_bytes(length) <= limit.num_bytes]
    if fitting:
        return wanted or fitting[-1], []
    needed = f"about {forecast.peak_bytes(shortest) / 1e9:.2f} GB"
    frames = f"chunks of {shortest} frames of {forecast.views} views at {max(forecast.size)} px"
    if limit.is_strict:
        raise MemoryBudgetError(
            f"{frames} need {needed}, --memory allows {limit.num_bytes / 1e9:.2f} GB",
            f"give more memory{', a smaller --chunk' if wanted else ''}, a smaller --size, or fewer --views",
        )
    text = f"{frames} need {needed}, {limit.num_bytes / 1e9:.2f} GB can be used: memory may run out"
    return wanted or shortest, [Notice(text)]
