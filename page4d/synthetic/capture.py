"""A synthetic capture: a real `Scene` whose frames are rendered when read, and the true `Predictions` for it."""

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property

import cv2
import numpy as np
import torch
from jaxtyping import UInt8
from numpy.typing import NDArray

from page4d.conventions import Scale
from page4d.errors import UsageError
from page4d.geometry.camera import Cameras
from page4d.geometry.pixels import PixelTransform, fit_views
from page4d.predictions import Predictions
from page4d.scene.records import Clock, FrameReader, Image, Scene, View, ViewCamera
from page4d.synthetic.furnish import sample_world
from page4d.synthetic.render import Rendered, render
from page4d.synthetic.rig import Rig, sample_rig
from page4d.synthetic.world import World


@dataclass(frozen=True, kw_only=True)
class SyntheticCapture:
    """A furnished room filmed by V cameras at T instants, all of it a function of these few numbers.

    `image_size` is (height, width); frame i is taken at i / fps seconds. `spacing_deg` between neighbouring cameras
    is drawn from the seed unless given. `supersample` squared rays make up a pixel's colour. The cameras' world is
    the synthetic world itself: metres, x right, y down, z forward, the floor at y = 0.

    Raises:
        UsageError: for numbers that leave nothing to film.
    """

    seed: int = 0
    num_views: int = 4
    num_times: int = 24
    image_size: tuple[int, int] = (240, 320)
    fps: float = 12.0
    spacing_deg: float | None = None
    moving_cameras: bool = False
    supersample: int = 1

    def __post_init__(self) -> None:
        smallest = min(self.num_views, self.num_times, self.supersample, *self.image_size)
        if self.seed < 0 or smallest < 1 or not 0 < self.fps < float("inf"):
            raise UsageError(
                f"a synthetic capture of {dataclasses.asdict(self)}",
                "give a seed of at least 0, and at least one view, frame, pixel and frame per second",
            )

    @cached_property
    def world(self) -> World:
        """The room and what is in it."""
        return sample_world(self.seed)

    @cached_property
    def rig(self) -> Rig:
        """The cameras around it."""
        return sample_rig(
            self.seed, self.num_views, self.image_size, spacing_deg=self.spacing_deg, moving=self.moving_cameras
        )

    @property
    def view_names(self) -> tuple[str, ...]:
        """Names of the views in order: cam01, cam02, ..."""
        return tuple(f"cam{view + 1:02d}" for view in range(self.num_views))

    @property
    def times(self) -> NDArray[np.float64]:
        """Time of every frame in seconds."""
        return np.arange(self.num_times, dtype=np.float64) / self.fps

    @cached_property
    def cameras(self) -> Cameras:
        """The true cameras [T, V] in float64, at the pixels of the videos."""
        return self.rig.cameras(torch.from_numpy(self.times))

    def rendered(self, time: int, view: int, pixels: PixelTransform | None = None) -> Rendered:
        """Render one frame, or with `pixels` the same view directly on a network's canvas."""
        camera = self.cameras[time, view]
        if pixels is not None:
            camera = _on_canvas(camera, pixels)
        return render(self.world, camera, float(self.times[time]), supersample=self.supersample)

    def frame(self, time: int, view: int) -> UInt8[np.ndarray, "H W 3"]:
        """Render one frame as RGB pixels."""
        return quantize(self.rendered(time, view))

    def scene(self) -> Scene:
        """Return the capture as a scene with true metric cameras; reading a frame renders it."""
        cameras = self.cameras
        indices = tuple(range(self.num_times))
        views = []
        for view, name in enumerate(self.view_names):
            poses = cameras.world_to_camera[:, view]
            camera = ViewCamera(
                world_to_camera=poses[0] if self.rig.is_static else poses, intrinsics=cameras.intrinsics[0, view]
            )
            source = RenderedSource(capture=self, view=view)
            views.append(View(name=name, source=source, clock=Clock(), indices=indices, camera=camera))
        return Scene(
            name=f"synthetic-{self.seed}",
            views=tuple(views),
            times=self.times,
            scale=Scale.METRIC,
            synchronisation="rendered at the same instants",
            calibration="true cameras of the synthetic rig",
        )

    def predictions(
        self, start: int = 0, stop: int | None = None, size: int | None = None, multiple: int = 1
    ) -> Predictions:
        """Return the truth for the instants from `start` to before `stop`, as a perfect network would (B = 1).

        Without `size` pixels are those of the videos, and images hold exactly the frames' levels. With `size`, the
        long side in px, and `multiple`, the patch size, pixels are those of `fit_views`: everything is rendered at
        the network's own intrinsics, so depth is exact there too, and margins show the world instead of padding.

        Raises:
            UsageError: if the range holds no instant of the capture.
        """
        stop = self.num_times if stop is None else stop
        if not 0 <= start < stop <= self.num_times:
            raise UsageError(f"instants {start} to {stop} of {self.num_times}", "ask for instants of the capture")
        sizes = [self.image_size] * self.num_views
        whole = PixelTransform(
            original_size=self.image_size, content_size=self.image_size, canvas_size=self.image_size
        )
        pixels = (whole,) * self.num_views if size is None else fit_views(sizes, size, multiple)
        frames = [
            [self.rendered(time, view, None if size is None else pixels[view]) for view in range(self.num_views)]
            for time in range(start, stop)
        ]

        def joined(name: str) -> torch.Tensor:
            return torch.stack([torch.stack([getattr(frame, name) for frame in row]) for row in frames])[None]

        depth = joined("depth")
        return Predictions(
            times=torch.from_numpy(self.times[start:stop]),
            view_names=self.view_names,
            scale=Scale.METRIC,
            pixel_transforms=pixels,
            cameras=_single_precision(_on_canvas(self.cameras[None, start:stop], pixels[0])),
            images=torch.round(joined("images") * 255) / 255,
            valid=torch.ones_like(depth, dtype=torch.bool),
            depth=depth,
            depth_confidence=torch.ones_like(depth),
            dynamic=joined("dynamic").to(depth.dtype),
        )


@dataclass(frozen=True, kw_only=True)
class RenderedSource:
    """Frames of one view, rendered when they are read: a `FrameSource` without a file."""

    capture: SyntheticCapture
    view: int

    @property
    def label(self) -> str:
        """Name for messages."""
        return f"{self.capture.view_names[self.view]} (rendered, seed {self.capture.seed})"

    @property
    def codec(self) -> str:
        """How the frames are stored: not at all."""
        return "rendered"

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of every frame."""
        return self.capture.image_size

    @property
    def frame_times(self) -> NDArray[np.float64]:
        """Time of every frame in seconds from the first."""
        return self.capture.times

    def open(self, size: tuple[int, int] | None = None) -> AbstractContextManager[FrameReader]:
        """Start reading from the first frame on, resized to `size` (height, width) if given."""
        return nullcontext(_RenderedReader(capture=self.capture, view=self.view, size=size))


@dataclass(frozen=True, kw_only=True)
class _RenderedReader:
    capture: SyntheticCapture
    view: int
    size: tuple[int, int] | None

    def read(self, indices: Sequence[int]) -> Iterator[Image]:
        """Yield the frames with these indices."""
        for index in indices:
            frame = self.capture.frame(index, self.view)
            if self.size is None or self.size == self.capture.image_size:
                yield frame
            else:
                yield np.asarray(cv2.resize(frame, self.size[::-1], interpolation=cv2.INTER_AREA), dtype=np.uint8)


def quantize(rendered: Rendered) -> UInt8[np.ndarray, "H W 3"]:
    """Round the RGB values of one frame to the 256 levels of a video."""
    levels = torch.round(rendered.images * 255).to(torch.uint8)
    return np.ascontiguousarray(levels.movedim(-3, -1).numpy())


def _on_canvas(cameras: Cameras, pixels: PixelTransform) -> Cameras:
    """Carry cameras from the pixels of the video to those of a canvas."""
    return dataclasses.replace(
        cameras, intrinsics=pixels.intrinsics_to_network(cameras.intrinsics), image_size=pixels.canvas_size
    )


def _single_precision(cameras: Cameras) -> Cameras:
    return dataclasses.replace(
        cameras, world_to_camera=cameras.world_to_camera.float(), intrinsics=cameras.intrinsics.float()
    )
