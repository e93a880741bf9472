"""The plan of a run, made before a frame is decoded: image sizes, chunks, world, expected memory and disk space."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import torch
from numpy.typing import NDArray

from page4d.choices import DepthSize, Poses, Preprocess
from page4d.conventions import Scale
from page4d.errors import Notice, UsageError
from page4d.formats.ply import offset_text
from page4d.geometry.alignment import baseline_ratio
from page4d.geometry.pixels import PixelTransform, Size, fit_views, shared_canvas
from page4d.geometry.transforms import camera_centers
from page4d.installation import load_open3d, require_open3d
from page4d.motion.flow import MIN_SIDE
from page4d.options import ReconstructSettings
from page4d.output.points import MAX_VIEWS
from page4d.output.record import NetworkRecord, SourceRecord, source_record
from page4d.rig.people.model import is_fetched, is_runnable, model_sha256
from page4d.run.chunks import MAX_DEFAULT_LENGTH, Chunk, choose_chunks, plan_chunks
from page4d.run.memory import Forecast, MemoryLimit, NetworkCost, usable_bytes, used_bytes
from page4d.run.predictor import CAMERAS_HINT, MeasuredDepth, NetworkPredictor, Predictor, network_transforms
from page4d.run.scene_evidence import SceneEvidence, evidence_of
from page4d.run.stages.world import World
from page4d.scene.images import ImageFolderSource
from page4d.scene.point_tracks import PointTracks, read_point_tracks
from page4d.scene.records import Scene, View, place_pictures
from page4d.stereo.background import Background

_MAP_BYTES = 4
_POINT_BYTES = 21
_NORMAL_BYTES = 12
_VELOCITY_BYTES = 16
_MOTION_BYTES = 8
_MESH_BYTES = 53
"""Maximum bytes on disk per pixel: 16 + 8 + 8 bits in three PNG files, a point of the cloud, its normal and its
velocity, 4 times 16 bits in two PNG files of velocities, and a vertex and two triangles of the mesh."""

_VISIBLE_STRETCH = 1.1

_OVERLAP, _OVERLAP_KNOWN_CAMERAS = 2, 1
"""Instants that chunks share by default: known cameras align chunks, so that these only blend and compare them."""


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """Plan of a run: scene, image sizes, chunks, world, memory forecast and disk space.

    `scene` has metric cameras if a known length gives its calibration a unit, and the cameras of registered views.
    `fine_transforms` place images at the pixels of depth and clouds, None for those of the network, and
    `motion_transforms` those whose flow is measured, None without motion.
    `point_tracks` are 2D tracks of the views, empty without. The only chunk of known static cameras is predicted
    `pass_length` instants at a time, None for all at once. `background` is that of the instants before the first
    chunk, once it is predicted.
    `bytes_on_disk` is an upper bound for points and maps.
    """

    scene: Scene
    evidence: SceneEvidence
    predictor: Predictor
    settings: ReconstructSettings
    world: World
    transforms: tuple[PixelTransform, ...]
    fine_transforms: tuple[PixelTransform, ...] | None
    motion_transforms: tuple[PixelTransform, ...] | None
    point_tracks: tuple[PointTracks | None, ...]
    chunks: tuple[Chunk, ...]
    overlap: int
    forecast: Forecast
    memory_limit: MemoryLimit
    bytes_on_disk: int
    notices: tuple[Notice, ...] = ()
    pass_length: int | None = None
    background: Background | None = None

    @property
    def map_transforms(self) -> tuple[PixelTransform, ...]:
        """Placement of the images at the pixels of maps and clouds."""
        return self.fine_transforms or self.transforms

    @property
    def has_motion(self) -> bool:
        """Whether the result has motion: of several instants, or from masks."""
        return self.scene.num_times > 1 or self.scene.has_motion_masks

    @property
    def network(self) -> NetworkRecord:
        """The record of the network, without that of motion masks where all are given, or one instant has none."""
        record, borrows = self.predictor.record, self.scene.num_times > 1 and not self.scene.motion_is_given
        return record if borrows else record.model_copy(update={"motion_masks": None})

    @property
    def background_length(self) -> int:
        """Instants from which the background is predicted before the first chunk; 0 if that of chunks is their own.

        Known cameras allow shorter chunks, but not fewer instants: of a synthetic room of 24 instants the background
        has an error of 2.5, 2.6 and 2.8 % if 8, 7 and 6 are fused. They are as many as in chunks of other cameras.
        """
        if len(self.chunks) == 1 or not self.settings.fuse or not isinstance(self.predictor, NetworkPredictor):
            return 0
        longest = max(chunk.length for chunk in self.chunks)
        if not self.world.is_fixed:
            return longest
        length = self.settings.chunk or max(MAX_DEFAULT_LENGTH, 2 * self.overlap)
        overlap = max(self.overlap, min(_OVERLAP, length // 2))
        wanted = max(chunk.length for chunk in plan_chunks(self.scene.num_times, length, overlap))
        return wanted if self.forecast.peak_bytes(wanted) <= self.memory_limit.num_bytes else longest

    @property
    def descriptors(self) -> str | None:
        """SHA-256 of the model whose descriptors the refinement under known cameras compares; None without one."""
        return _descriptors(self.scene, self.predictor)

    @property
    def pose_model(self) -> str | None:
        """SHA-256 of the model whose body keypoints give the depth of people; None without."""
        return model_sha256() if _sees_bodies(self.scene, self.predictor, self.world) else None

    @property
    def max_side(self) -> int:
        """Longest side of a network image in pixels."""
        return max(max(transform.canvas_size) for transform in self.transforms)

    @cached_property
    def sources(self) -> tuple[SourceRecord | None, ...]:
        """Files and frames of every view, None for frames that are not read from files; hashed once in a run."""
        return tuple(source_record(view) for view in self.scene.views)


def plan_run(scene: Scene, predictor: Predictor, evidence: SceneEvidence | None = None) -> RunPlan:
    """Plan a run under the predictor's settings.

    `evidence` is that of the scene, with its registration; without one, a rig that the run will register is planned
    as one without cameras.

    Raises:
        UsageError: if the settings do not fit the scene or the predictor.
        InputError: if the height of people is to give the scale, and they do not place the cameras; or if 2D tracks
            cannot be read.
        CapabilityError: if they need Open3D, which cannot be loaded.
        MemoryBudgetError: if the memory that the user allows does not suffice.
    """
    settings = predictor.settings
    evidence = (evidence or evidence_of(scene, settings)).with_cameras()
    scene = evidence.scene
    _check(scene, settings, predictor, is_pending=evidence.is_pending)
    place = partial(network_transforms, predictor)
    if settings.preprocess is Preprocess.NATIVE and not isinstance(predictor, MeasuredDepth):
        transforms = place_pictures(scene.views, place)
    else:  # as a public loader, or at the sensor's pixels
        transforms = place([view.source.size for view in scene.views])
    world = World(
        scene,
        settings.poses,
        predictor_uses_rig=predictor.uses_rig_cameras,
        predicted_scale=predictor.scale,
        distance=evidence.distance,
        scale_source=evidence.scale_source,
    )
    fine = detail_transforms(scene, predictor, transforms, has_cameras=world.is_fixed)
    flow = motion_transforms(scene, settings)
    pass_length = _pass_length(scene, predictor, world)
    people = evidence.will_check or evidence.is_pending or _sees_bodies(scene, predictor, world)
    forecast = _forecast(evidence, predictor, transforms, fine, flow, pass_length, people=people and is_fetched())
    limit = MemoryLimit(
        num_bytes=settings.memory_bytes or usable_bytes(predictor.device), is_strict=settings.memory_bytes is not None
    )
    longest = settings.chunk or MAX_DEFAULT_LENGTH
    default = min(_OVERLAP_KNOWN_CAMERAS if world.is_fixed else _OVERLAP, longest // 2)
    overlap = default if settings.overlap is None else settings.overlap
    chunks, warnings = choose_chunks(forecast, limit, settings.chunk, overlap, scene.num_times)
    if len(chunks) > 1 and overlap == 0 and not world.aligns_chunks and not evidence.is_pending:
        cameras = "" if scene.is_calibrated else ", or the rig's cameras with ⟨calibration⟩"
        raise UsageError(
            f"an overlap of 0 leaves {len(chunks)} chunks without shared instants to align them by",
            f"give a larger ⟨overlap⟩ or ⟨chunk⟩{cameras}",
        )
    return RunPlan(
        scene=scene,
        evidence=evidence,
        predictor=predictor,
        settings=settings,
        world=world,
        transforms=transforms,
        fine_transforms=fine,
        motion_transforms=flow,
        point_tracks=() if settings.tracks2d is None else read_point_tracks(settings.tracks2d, scene),
        chunks=chunks,
        overlap=overlap,
        forecast=forecast,
        memory_limit=limit,
        bytes_on_disk=_bytes_on_disk(settings, fine or transforms, scene.num_times),
        notices=(
            *_preprocess_notices(scene, transforms, settings.preprocess),
            *_motion_notices(scene, predictor, chunks),
            *_offset_notices(scene.world_offset),
            *warnings,
        ),
        pass_length=pass_length,
    )


AUTO_SIDE = 512
"""Long side in pixels of the depth of rigs with known cameras, unless the user sets one."""

_MIN_GAIN = 1.2
"""Smallest ratio to the network's size that is worth a refinement by default."""


def detail_transforms(
    scene: Scene, predictor: Predictor, network: Sequence[PixelTransform], *, has_cameras: bool
) -> tuple[PixelTransform, ...] | None:
    """Return the placement of images at the pixels of depth; None for those of the network.

    `has_cameras` is whether the cameras of the result are those of a calibration or of evidence: then fine depth is
    the default, unless another resolution is chosen.

    Raises:
        UsageError: if the requested size does not fit the settings or the predictor.
    """
    settings, size = predictor.settings, predictor.settings.depth_size
    is_measured = isinstance(predictor, MeasuredDepth)
    if size is DepthSize.NETWORK:
        return None
    if size is DepthSize.AUTO:
        if settings.long_side is not None or not settings.fuse or not has_cameras or is_measured:
            return None
        found = _placed(scene, AUTO_SIDE)
        pairs = zip(found, network, strict=True)
        gain = max(max(fine.map_size) / max(coarse.map_size) for fine, coarse in pairs)
        return found if gain >= _MIN_GAIN else None
    if is_measured:
        raise UsageError(
            "⟨depth_size⟩ with measured depth, which keeps its pixels", "pass ⟨long_side⟩ for another one"
        )
    found = _placed(scene, side := None if size is DepthSize.VIDEO else size)
    shares = [max(fine.source.box[2:]) / max(fine.original_size) for fine in found]
    widest = max(round(share * max(coarse.map_size)) for share, coarse in zip(shares, network, strict=True))
    if side is not None and side < widest:
        raise UsageError(
            f"⟨depth_size={side}⟩ is below the network's {widest} px",
            f"pass ⟨long_side={side}⟩, or a larger ⟨depth_size⟩",
        )
    return found


def _placed(scene: Scene, long_side: int | None) -> tuple[PixelTransform, ...]:
    """Resize every view, without its bars, to a long side, at most its own."""

    def placed(sizes: list[Size]) -> list[PixelTransform]:
        return [fit_views([size], min(max(size), long_side or max(size)), 1)[0] for size in sizes]

    return place_pictures(scene.views, placed)


MAX_GAP = 2.5
"""Longest step between instants, in median steps, over which motion is measured."""


def near_steps(times: NDArray[np.float64]) -> list[bool]:
    """Return, per step between consecutive instants, whether it is short enough to measure motion over it."""
    steps = np.diff(times)
    return [bool(step <= MAX_GAP * np.median(steps)) for step in steps]


def motion_transforms(scene: Scene, settings: ReconstructSettings) -> tuple[PixelTransform, ...] | None:
    """Return the placement of the pictures whose flow is computed; None without motion.

    Raises:
        UsageError: if the scene has no motion to measure.
    """
    if not settings.motion:
        return None
    if scene.num_times < 2:
        raise UsageError("⟨motion⟩ with 1 instant, which has no motion", "give at least two instants")
    placed = _placed(scene, settings.motion_size)
    for view, transform in zip(scene.views, placed, strict=True):
        height, width = transform.content_size
        if min(height, width) < MIN_SIDE:
            raise UsageError(
                f"⟨motion⟩ with images of {width}x{height} px in view {view.name}",
                f"give videos, or a ⟨motion_size⟩, of at least {MIN_SIDE} px along both sides",
            )
    return placed


def _descriptors(scene: Scene, predictor: Predictor) -> str | None:
    found = predictor.descriptors if isinstance(predictor, NetworkPredictor) else None
    return found.sha256 if found is not None and scene.num_views > 1 and scene.is_calibrated else None


def _sees_bodies(scene: Scene, predictor: Predictor, world: World) -> bool:
    """Return whether body keypoints give the depth of people, whom several static cameras may show."""
    settings = predictor.settings
    if not (settings.bodies and settings.fuse and world.is_fixed and is_runnable()):
        return False
    if not isinstance(predictor, NetworkPredictor) or len(static_views(scene)) < 2 or scene.num_times == 1:
        return False
    return scene.has_motion_masks or predictor.has_mask_head or predictor.motion is not None


def static_views(scene: Scene) -> tuple[int, ...]:
    """Return the indices of the views with a static camera."""
    cameras = (view.camera for view in scene.views)
    return tuple(index for index, camera in enumerate(cameras) if camera is not None and camera.is_static)


def _bytes_on_disk(settings: ReconstructSettings, maps: tuple[PixelTransform, ...], num_times: int) -> int:
    """Return an upper bound for points and maps."""
    pixels = sum(transform.map_size[0] * transform.map_size[1] for transform in maps)
    points = min(settings.points.max_points or pixels, pixels)
    point_bytes = _POINT_BYTES + _NORMAL_BYTES * settings.points.normals + _VELOCITY_BYTES * settings.motion
    map_bytes = _MAP_BYTES + _MESH_BYTES * settings.mesh + _MOTION_BYTES * settings.motion
    static_bytes, instant_points = 0, points
    if settings.layers:
        static_bytes = points * point_bytes + pixels * _MESH_BYTES * settings.mesh
        instant_points = 2 * points  # all may move
    return num_times * (pixels * map_bytes + instant_points * point_bytes) + static_bytes


def _forecast(
    evidence: SceneEvidence,
    predictor: Predictor,
    transforms: tuple[PixelTransform, ...],
    fine: tuple[PixelTransform, ...] | None,
    flow: tuple[PixelTransform, ...] | None,
    pass_length: int | None,
    *,
    people: bool,
) -> Forecast:
    load_open3d()  # part of the memory in use before the run
    scene, device = evidence.scene, predictor.device
    config = predictor.network.config if isinstance(predictor, NetworkPredictor) else None
    return Forecast(
        views=scene.num_views,
        size=shared_canvas(transforms),
        device=device,
        used_bytes=used_bytes(device),
        cost=None if config is None else NetworkCost(config=config, device=device),
        own_sizes=tuple(transform.canvas_size for transform in transforms),
        source_pixels=sum(_source_pixels(view) for view in scene.views),
        mesh=predictor.settings.mesh,
        preview=predictor.settings.preview,
        num_times=scene.num_times,
        fine_size=None if fine is None else shared_canvas(fine),
        flow_size=None if flow is None else shared_canvas(flow),
        people=people,
        descriptors=_descriptors(scene, predictor) is not None,
        pass_length=pass_length,
    )


_MAX_PASSES = 2
"""Passes of the only chunk of a run; more would keep more instants in memory."""


def _pass_length(scene: Scene, predictor: Predictor, world: World) -> int | None:
    """Return the number of instants of a pass if a chunk can be several passes under known cameras."""
    settings, length = predictor.settings, MAX_DEFAULT_LENGTH
    if settings.chunk is not None or not length < scene.num_times <= _MAX_PASSES * length:
        return None
    refines = isinstance(predictor, NetworkPredictor) and predictor.network.config.matches is not None
    poses = [view.camera.world_to_camera for view in scene.views if view.camera is not None and view.camera.is_static]
    if not (world.is_fixed and refines and settings.refine and settings.fuse) or len(poses) < scene.num_views:
        return None
    centers = camera_centers(torch.stack(poses))
    return None if baseline_ratio(centers, centers) is None else length  # depth has a unit where they are apart


def _preprocess_notices(
    scene: Scene, transforms: tuple[PixelTransform, ...], preprocess: Preprocess
) -> tuple[Notice, ...]:
    if preprocess is Preprocess.NATIVE:
        return ()
    notices = []
    for view, transform in zip(scene.views, transforms, strict=True):
        stretch = max(transform.scale) / min(transform.scale)
        if transform.share_cut > 0:
            loss = f"crops {transform.share_cut:.1%} of {view.name}: its maps are 0 there"
            notices.append(Notice(f"⟨preprocess={preprocess}⟩ {loss}"))
        if stretch > _VISIBLE_STRETCH:
            shape = f"stretches {view.name} by {stretch:.2f} along one side"
            notices.append(Notice(f"⟨preprocess={preprocess}⟩ {shape}"))
    return tuple(notices)


def _motion_notices(scene: Scene, predictor: Predictor, chunks: tuple[Chunk, ...]) -> tuple[Notice, ...]:
    """Warn of chunks of one instant of a longer scene, in which a network has no motion to compare."""
    alone = sum(chunk.length == 1 for chunk in chunks)
    if scene.num_times == 1 or not alone or not isinstance(predictor, NetworkPredictor):
        return ()
    return (Notice(f"{alone} of {len(chunks)} chunks have 1 instant: no motion is estimated there"),)


def _offset_notices(offset: tuple[float, float, float] | None) -> tuple[Notice, ...]:
    """Warn of a world whose coordinates are too large for single precision."""
    if offset is None:
        return ()
    found = f"the cameras are {math.hypot(*offset):.3g} from the origin, too far for coordinates of 7 digits"
    text = f"clouds, meshes and tracks are about the offset {offset_text(offset)} (world_offset in run.json)"
    return (Notice(f"{found}: {text}"),)


def _check(scene: Scene, settings: ReconstructSettings, predictor: Predictor, *, is_pending: bool) -> None:
    """Refuse settings that would fail only when the first chunk is written."""
    for option, is_set in (
        ("⟨outliers⟩", settings.points.outliers),
        ("⟨normals⟩", settings.points.normals),
        ("⟨mesh⟩", settings.mesh),
    ):
        if is_set:
            require_open3d(option)
    if isinstance(predictor, NetworkPredictor) and predictor.uses_rig_cameras and not is_pending:
        _check_rig(scene, settings, predictor)
    if isinstance(predictor, MeasuredDepth) and not is_pending:
        if not scene.is_calibrated:
            raise UsageError("measured depth needs the cameras of all views", f"{CAMERAS_HINT}, or leave views out")
        if scene.scale is not predictor.scene.scale and predictor.scene.scale is Scale.METRIC:
            raise UsageError(
                "measured depth is in metres, and the cameras are not", "give a length with ⟨scale_from⟩"
            )
    if scene.num_views > MAX_VIEWS:
        raise UsageError(
            f"{scene.num_views} views; a point cloud has at most {MAX_VIEWS}",
            "select some with ⟨views⟩, or split the rig",
        )


def _check_rig(scene: Scene, settings: ReconstructSettings, predictor: NetworkPredictor) -> None:
    """Refuse a rig that does not give the cameras, or not their unit, to a network that predicts depth alone."""
    if not scene.is_calibrated:
        raise UsageError("this network predicts depth and no cameras", CAMERAS_HINT)
    if settings.poses is Poses.PREDICTED:
        raise UsageError("⟨poses=predicted⟩ with a network that predicts no cameras", "leave it out")
    if scene.num_views == 1 and all(view.camera is not None and view.camera.is_static for view in scene.views):
        return
    if predictor.scale is not Scale.METRIC:
        raise UsageError(
            "this network predicts the depth of every image in a unit of its own, which does not fit several cameras",
            "use it with one static camera; for several, use da3-metric or an any-view network such as da3-base",
        )
    if scene.scale is not Scale.METRIC:
        raise UsageError(
            "this network predicts depth in metres, the unit of the calibration is unknown",
            "pass ⟨calibration_unit⟩, or a length with ⟨scale_from⟩",
        )


def _source_pixels(view: View) -> int:
    """Return the pixels of a frame that a decoder keeps, none for images; as many more if it is undistorted."""
    height, width = view.source.size
    is_undistorted = view.camera is not None and view.camera.distortion is not None
    return height * width * (is_undistorted + (not isinstance(view.source, ImageFolderSource)))
