"""Batches of network input: frames decoded once, undistorted, resized, padded and masked."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor
from torch.nn import functional

from page4d.choices import MaskMeaning, Preprocess
from page4d.conventions import IMAGE_MEAN, Scale
from page4d.errors import Notice
from page4d.geometry.camera import Cameras
from page4d.geometry.pixels import PixelTransform, fit_views, shared_canvas
from page4d.geometry.time_axis import join_times, slice_times
from page4d.geometry.transforms import camera_centers
from page4d.geometry.warp import measure_agreement
from page4d.scene.content import FAULTS, Fault, SmallCopy, frame_faults, small_copy
from page4d.scene.image_file import Image
from page4d.scene.images import ImageFolderSource, UndistortionMap, resample, resize, undistortion_map
from page4d.scene.sidecar_values import depth_levels, marked_pixels

if TYPE_CHECKING:
    from page4d.scene.records import FrameReader, FrameSource, PairedFrames, Scene, View

PADDING_RGB = IMAGE_MEAN
"""Colour of the padding, so that normalized padding is zero."""

PUBLISHED_PADDING_RGB = (1.0, 1.0, 1.0)
"""Colour of the padding in the public VGGT code."""

_WHITE_RGB = (255, 255, 255)

_UNDISTORTED_SCALE = 3
"""Size of undistorted frames relative to that of the result, at most the original one: with 3, the contrast of fine
detail is 0.96 of that after an undistortion at full size by a Lanczos filter (1 and 2: 0.82 and 0.92)."""

_FACTORS = (1.0, *(value for factor in (2, 4, 5, 8, 10, 100, 1000) for value in (factor, 1 / factor)))
_FARTHEST = 5.0
"""Median depth in distances of the cameras up to which scales are tried: far away, parallel cameras agree at all."""

_COMPARED_SIDE, _COMPARED_STEP, _MIN_AGREEING = 160, 3, 0.4
"""Factors by which units of depth differ, and the share of depth that other views must confirm at one of them, at
least twice that of the depth as given. Of right depth, views of room and tabletop confirm 0.18 to 0.93, and at most
1.3 times that at another factor."""

UNKNOWN_MOTION = 0.5
"""Probability of motion in a view without masks if other views have masks."""


def is_unknown(dynamic: Float[Tensor, "V *T H W"]) -> Bool[Tensor, " V"]:
    """Return the views of whose motion nothing is known at all."""
    return (dynamic == UNKNOWN_MOTION).flatten(1).all(1)


@dataclass(frozen=True, kw_only=True)
class FrameBatch:
    """Decoded frames of T instants as network input.

    `images` are RGB in [0, 1]. `valid` is False on padding, on pixels without data after undistortion or without
    content, and on pixels excluded by masks. `faults` has the codes of frames without content, by `FAULTS`, if the
    scene was sampled. `dynamic` is the probability of motion from masks. `cameras` are
    calibrated cameras at network pixels, None unless every view has one. `depth` is measured z-depth in the unit of
    the calibration, 0 where unknown.

    If the canvases of the views differ in size, each is placed at the top left of a shared canvas [H, W].
    """

    times: Float[Tensor, " T"]
    view_names: tuple[str, ...]
    pixel_transforms: tuple[PixelTransform, ...]
    images: Float[Tensor, "B T V 3 H W"]
    valid: Bool[Tensor, "B T V H W"]
    dynamic: Float[Tensor, "B T V H W"] | None = None
    cameras: Cameras | None = None
    depth: Float[Tensor, "B T V H W"] | None = None
    faults: UInt8[Tensor, "B T V"] | None = None

    @property
    def unmasked(self) -> Bool[Tensor, " V"]:
        """Which views have no masks of motion."""
        if self.dynamic is None:
            return torch.ones(len(self.view_names), dtype=torch.bool, device=self.images.device)
        return is_unknown(self.dynamic[0].transpose(0, 1))


def open_batches(scene: "Scene", long_side: int, multiple: int) -> AbstractContextManager["BatchReader"]:
    """Open all views for one forward pass over time, resized to `long_side` px on a canvas of `fit_views`."""
    return open_placed_batches(scene, fit_views([view.source.size for view in scene.views], long_side, multiple))


@contextmanager
def open_placed_batches(
    scene: "Scene", transforms: tuple[PixelTransform, ...], preprocess: Preprocess = Preprocess.NATIVE
) -> Iterator["BatchReader"]:
    """Open all views for one forward pass over time, each placed by its transform."""
    cores = min(scene.num_views, torch.get_num_threads())
    with (
        ExitStack() as stack,
        ThreadPoolExecutor(cores, thread_name_prefix="view") as views,
        ThreadPoolExecutor(1, thread_name_prefix="decode") as thread,
    ):
        yield BatchReader(scene, transforms, stack, preprocess, thread, views)


class BatchReader:
    """Reader of ranges of instants in order; decoded instants are cached until a range starts after them.

    Instants are decoded in `thread` ahead of time, views side by side in those of `views`.
    """

    def __init__(
        self,
        scene: "Scene",
        transforms: tuple[PixelTransform, ...],
        stack: ExitStack,
        preprocess: Preprocess,
        thread: ThreadPoolExecutor,
        views: ThreadPoolExecutor,
    ) -> None:
        self.transforms = transforms
        self._scene = scene
        self._preprocess = preprocess
        self._stack = stack
        self._views: list[_OpenView] = []
        self._start = 0
        self._cached: list[FrameBatch] = []
        self._thread = thread
        self._view_threads = views
        self._read_ahead: Future[None] | None = None
        self._usual = [view.content for view in scene.views if view.content is not None]
        self._judged = 0
        self._last: list[SmallCopy] = []

    def read(self, start: int, stop: int) -> FrameBatch:
        """Return the instants from `start` to before `stop`; `start` must not decrease over calls.

        Raises:
            InputError: if a frame cannot be decoded.
        """
        self._finish_read_ahead()
        self._discard_before(start)
        self._cache_until(stop)
        parts, begin = [], self._start
        for part in self._cached:
            parts.append(slice_times(part, 0, max(stop - begin, 0)))
            begin += len(part.times)
        return join_times([part for part in parts if len(part.times)])

    def read_ahead(self, stop: int) -> None:
        """Start decoding the instants before `stop` in the background.

        A failure is repeated and raised by the next `read`.
        """
        self._finish_read_ahead()
        self._read_ahead = self._thread.submit(self._cache_until, stop)

    def _finish_read_ahead(self) -> None:
        if self._read_ahead is not None:
            wait([self._read_ahead])
            self._read_ahead = None

    def _discard_before(self, start: int) -> None:
        while self._cached and self._start + len(self._cached[0].times) <= start:
            self._start += len(self._cached.pop(0).times)
        if self._cached:
            self._cached[0] = slice_times(self._cached[0], start - self._start, len(self._cached[0].times))
        self._start = start

    def _cache_until(self, stop: int) -> None:
        """Decode the instants before `stop` that are not cached yet."""
        cached_stop = self._start + sum(len(part.times) for part in self._cached)
        if stop > cached_stop:
            self._cached.append(self._decode(cached_stop, stop))

    def _decode(self, start: int, stop: int) -> FrameBatch:
        # A failure (out of memory) leaves forward decoders at different frames: they are opened again.
        views, self._views = self._views, []
        if not views:
            self._stack.close()
            pairs = zip(self._scene.views, self.transforms, strict=True)
            views = [_OpenView(self._stack, *pair, self._scene, self._preprocess) for pair in pairs]
        batch = self._decode_with(views, start, stop)
        self._views = views
        return batch

    def _decode_with(self, views: list["_OpenView"], start: int, stop: int) -> FrameBatch:
        is_judged = len(self._usual) == len(views)
        if is_judged and start and self._judged != start:
            self._last, self._judged = [view.copy_at(start - 1) for view in views], start
        reading = [self._view_threads.submit(view.read, start, stop) for view in views]
        wait(reading)  # no decoder is at work any more if one of them fails
        frames = [one.result() for one in reading]
        size = shared_canvas(self.transforms)
        valid = torch.stack([_pad_to(view.valid, size) for view in frames], dim=1)[None]
        faults = self._faults([view.copies for view in frames], stop) if is_judged else None
        if faults is not None:
            shows = (faults == 0) | (faults == 1 + FAULTS.index(Fault.REPEATED))
            valid = valid & shows[..., None, None]

        def stacked(maps: list[Tensor | None], unknown: float) -> Tensor | None:
            if all(part is None for part in maps):
                return None
            filler = torch.full((stop - start, *size), unknown)
            return torch.stack([filler if part is None else _pad_to(part, size) for part in maps], dim=1)[None]

        return FrameBatch(
            times=torch.from_numpy(self._scene.times[start:stop].copy()),
            view_names=self._scene.view_names,
            pixel_transforms=self.transforms,
            images=torch.stack([_pad_to(view.images, size) for view in frames], dim=1)[None],
            valid=valid,
            faults=faults,
            dynamic=stacked([view.dynamic for view in frames], UNKNOWN_MOTION),
            depth=stacked([view.depth for view in frames], 0.0),
            cameras=scene_cameras(self._scene, self.transforms, start, stop),
        )

    def _faults(self, copies: list[list[SmallCopy]], stop: int) -> UInt8[Tensor, "one T V"]:
        """Judge the frames that are decoded, whose copies come by view, after those of the last instant."""
        codes = []
        for instant in zip(*copies, strict=True):
            found = frame_faults(instant, self._last or None, self._usual)
            codes.append([0 if fault is None else 1 + FAULTS.index(fault) for fault in found])
            self._last = list(instant)
        self._judged = stop
        return torch.tensor([codes], dtype=torch.uint8)


def scene_cameras(scene: "Scene", transforms: Sequence[PixelTransform], start: int, stop: int) -> Cameras | None:
    """Return the calibrated cameras [1, T, V] at network pixels, or None unless every view has one."""
    cameras = [view.camera for view in scene.views if view.camera is not None]
    if len(cameras) < scene.num_views:
        return None
    poses = [
        camera.world_to_camera.expand(stop - start, 4, 4) if camera.is_static else camera.world_to_camera[start:stop]
        for camera in cameras
    ]
    intrinsics = [
        transform.intrinsics_to_network(camera.intrinsics).expand(stop - start, 3, 3)
        for camera, transform in zip(cameras, transforms, strict=True)
    ]
    return Cameras(
        world_to_camera=torch.stack(poses, dim=1)[None],
        intrinsics=torch.stack(intrinsics, dim=1)[None],
        image_size=shared_canvas(transforms),
    )


def _pad_to(maps: Tensor, size: tuple[int, int]) -> Tensor:
    """Pad maps [..., h, w] with zeros at the bottom and the right to a shared canvas size."""
    below, right = size[0] - maps.shape[-2], size[1] - maps.shape[-1]
    return functional.pad(maps, (0, right, 0, below)) if below or right else maps


@dataclass(frozen=True)
class _ViewFrames:
    """The frames of one view of a batch: images [T, 3, H, W], maps [T, H, W], and T small copies, if judged."""

    images: Tensor
    valid: Tensor
    copies: list[SmallCopy]
    dynamic: Tensor | None = None
    depth: Tensor | None = None


class _OpenView:
    """The decoders of one view, with precomputed undistortion and valid pixels."""

    def __init__(
        self, stack: ExitStack, view: "View", transform: PixelTransform, scene: "Scene", preprocess: Preprocess
    ) -> None:
        self._view = view
        self._transform = transform
        self._scene = scene
        self._preprocess = preprocess
        source = with_background(view.source, preprocess)
        size = self._decoded_size()
        self._undistortion = undistortion_map(view.camera, source.size, size)
        self._reader: FrameReader = stack.enter_context(source.open(size))
        self._masks = stack.enter_context(view.mask.frames.open()) if view.mask else None
        self._depths = stack.enter_context(view.depth.frames.open()) if view.depth else None
        self._valid = self._valid_pixels()

    def _decoded_size(self) -> tuple[int, int]:
        """Return the size to which the decoder resizes frames: more than the result's where they are undistorted.

        The decoder leaves frames as they are of which a part is resampled, or all as in a public loader.
        """
        camera, original, (height, width) = self._view.camera, self._view.source.size, self._transform.content_size
        if self._preprocess is not Preprocess.NATIVE or self._transform.window is not None:
            return original
        if camera is None or camera.distortion is None:
            return height, width
        finer = height * _UNDISTORTED_SCALE, width * _UNDISTORTED_SCALE
        return finer if finer[0] < original[0] and finer[1] < original[1] else original

    @cached_property
    def _map_undistortion(self) -> UndistortionMap | None:
        """That of masks and measured depth, which are sampled and not averaged."""
        return undistortion_map(self._view.camera, self._view.source.size)

    def copy_at(self, instant: int) -> SmallCopy:
        """Decode the small copies of one instant."""
        (pixels,) = self._reader.read([self._view.indices[instant]])
        return small_copy(pixels)

    def read(self, start: int, stop: int) -> _ViewFrames:
        """Decode the instants from `start` to before `stop`."""
        height, width = self._transform.canvas_size
        count = stop - start
        padding = PADDING_RGB if self._preprocess is Preprocess.NATIVE else PUBLISHED_PADDING_RGB
        images = torch.tensor(padding).reshape(1, 3, 1, 1).repeat(count, 1, height, width)
        valid = self._valid.expand(count, height, width).clone()
        copies = []
        for place, pixels in enumerate(self._reader.read(self._view.indices[start:stop])):
            if self._view.content is not None:
                copies.append(small_copy(pixels))
            ideal = pixels if self._undistortion is None else self._undistortion.remap(pixels)
            scaled = self._cropped(resample(self._windowed(ideal), self._transform.content_size, self._preprocess))
            values = torch.from_numpy(scaled.astype(np.float32) / np.iinfo(scaled.dtype).max)
            images[place, :, self._transform.rows, self._transform.columns] = values.permute(2, 0, 1)
        depth = self._read_maps(self._depths, self._view.depth, self._to_depth, start, stop)
        marked = self._read_maps(self._masks, self._view.mask, self._to_mask, start, stop)
        if marked is None or self._scene.mask_meaning is MaskMeaning.DYNAMIC:
            return _ViewFrames(images, valid, copies, marked, depth)
        # A network pixel is ignored if any of its mask pixels is marked, and kept only if all are.
        ignored = marked > 0 if self._scene.mask_meaning is MaskMeaning.IGNORE else marked < 1
        return _ViewFrames(images, valid & ~ignored, copies, None, depth)

    def _read_maps(
        self,
        reader: "FrameReader | None",
        paired: "PairedFrames | None",
        convert: Callable[[Image], Image],
        start: int,
        stop: int,
    ) -> Tensor | None:
        if reader is None or paired is None:
            return None
        maps = torch.zeros(stop - start, *self._transform.canvas_size)
        for place, pixels in enumerate(reader.read(paired.indices[start:stop])):
            on_canvas = torch.from_numpy(self._cropped(convert(pixels)))
            maps[place, self._transform.rows, self._transform.columns] = on_canvas
        return maps

    def _cropped(self, content: Image) -> Image:
        return content[self._transform.content_rows, self._transform.content_columns]

    def _windowed(self, pixels: Image) -> Image:
        """Crop an image of any resolution to the window that is resized."""
        if self._transform.window is None:
            return pixels
        return resize(pixels, self._view.source.size, nearest=True)[self._transform.window.slices]

    def _to_mask(self, pixels: Image) -> Image:
        marked = marked_pixels(pixels).astype(np.uint8) * 255
        return resize(self._windowed(self._undistorted_map(marked)), self._transform.content_size) / np.float32(255)

    def _to_depth(self, pixels: Image) -> Image:
        """Sample the nearest measurement: interpolation across a depth edge would create flying pixels."""
        flat = depth_levels(pixels).astype(np.float32) / self._scene.depth_levels
        return resize(self._windowed(self._undistorted_map(flat)), self._transform.content_size, nearest=True)

    def _undistorted_map(self, flat: Image) -> Image:
        """Resize a mask or depth map to the frame's size and undistort it, if the view has distortion."""
        if self._map_undistortion is None:
            return flat
        return self._map_undistortion.remap(resize(flat, self._view.source.size, nearest=True), nearest=True)

    def _valid_pixels(self) -> Tensor:
        mask = self._transform.content_mask()
        if self._undistortion is not None:
            visible = self._windowed(self._undistortion.visible.astype(np.uint8) * 255)
            visible = resize(visible, self._transform.content_size)
            mask[self._transform.rows, self._transform.columns] = torch.from_numpy(self._cropped(visible == 255))
        if self._view.content is not None and self._view.content.area is not None:
            dead = self._cropped(self._to_mask((~self._view.content.area).astype(np.uint8) * np.uint8(255)))
            mask[self._transform.rows, self._transform.columns] &= torch.from_numpy(dead == 0)
        return mask


def with_background(source: "FrameSource", preprocess: Preprocess) -> "FrameSource":
    """Blend transparent images with white for VGGT and VGGT-Omega.

    Source: their public loaders (reference facts); those of Pi3 and Depth Anything 3 ignore alpha, as page4d does.
    """
    on_white = preprocess in (Preprocess.VGGT_CROP, Preprocess.VGGT_PAD, Preprocess.VGGT_OMEGA)
    return replace(source, background=_WHITE_RGB) if on_white and isinstance(source, ImageFolderSource) else source


def depth_scale_notices(scene: "Scene") -> Iterator[Notice]:
    """Report measured depth that fits the distances between calibrated cameras only after a multiplication."""
    # Another unit of the cameras may follow from ⟨scale_from⟩.
    if scene.scale is not Scale.METRIC or not scene.is_calibrated or scene.num_views < 2:
        return
    with open_batches(scene, _COMPARED_SIDE, 1) as reader:
        batch = reader.read(0, 1)
    if batch.depth is None or batch.cameras is None:
        return
    depth, cameras = batch.depth[0, 0], batch.cameras[0, 0]
    compared = torch.zeros(depth.shape, dtype=torch.bool)
    compared[:, 1::_COMPARED_STEP, 1::_COMPARED_STEP] = depth[:, 1::_COMPARED_STEP, 1::_COMPARED_STEP] > 0
    shares = {}
    centers = camera_centers(cameras.world_to_camera.double())
    distance = (
        float(depth[compared].median()) / max(float(torch.pdist(centers).max()), 1e-12) if compared.any() else 0
    )
    for factor in [factor for factor in _FACTORS if factor == 1 or factor * distance <= _FARTHEST]:
        agreement = measure_agreement(depth * factor, depth > 0, cameras, compared=compared)
        shares[factor] = float((agreement.confirmed[compared] > 0).float().sum() / compared.sum().clamp(min=1))
    best = max(shares, key=lambda factor: shares[factor])
    if shares[best] >= max(_MIN_AGREEING, 2 * shares[1.0]):
        text = f"depth maps of different views agree at {best:g} times their depth ({shares[best]:.0%} of the pixels"
        levels = f"⟨depth_levels={scene.depth_levels / best:g}⟩"
        yield Notice(f"{text}, as given {shares[1.0]:.0%}): pass {levels}, or correct the unit of the calibration")
