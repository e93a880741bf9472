"""What a run will do, worked out before a frame is decoded."""

from collections.abc import Callable
from dataclasses import dataclass

from page4d.errors import UsageError
from page4d.export.points import MOST_VIEWS, PointSource
from page4d.export.run_record import NetworkRecord
from page4d.geometry.pixels import PixelTransform, fit_each_view, shared_canvas
from page4d.geometry.preprocess import Preprocess, place_views
from page4d.inference.chunks import Chunk, plan_chunks
from page4d.inference.forecast import Forecast, MemoryLimit, choose_length
from page4d.inference.memory import usable_bytes, used_bytes
from page4d.inference.metric_scale import known_distance
from page4d.inference.predictor import NetworkPredictor, Predictor
from page4d.inference.probe import network_cost
from page4d.inference.settings import ReconstructSettings
from page4d.inference.world import World
from page4d.scene.records import MaskMeaning, Notice, Scene, View

_MAP_BYTES = 4
_POINT_BYTES = 21
"""What a pixel takes on disk at most: 16 + 8 + 8 bits in three PNG files, and a point of the cloud."""

_VISIBLE_STRETCH = 1.1


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """Image sizes, chunks, what they are expected to take, and at most so many bytes of points and maps on disk."""

    long_side: int
    transforms: tuple[PixelTransform, ...]
    chunks: tuple[Chunk, ...]
    forecast: Forecast
    memory_limit: MemoryLimit
    bytes_on_disk: int
    notices: tuple[Notice, ...] = ()


def plan_run(
    scene: Scene,
    settings: ReconstructSettings,
    predictor: Predictor,
    network: NetworkRecord,
    tell: Callable[[Notice], None] = lambda _: None,
) -> RunPlan:
    """Work out network sizes and chunks; `tell` hears if that takes a while.

    Raises:
        UsageError: if the settings do not fit the scene or the predictor.
        MemoryBudgetError: if the memory that the user allows does not suffice.
    """
    _check(scene, settings, predictor)
    sizes = [view.source.size for view in scene.views]
    native = max(max(size) for size in sizes)
    long_side = settings.long_side or predictor.default_long_side or native
    if settings.preprocess is Preprocess.NATIVE and predictor.takes_mixed_sizes:
        transforms = fit_each_view(sizes, long_side, predictor.multiple)
    else:
        transforms = place_views(settings.preprocess, sizes, long_side, predictor.multiple)
    pixels = sum(transform.content_size[0] * transform.content_size[1] for transform in transforms)
    points = settings.points.max_points or pixels
    forecast = _forecast(scene, transforms, predictor, network, settings.preview, tell)
    limit = MemoryLimit(
        num_bytes=settings.memory_bytes or usable_bytes(predictor.device), is_strict=settings.memory_bytes is not None
    )
    least = max(1, 2 * settings.overlap)
    length, warnings = choose_length(forecast, limit, settings.chunk, least, scene.num_times)
    chunks = plan_chunks(scene.num_times, length, settings.overlap)
    world = World(scene, settings.poses, predictor_uses_rig=predictor.uses_rig_cameras)
    if len(chunks) > 1 and settings.overlap == 0 and not world.is_fixed:
        raise UsageError(
            f"--overlap 0 leaves {len(chunks)} chunks with nothing to join them by",
            "give an overlap, or one chunk for all, or the rig's cameras with --calibration",
        )
    return RunPlan(
        long_side=long_side if settings.preprocess is Preprocess.NATIVE else max(transforms[0].canvas_size),
        transforms=transforms,
        chunks=chunks,
        forecast=forecast,
        memory_limit=limit,
        bytes_on_disk=scene.num_times * (pixels * _MAP_BYTES + min(points, pixels) * _POINT_BYTES),
        notices=(*_losses(scene, transforms, settings.preprocess), *warnings),
    )


def _forecast(
    scene: Scene,
    transforms: tuple[PixelTransform, ...],
    predictor: Predictor,
    network: NetworkRecord,
    preview: bool,
    tell: Callable[[Notice], None],
) -> Forecast:
    """Find out what a chunk takes; a network is measured the first time that a device sees it."""
    used = used_bytes(predictor.device)  # before a measurement, which leaves the process larger once
    cost = None
    if isinstance(predictor, NetworkPredictor):
        masks = any(view.mask is not None for view in scene.views) and scene.mask_meaning is MaskMeaning.DYNAMIC
        cameras = predictor.tells_cameras and all(view.camera is not None for view in scene.views)
        cost = network_cost(predictor, network.sha256, masks=masks, cameras=cameras, tell=tell)
    return Forecast(
        views=scene.num_views,
        size=shared_canvas(transforms),
        device=predictor.device,
        used_bytes=used,
        cost=cost,
        own_sizes=tuple(transform.canvas_size for transform in transforms),
        source_pixels=sum(_source_pixels(view) for view in scene.views),
        preview=preview,
    )


def _losses(scene: Scene, transforms: tuple[PixelTransform, ...], preprocess: Preprocess) -> tuple[Notice, ...]:
    """Say which views are not seen whole, or not in their own shape."""
    if preprocess is Preprocess.NATIVE:
        return ()
    notices = []
    for view, transform in zip(scene.views, transforms, strict=True):
        stretch = max(transform.scale) / min(transform.scale)
        if transform.share_cut > 0:
            lost = f"cuts {transform.share_cut:.1%} of {view.name} away: its maps are 0 there"
            notices.append(Notice(f"--preprocess {preprocess} {lost}"))
        if stretch > _VISIBLE_STRETCH:
            shape = f"stretches {view.name} by {stretch:.2f} along one side"
            notices.append(Notice(f"--preprocess {preprocess} {shape}"))
    return tuple(notices)


def _check(scene: Scene, settings: ReconstructSettings, predictor: Predictor) -> None:
    """Refuse what would fail only when the first chunk is written."""
    if settings.points.source is PointSource.POINTS and not predictor.predicts_points:
        raise UsageError("--points-from points, but only depth is predicted here", "use --points-from depth")
    known_distance(scene, settings.scale_from)
    if scene.num_views > MOST_VIEWS:
        raise UsageError(
            f"{scene.num_views} views; a cloud can name {MOST_VIEWS}", "choose some with --views, or split the rig"
        )


def _source_pixels(view: View) -> int:
    """Return the pixels of a frame, twice if its lens is undone."""
    height, width = view.source.size
    return height * width * (2 if view.camera is not None and view.camera.distortion is not None else 1)
