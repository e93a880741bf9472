"""What a forward pass costs: bytes and seconds as a formula of instants, views and image size."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from page4d.io.json_model import FileModel
from page4d.layers.embed import patch_grid
from page4d.models.config import FullAttention, NetworkConfig
from page4d.models.schedule import Step

_PIPELINE_BYTES = 210
"""What a pixel of a chunk takes beside the network: its frames and those decoded ahead, its predictions, and the
chunk before that is stitched and written meanwhile."""

_LIBRARY_BYTES = 100_000_000
"""What libraries take when they first decode, compute and write."""

_DECODER_BYTES = 17
"""What a pixel of a video takes while it is decoded, and once more if a lens is undone: measured at 1080x1920."""

_PREVIEW_BYTES = 210_000_000
"""What drawing the pictures takes, whose size does not depend on the capture."""

_HEAP_SHARE = 1.28
"""How much larger the process grows than what is in use at once: what was freed is not all of use again."""

_SHARE_KEPT = 0.57
"""How much of what chunks took stays with the process while pictures are drawn."""


@dataclass(frozen=True, kw_only=True)
class Extent:
    """How much passes through a network at once; `size` is (height, width) of an image in pixels.

    If views differ, `own_sizes` are theirs and `size` is that of the canvas that holds each of them.
    """

    times: int
    views: int
    size: tuple[int, int]
    own_sizes: tuple[tuple[int, int], ...] = ()

    @property
    def view_sizes(self) -> tuple[tuple[int, int], ...]:
        """The (height, width) of every view."""
        return self.own_sizes or (self.size,) * self.views

    @property
    def num_pixels(self) -> int:
        """Pixels of all images."""
        return self.times * sum(height * width for height, width in self.view_sizes)

    @property
    def num_held_pixels(self) -> int:
        """Pixels of all canvases."""
        return self.times * self.views * self.size[0] * self.size[1]


class Coefficients(FileModel):
    """Bytes and seconds of a forward pass for each of its `quantities`; weights are not in the bytes."""

    bytes: tuple[float, float, float, float]
    seconds: tuple[float, float, float, float]


@dataclass(frozen=True, kw_only=True)
class NetworkCost:
    """The formula of one network on one device."""

    config: NetworkConfig
    coefficients: Coefficients

    def num_bytes(self, extent: Extent) -> int:
        """Return how much memory a forward pass takes beside the weights."""
        return int(np.dot(self.coefficients.bytes, quantities(self.config, extent)))

    def seconds(self, extent: Extent) -> float:
        """Return how long a forward pass takes, roughly."""
        return float(np.dot(self.coefficients.seconds, quantities(self.config, extent)))


def quantities(config: NetworkConfig, extent: Extent) -> tuple[float, float, float, float]:
    """Return what memory and time are linear in: 1, pixels, pairs of tokens in an image and in the largest attention.

    Tokens that pass the trunk, the layers that are kept and the maps of the heads all go with the pixels.
    """
    grids = [patch_grid(height, width, config.patch_size) for height, width in extent.view_sizes]
    tokens = [rows * columns + config.num_registers + config.camera_token for rows, columns in grids]
    times, full = extent.times, config.full_attention
    if full is FullAttention.ALWAYS or (full is FullAttention.ONE_VIEW and extent.views == 1):
        times, tokens = 1, times * tokens
    pairs = {
        Step.FRAME: times * sum(count**2 for count in tokens),
        Step.TIME: times**2 * sum(count**2 for count in tokens),
        Step.VIEW: times * sum(tokens) ** 2,
    }
    largest = max(pairs.get(step, (times * sum(tokens)) ** 2) for step in config.schedule)
    return 1.0, float(extent.num_pixels), float(pairs[Step.FRAME]), float(largest)


def fit(
    rows: Sequence[tuple[float, ...]], measured: Sequence[float], *, from_above: bool
) -> tuple[float, float, float, float]:
    """Find the coefficients that meet measurements best in proportion, none below 0.

    With `from_above` they are enlarged until none of the measurements is above them.
    """
    from scipy.optimize import nnls

    design, values = np.array(rows), np.array(measured)
    scales = design.max(axis=0)
    found = nnls(design / scales / values[:, None], np.ones(len(values)))[0] / scales
    if from_above:
        found = found * max(1.0, float((values / (design @ found)).max()))
    first, second, third, fourth = (float(value) for value in found)
    return first, second, third, fourth


def process_bytes(extent: Extent, network: int, source_pixels: int, *, preview: bool) -> int:
    """Return by how much a process grows in which a network takes so many bytes for chunks of this extent.

    Beside the network there are the decoders of videos with `source_pixels` in all, twice those of a view whose lens
    is undone, and what the run itself holds of a chunk and of the one that is written meanwhile. The pictures are
    drawn afterwards, from some frames that are decoded again.
    """
    decoders = source_pixels * _DECODER_BYTES
    chunks = _HEAP_SHARE * (network + extent.num_held_pixels * _PIPELINE_BYTES) + decoders
    drawing = _SHARE_KEPT * chunks + _PREVIEW_BYTES + decoders if preview else 0.0
    return _LIBRARY_BYTES + int(max(chunks, drawing))
