"""What a run will do, worked out before a frame is decoded."""

from dataclasses import dataclass

from page4d.geometry.pixels import PixelTransform, fit_views
from page4d.inference.chunks import Chunk, plan_chunks
from page4d.inference.predict import Predictor
from page4d.inference.settings import ReconstructSettings
from page4d.scene.records import Scene

_MAP_BYTES = 4
_POINT_BYTES = 21
"""What a pixel takes on disk at most: 16 + 8 + 8 bits in three PNG files, and a point of the cloud."""


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """Image sizes, chunks and an upper estimate of the bytes on disk."""

    long_side: int
    transforms: tuple[PixelTransform, ...]
    chunks: tuple[Chunk, ...]
    bytes_on_disk: int


def plan_run(scene: Scene, settings: ReconstructSettings, predictor: Predictor) -> RunPlan:
    """Work out network sizes and chunks.

    Raises:
        UsageError: if the settings do not fit the scene.
    """
    sizes = [view.source.size for view in scene.views]
    native = max(max(size) for size in sizes)
    long_side = settings.long_side or predictor.default_long_side or native
    transforms = fit_views(sizes, long_side, predictor.multiple)
    pixels = sum(transform.content_size[0] * transform.content_size[1] for transform in transforms)
    points = settings.points.max_points or pixels
    return RunPlan(
        long_side=long_side,
        transforms=transforms,
        chunks=plan_chunks(scene.num_times, settings.chunk, settings.overlap),
        bytes_on_disk=scene.num_times * (pixels * _MAP_BYTES + min(points, pixels) * _POINT_BYTES),
    )
