"""A synthetic capture: a real `Scene` whose frames are rendered when read, and the true `Predictions` for it."""

import dataclasses
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import torch
from jaxtyping import Bool, Float, UInt8
from numpy.typing import NDArray
from torch import Tensor

from page4d.conventions import Scale
from page4d.errors import UsageError
from page4d.geometry.camera import Cameras
from page4d.geometry.pixels import PixelTransform, fit_views
from page4d.predictions import Predictions
from page4d.scene.records import Clock, Scene, View, ViewCamera
from page4d.synthetic.appearance import Appearance, develop, plain_appearance, sample_appearance
from page4d.synthetic.blueprint import build_world
from page4d.synthetic.camera_rigs import SceneFamily, Subject, build_rig, sample_shot
from page4d.synthetic.flow import Flow, exact_flow
from page4d.synthetic.furnish import sample_plan
from page4d.synthetic.render import render
from page4d.synthetic.rig import Rig
from page4d.synthetic.rng import Dice
from page4d.synthetic.rolling import render_rolling
from page4d.synthetic.source import RenderedSource
from page4d.synthetic.world import World


@dataclass(frozen=True, kw_only=True)
class SyntheticCapture:
    """A scene filmed by V cameras at T instants, all of it a function of these few numbers.

    `image_size` is (height, width); with `mixed_sizes` other views may have smaller or upright images. Frame i is
    taken at i / fps seconds, its rows over `readout_s` seconds about that. `spacing_deg` between neighbouring cameras
    and `subject` are drawn from the seed unless given. `photometric` lets cameras differ in exposure, colour, noise
    and sharpness. `supersample` squared rays make up the colour of pixels at edges. The cameras' world is the
    synthetic world itself: metres, x right, y down, z forward, the floor at y = 0.

    Raises:
        UsageError: for numbers that leave nothing to film.
    """

    seed: int = 0
    family: SceneFamily = SceneFamily.ARC
    subject: Subject | None = None
    outdoors: bool = False
    num_views: int = 4
    num_times: int = 24
    image_size: tuple[int, int] = (240, 320)
    mixed_sizes: bool = False
    fps: float = 12.0
    spacing_deg: float | None = None
    moving_cameras: bool = False
    photometric: bool = False
    readout_s: float = 0.0
    supersample: int = 1

    def __post_init__(self) -> None:
        smallest = min(self.num_views, self.num_times, self.supersample, *self.image_size)
        rates = 0 < self.fps < float("inf") and 0 <= self.readout_s < float("inf")
        if self.seed < 0 or smallest < 1 or not rates:
            raise UsageError(
                f"a synthetic capture of {dataclasses.asdict(self)}",
                "give a seed of at least 0, and at least one view, frame, pixel and frame per second",
            )
        if self.family is SceneFamily.SINGLE and self.num_views > 1:
            raise UsageError(f"{self.num_views} views of the family 'single'", "ask for one view")

    @cached_property
    def _made(self) -> tuple[World, Rig]:
        spacing = None if self.spacing_deg is None else (self.spacing_deg, self.spacing_deg)
        shot = sample_shot(self.seed, self.family, self.num_views, spacing, float(self.moving_cameras), self.subject)
        plan = sample_plan(self.seed, shot, outdoor_probability=float(self.outdoors))
        return build_world([plan]), build_rig([shot])

    @property
    def world(self) -> World:
        """What is filmed, as a batch of one."""
        return self._made[0]

    @property
    def rig(self) -> Rig:
        """The cameras around it, as a batch of one."""
        return self._made[1]

    @property
    def view_names(self) -> tuple[str, ...]:
        """Names of the views in order: cam01, cam02, ..."""
        return tuple(f"cam{view + 1:02d}" for view in range(self.num_views))

    @cached_property
    def view_sizes(self) -> tuple[tuple[int, int], ...]:
        """Height and width of the images of every view."""
        height, width = self.image_size
        less = (height * 3 // 8 * 2, width * 3 // 8 * 2)
        choices = (
            [self.image_size, (width, height), less, (height, less[1])] if self.mixed_sizes else [self.image_size]
        )
        dice = Dice(self.seed, "sizes")
        return (self.image_size, *(dice.pick(choices) for _ in range(self.num_views - 1)))

    @property
    def times(self) -> NDArray[np.float64]:
        """Time of every frame in seconds."""
        return np.arange(self.num_times, dtype=np.float64) / self.fps

    @cached_property
    def cameras(self) -> Cameras:
        """The true cameras [T, V] in float64, at the pixels of the videos.

        Raises:
            UsageError: if views differ in size; ask for `cameras_of` a view then.
        """
        if len(set(self.view_sizes)) > 1:
            raise UsageError(
                f"{self.num_views} views of {len(set(self.view_sizes))} sizes", "take one view at a time"
            )
        return self.rig.cameras(torch.from_numpy(self.times)[None], self.image_size)[0]

    def cameras_of(self, view: int) -> Cameras:
        """Return the true cameras [T] of a view in float64, at the pixels of its video."""
        return self.rig.cameras(torch.from_numpy(self.times)[None], self.view_sizes[view])[0, :, view]

    @cached_property
    def _appearance(self) -> Appearance:
        return (
            (sample_appearance([self.seed], self.num_views))
            if self.photometric
            else plain_appearance(1, self.num_views)
        )

    def rendered(self, time: int, view: int, pixels: PixelTransform | None = None) -> "Frame":
        """Render one frame, or with `pixels` the same view directly on a network's canvas."""
        at = torch.from_numpy(self.times)[None, time : time + 1]
        rig = Rig(**{name: value[:, view : view + 1] for name, value in vars(self.rig).items()})
        if pixels is not None:
            seen = render(
                self.world,
                _on_canvas(self.cameras_of(view)[None, time : time + 1, None], pixels),
                at,
                supersample=self.supersample,
            )
        elif self.readout_s:
            seen = render_rolling(
                self.world, rig, at, self.view_sizes[view], self.readout_s, supersample=self.supersample
            )
        else:
            seen = render(self.world, rig.cameras(at, self.view_sizes[view]), at, supersample=self.supersample)
        look = Appearance(**{name: value[:, view : view + 1] for name, value in vars(self._appearance).items()})
        image = develop(seen.light, look, [self.seed], first_frame=time, first_view=view)
        return Frame(
            image=image[0, 0, 0], **{name: getattr(seen, name)[0, 0, 0] for name in ("depth", "dynamic", "objects")}
        )

    def frame(self, time: int, view: int) -> UInt8[np.ndarray, "H W 3"]:
        """Render one frame as RGB pixels."""
        return quantize(self.rendered(time, view).image)

    def flow(self, source: tuple[int, int], target: tuple[int, int]) -> Flow:
        """Follow what is seen in the frame `source` (time, view) to the frame `target`.

        Raises:
            UsageError: if the shutters roll: then an image has no single instant.
        """
        if self.readout_s:
            raise UsageError(f"flow between frames read out over {self.readout_s:g} s", "use a readout of 0")
        seen = self.rendered(*source)
        cameras = tuple(self.cameras_of(view)[time : time + 1] for time, view in (source, target))
        times = torch.from_numpy(self.times)[None, [source[0], target[0]]]
        return exact_flow(self.world, seen.depth[None], seen.objects[None], (cameras[0], cameras[1]), times)

    def scene(self) -> Scene:
        """Return the capture as a scene with true metric cameras; reading a frame renders it."""
        indices = tuple(range(self.num_times))
        views = []
        for view, name in enumerate(self.view_names):
            cameras = self.cameras_of(view)
            poses = cameras.world_to_camera
            camera = ViewCamera(
                world_to_camera=poses[0] if self.rig.is_static else poses, intrinsics=cameras.intrinsics[0]
            )
            source = RenderedSource(
                label=f"{name} (rendered, seed {self.seed})",
                size=self.view_sizes[view],
                frame_times=self.times,
                render=partial(self.frame, view=view),
            )
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
            UsageError: if the range holds no instant of the capture, or views differ in size and no `size` is given.
        """
        stop = self.num_times if stop is None else stop
        if not 0 <= start < stop <= self.num_times:
            raise UsageError(f"instants {start} to {stop} of {self.num_times}", "ask for instants of the capture")
        sizes = list(self.view_sizes)
        if size is None and len(set(sizes)) > 1:
            raise UsageError(f"views of {len(set(sizes))} sizes", "give the size of the network's images")
        if size is None:
            pixels = tuple(PixelTransform(original_size=one, content_size=one, canvas_size=one) for one in sizes)
        else:
            pixels = fit_views(sizes, size, multiple)
        frames = [
            [self.rendered(time, view, None if size is None else pixels[view]) for view in range(self.num_views)]
            for time in range(start, stop)
        ]

        def joined(name: str) -> Tensor:
            return torch.stack([torch.stack([getattr(frame, name) for frame in row]) for row in frames])[None]

        own = [_on_canvas(self.cameras_of(view)[start:stop], pixels[view]) for view in range(self.num_views)]
        depth = joined("depth")
        return Predictions(
            times=torch.from_numpy(self.times[start:stop]),
            view_names=self.view_names,
            scale=Scale.METRIC,
            pixel_transforms=pixels,
            cameras=Cameras(
                world_to_camera=torch.stack([cameras.world_to_camera for cameras in own], dim=1)[None].float(),
                intrinsics=torch.stack([cameras.intrinsics for cameras in own], dim=1)[None].float(),
                image_size=pixels[0].canvas_size,
            ),
            images=torch.round(joined("image") * 255) / 255,
            valid=depth > 0,
            depth=depth,
            depth_confidence=torch.ones_like(depth),
            dynamic=joined("dynamic").to(depth.dtype),
        )


@dataclass(frozen=True, kw_only=True)
class Frame:
    """One rendered frame: RGB in [0, 1], z-depth in metres (0 in the sky), what moves, and object numbers.

    With a rolling shutter depth and motion of a row are those of the row's own instant and camera.
    """

    image: Float[Tensor, "3 H W"]
    depth: Float[Tensor, "H W"]
    dynamic: Bool[Tensor, "H W"]
    objects: Tensor


def quantize(image: Float[Tensor, "3 H W"]) -> UInt8[np.ndarray, "H W 3"]:
    """Round RGB values to the 256 levels of a video."""
    return np.ascontiguousarray(torch.round(image * 255).to(torch.uint8).movedim(-3, -1).numpy())


def _on_canvas(cameras: Cameras, pixels: PixelTransform) -> Cameras:
    """Carry cameras from the pixels of the video to those of a canvas."""
    return dataclasses.replace(
        cameras, intrinsics=pixels.intrinsics_to_network(cameras.intrinsics), image_size=pixels.canvas_size
    )
