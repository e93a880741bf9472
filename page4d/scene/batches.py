"""Decoded frames as a network reads them: resized without stretching, undistorted, masked, decoded once."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from page4d.geometry.camera import Cameras, denormalize_pixels, normalize_pixels, pixel_grid
from page4d.geometry.distortion import Distortion
from page4d.geometry.pixels import PixelTransform, fit_views, shared_canvas
from page4d.geometry.preprocess import Preprocess
from page4d.scene.images import resize
from page4d.scene.published import prepare_pixels, prepare_source
from page4d.scene.records import FrameBatch, FrameReader, Image, MaskMeaning, PairedFrames, Scene, View, ViewCamera

PADDING_RGB = (0.485, 0.456, 0.406)
"""Colour of the padding: the mean that networks of this family subtract, so that padding is zero to them.

Source: the ImageNet mean of the DINOv2 and VGGT code.
"""

PUBLISHED_PADDING_RGB = (1.0, 1.0, 1.0)
"""Colour of the padding in the public VGGT code."""

_STRIP_ROWS = 64
"""Rows of an image whose undistortion is worked out at once: it takes some 20 times the memory of its result."""

UNKNOWN_MOTION = 0.5
"""Probability of motion in a view without masks, beside views that have them: it speaks for neither side."""


@dataclass(frozen=True)
class _Undistortion:
    """Where to read each pixel of the undistorted original image, and which pixels the lens never saw."""

    x: NDArray[np.float32]
    y: NDArray[np.float32]
    seen: NDArray[np.bool_]


@contextmanager
def open_batches(scene: Scene, long_side: int, multiple: int) -> Iterator["BatchReader"]:
    """Open all views for one forward pass over time; images fit `long_side` px, sides are multiples of `multiple`."""
    transforms = fit_views([view.source.size for view in scene.views], long_side, multiple)
    with open_placed_batches(scene, transforms) as reader:
        yield reader


@contextmanager
def open_placed_batches(
    scene: Scene, transforms: tuple[PixelTransform, ...], preprocess: Preprocess = Preprocess.NATIVE
) -> Iterator["BatchReader"]:
    """Open all views for one forward pass over time, each placed by its own transform."""
    with ExitStack() as stack, ThreadPoolExecutor(1, thread_name_prefix="decode") as thread:
        yield BatchReader(scene, transforms, stack, preprocess, thread)


class BatchReader:
    """Reads ranges of instants in order; a decoded instant is held until a range starts behind it."""

    def __init__(
        self,
        scene: Scene,
        transforms: tuple[PixelTransform, ...],
        stack: ExitStack,
        preprocess: Preprocess,
        thread: ThreadPoolExecutor,
    ) -> None:
        self.transforms = transforms
        self._scene = scene
        self._preprocess = preprocess
        self._stack = stack
        self._views: list[_OpenView] = []
        self._start = 0
        self._held: list[FrameBatch] = []
        self._thread = thread
        self._ahead: Future[None] | None = None

    def read(self, start: int, stop: int) -> FrameBatch:
        """Return the instants from `start` to before `stop`; `start` must not decrease over calls.

        Raises:
            InputError: if a frame cannot be decoded.
        """
        self._finish_ahead()
        self._release(start)
        self._hold(stop)
        parts, begin = [], self._start
        for part in self._held:
            parts.append(_slice_times(part, 0, max(stop - begin, 0)))
            begin += len(part.times)
        return _concatenate([part for part in parts if len(part.times)])

    def read_ahead(self, stop: int) -> None:
        """Begin to decode up to before `stop` while the caller does something else.

        What fails is decoded once more, and fails, when it is read.
        """
        self._finish_ahead()
        self._ahead = self._thread.submit(self._hold, stop)

    def _finish_ahead(self) -> None:
        if self._ahead is not None:
            wait([self._ahead])
            self._ahead = None

    def _release(self, start: int) -> None:
        """Forget what comes before an instant."""
        while self._held and self._start + len(self._held[0].times) <= start:
            self._start += len(self._held.pop(0).times)
        if self._held:
            self._held[0] = _slice_times(self._held[0], start - self._start, len(self._held[0].times))
        self._start = start

    def _hold(self, stop: int) -> None:
        """Decode what is not held yet of the instants before `stop`."""
        held_stop = self._start + sum(len(part.times) for part in self._held)
        if stop > held_stop:
            self._held.append(self._decode(held_stop, stop))

    def _open_views(self) -> list["_OpenView"]:
        self._stack.close()
        pairs = zip(self._scene.views, self.transforms, strict=True)
        return [_OpenView(self._stack, view, transform, self._scene, self._preprocess) for view, transform in pairs]

    def _decode(self, start: int, stop: int) -> FrameBatch:
        # Decoders that a failure (memory) leaves at different frames cannot go back: they are opened again.
        views, self._views = self._views or self._open_views(), []
        batch = self._decode_with(views, start, stop)
        self._views = views
        return batch

    def _decode_with(self, views: list["_OpenView"], start: int, stop: int) -> FrameBatch:
        frames = [view.read(start, stop) for view in views]
        size = shared_canvas(self.transforms)

        def stacked(maps: list[Tensor | None], unknown: float) -> Tensor | None:
            if all(part is None for part in maps):
                return None
            filler = torch.full((stop - start, *size), unknown)
            return torch.stack([filler if part is None else _on_canvas_of(part, size) for part in maps], dim=1)[None]

        return FrameBatch(
            times=torch.from_numpy(self._scene.times[start:stop].copy()),
            view_names=self._scene.view_names,
            pixel_transforms=self.transforms,
            images=torch.stack([_on_canvas_of(view.images, size) for view in frames], dim=1)[None],
            valid=torch.stack([_on_canvas_of(view.valid, size) for view in frames], dim=1)[None],
            dynamic=stacked([view.dynamic for view in frames], UNKNOWN_MOTION),
            depth=stacked([view.depth for view in frames], 0.0),
            cameras=scene_cameras(self._scene, self.transforms, start, stop),
        )


def scene_cameras(scene: Scene, transforms: Sequence[PixelTransform], start: int, stop: int) -> Cameras | None:
    """Return the calibrated cameras [1, T, V] at network pixels, or None unless every view has one."""
    cameras = [view.camera for view in scene.views if view.camera is not None]
    if len(cameras) < scene.num_views:
        return None
    poses = [_poses(camera, start, stop) for camera in cameras]
    intrinsics = [
        transform.intrinsics_to_network(camera.intrinsics).expand(stop - start, 3, 3)
        for camera, transform in zip(cameras, transforms, strict=True)
    ]
    return Cameras(
        world_to_camera=torch.stack(poses, dim=1)[None],
        intrinsics=torch.stack(intrinsics, dim=1)[None],
        image_size=shared_canvas(transforms),
    )


def _on_canvas_of(maps: Tensor, size: tuple[int, int]) -> Tensor:
    """Put maps [..., h, w] at the top left of a canvas that views of different sizes share; zero is around them."""
    below, right = size[0] - maps.shape[-2], size[1] - maps.shape[-1]
    return functional.pad(maps, (0, right, 0, below)) if below or right else maps


def _poses(camera: ViewCamera, start: int, stop: int) -> Tensor:
    if camera.world_to_camera.ndim == 2:
        return camera.world_to_camera.expand(stop - start, 4, 4)
    return camera.world_to_camera[start:stop]


@dataclass(frozen=True)
class _ViewFrames:
    """One view's part of a batch: images [T, 3, H, W], maps [T, H, W]."""

    images: Tensor
    valid: Tensor
    dynamic: Tensor | None = None
    depth: Tensor | None = None


class _OpenView:
    """One view's decoders, with everything that is the same for all of its frames worked out once."""

    def __init__(
        self, stack: ExitStack, view: View, transform: PixelTransform, scene: Scene, preprocess: Preprocess
    ) -> None:
        self._view = view
        self._transform = transform
        self._scene = scene
        self._preprocess = preprocess
        self._undistortion = _undistortion(view)
        # With distortion the frame is remapped at its original size first, and published ways resample it themselves.
        source = prepare_source(view.source, preprocess)
        resized = preprocess is Preprocess.NATIVE and self._undistortion is None
        size = transform.content_size if resized else source.size
        self._reader: FrameReader = stack.enter_context(source.open(size))
        self._masks = stack.enter_context(view.mask.frames.open()) if view.mask else None
        self._depths = stack.enter_context(view.depth.frames.open()) if view.depth else None
        self._seen = self._content_seen()

    def read(self, start: int, stop: int) -> _ViewFrames:
        """Decode the instants from `start` to before `stop`."""
        height, width = self._transform.canvas_size
        count = stop - start
        padding = PADDING_RGB if self._preprocess is Preprocess.NATIVE else PUBLISHED_PADDING_RGB
        images = torch.tensor(padding).reshape(1, 3, 1, 1).repeat(count, 1, height, width)
        valid = self._seen.expand(count, height, width).clone()
        for place, pixels in enumerate(self._reader.read(self._view.indices[start:stop])):
            ideal = self._remap(pixels, cv2.INTER_LINEAR)
            scaled = self._on_canvas(prepare_pixels(ideal, self._transform.content_size, self._preprocess))
            values = torch.from_numpy(scaled.astype(np.float32) / np.iinfo(scaled.dtype).max)
            images[place, :, self._transform.rows, self._transform.columns] = values.permute(2, 0, 1)
        depth = self._read_maps(self._depths, self._view.depth, self._to_depth, start, stop)
        marked = self._read_maps(self._masks, self._view.mask, self._to_mask, start, stop)
        if marked is None or self._scene.mask_meaning is MaskMeaning.DYNAMIC:
            return _ViewFrames(images, valid, marked, depth)
        # One marked pixel is enough to spoil a network pixel, and one unmarked pixel to fail to keep it.
        ignored = marked > 0 if self._scene.mask_meaning is MaskMeaning.IGNORE else marked < 1
        return _ViewFrames(images, valid & ~ignored, None, depth)

    def _read_maps(
        self,
        reader: FrameReader | None,
        paired: PairedFrames | None,
        convert: Callable[[Image], Image],
        start: int,
        stop: int,
    ) -> Tensor | None:
        if reader is None or paired is None:
            return None
        maps = torch.zeros(stop - start, *self._transform.canvas_size)
        for place, pixels in enumerate(reader.read(paired.indices[start:stop])):
            on_canvas = torch.from_numpy(self._on_canvas(convert(pixels)))
            maps[place, self._transform.rows, self._transform.columns] = on_canvas
        return maps

    def _on_canvas(self, content: Image) -> Image:
        """Cut away what is not on the canvas."""
        return content[self._transform.content_rows, self._transform.content_columns]

    def _to_mask(self, pixels: Image) -> Image:
        flat = pixels if pixels.ndim == 2 else pixels.max(axis=2)
        marked = (flat > np.iinfo(flat.dtype).max // 2).astype(np.uint8) * 255
        if self._undistortion is not None:
            marked = self._remap(resize(marked, self._view.source.size, nearest=True), cv2.INTER_NEAREST)
        return resize(marked, self._transform.content_size) / np.float32(255)

    def _to_depth(self, pixels: Image) -> Image:
        """Take the measurement nearest to each pixel's centre: a mean across an edge would float in the air."""
        flat = (pixels if pixels.ndim == 2 else pixels[..., 0]).astype(np.float32) / self._scene.depth_levels
        if self._undistortion is not None:
            flat = self._remap(resize(flat, self._view.source.size, nearest=True), cv2.INTER_NEAREST)
        return resize(flat, self._transform.content_size, nearest=True)

    def _remap(self, pixels: Image, interpolation: int) -> Image:
        if self._undistortion is None:
            return pixels
        return cv2.remap(pixels, self._undistortion.x, self._undistortion.y, interpolation)

    def _content_seen(self) -> Tensor:
        mask = self._transform.content_mask()
        if self._undistortion is not None:
            seen = resize(self._undistortion.seen.astype(np.uint8) * 255, self._transform.content_size)
            mask[self._transform.rows, self._transform.columns] = torch.from_numpy(self._on_canvas(seen == 255))
        return mask


def _undistortion(view: View) -> _Undistortion | None:
    """Work out, for every pixel of the ideal image, where the lens put it (pixel centres at 0.5, OpenCV's at 0)."""
    camera = view.camera
    if camera is None or camera.distortion is None:
        return None
    height, width = view.source.size
    strips = [
        _shown(camera, camera.distortion, range(row, min(row + _STRIP_ROWS, height)), (height, width))
        for row in range(0, height, _STRIP_ROWS)
    ]
    x, y, seen = (torch.cat(parts) for parts in zip(*strips, strict=True))
    return _Undistortion(x.numpy(), y.numpy(), seen.numpy())


def _shown(
    camera: ViewCamera, distortion: Distortion, rows: range, size: tuple[int, int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return of some rows where to read each pixel, x and y, and whether the lens saw it."""
    height, width = size
    grid = pixel_grid(len(rows), width)
    grid[..., 1] += rows.start
    intrinsics = camera.intrinsics.to(grid)  # single precision places a pixel of 8K footage to 0.001 px
    ideal = normalize_pixels(grid, intrinsics)
    shown = denormalize_pixels(distortion.distort(ideal), intrinsics)
    inside = (shown >= 0).all(-1) & (shown[..., 0] <= width) & (shown[..., 1] <= height)
    seen = inside & distortion.in_domain(ideal)
    # Half a pixel along the border is seen by the sensor but has no neighbour to mix with.
    x, y = (shown - 0.5).clamp(min=shown.new_zeros(2), max=shown.new_tensor([width - 1, height - 1])).unbind(-1)
    outside = torch.tensor(-1e4)
    return torch.where(seen, x, outside), torch.where(seen, y, outside), seen


def _slice_times(batch: FrameBatch, start: int, stop: int) -> FrameBatch:
    cut = slice(start, stop)
    return replace(
        batch,
        times=batch.times[cut],
        images=batch.images[:, cut],
        valid=batch.valid[:, cut],
        dynamic=None if batch.dynamic is None else batch.dynamic[:, cut],
        depth=None if batch.depth is None else batch.depth[:, cut],
        cameras=None if batch.cameras is None else batch.cameras[:, cut],
    )


def _concatenate(parts: list[FrameBatch]) -> FrameBatch:
    if len(parts) == 1:
        return parts[0]

    def joined(name: str) -> Tensor | None:
        values = [getattr(part, name) for part in parts]
        return None if values[0] is None else torch.cat(values, dim=1)

    cameras = [part.cameras for part in parts if part.cameras is not None]
    maps: dict[str, Any] = {name: joined(name) for name in ("images", "valid", "dynamic", "depth")}
    if cameras:
        maps["cameras"] = replace(
            cameras[0],
            world_to_camera=torch.cat([camera.world_to_camera for camera in cameras], dim=1),
            intrinsics=torch.cat([camera.intrinsics for camera in cameras], dim=1),
        )
    return replace(parts[0], times=torch.cat([part.times for part in parts]), **maps)
