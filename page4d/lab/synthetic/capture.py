"""Synthetic captures of one rig, with frames rendered on demand, and batches of random scenes for training.

Depth, cameras and visibility are exact.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Annotated

import cv2
import numpy as np
import torch
from jaxtyping import Bool, Float, UInt8
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from page4d.choices import SceneFamily, Subject
from page4d.conventions import Scale
from page4d.errors import UsageError
from page4d.geometry.camera import Cameras, project
from page4d.geometry.time_axis import to_device
from page4d.geometry.transforms import transform_points
from page4d.io.json_records import config_record
from page4d.lab.synthetic.board import MovingBoard
from page4d.lab.synthetic.furnish import sample_world
from page4d.lab.synthetic.materials import Appearance, develop, plain_appearance, sample_appearance
from page4d.lab.synthetic.rays import RayPackets, cull, occluded
from page4d.lab.synthetic.render import MAX_DEPTH, SHADOW_GAP, render, render_rolling
from page4d.lab.synthetic.rigs import (
    CameraRigs,
    ImageSide,
    NumTimes,
    NumViews,
    RigSpec,
    Rng,
    Seed,
    Spacing,
    build_rig,
    sample_rig,
)
from page4d.lab.synthetic.world import Snapshots, Worlds, WorldSpec, build_world
from page4d.records import GroundTruth
from page4d.rig.board import board_of
from page4d.scene.image_file import Image
from page4d.scene.records import Clock, FrameReader, Scene, View, ViewCamera

_PACKET_SIZE = 64


def visible_points(snapshots: Snapshots, cameras: Cameras, points: Float[Tensor, "B H W 3"]) -> Bool[Tensor, "B H W"]:
    """Return which points project into the image of their camera [B], within `MAX_DEPTH` and unoccluded."""
    pixels, depth = project(transform_points(cameras.world_to_camera, points), cameras.intrinsics)
    height, width = cameras.image_size
    inside = (
        (depth > 0)
        & (depth <= MAX_DEPTH)
        & (pixels >= 0).all(-1)
        & (pixels[..., 0] < width)
        & (pixels[..., 1] < height)
    )
    return inside & ~_occluded(snapshots, cameras.centers, points)


def _occluded(
    snapshots: Snapshots, centers: Float[Tensor, "B 3"], points: Float[Tensor, "B H W 3"]
) -> Bool[Tensor, "B H W"]:
    """Return which points are occluded as seen from the camera centre of their world."""
    rows = points.flatten(1, 2)
    count = rows.shape[1]
    rows = torch.cat([rows, rows[:, -1:].expand(-1, -count % _PACKET_SIZE, -1)], dim=1)
    ray = rows - centers[:, None]
    # Rays end slightly before their point, which avoids self-occlusion by its own surface.
    ray = ray * (1 - SHADOW_GAP / ray.norm(dim=-1, keepdim=True).clamp(min=2 * SHADOW_GAP))
    direction = ray.movedim(-1, 0).unflatten(2, (-1, _PACKET_SIZE))
    instant = torch.arange(len(points), device=points.device).repeat_interleave(direction.shape[2])
    packets = RayPackets(
        instant=instant, origin=centers.T.repeat_interleave(direction.shape[2], 1), direction=direction.flatten(1, 2)
    )
    hidden = occluded(snapshots, packets, cull(snapshots, packets, 1.0))
    return hidden.reshape(len(points), -1)[:, :count].reshape(points.shape[:3])


@config_record("synthetic capture")
class SyntheticCapture:
    """Capture of a random scene by V cameras at T instants, fully determined by these parameters.

    `image_size` is (height, width); with `mixed_sizes` some views are smaller or upright. Frame i is taken at i / fps
    seconds, its rows over `readout_s` seconds centred on that. `spacing_deg` between neighbouring cameras and
    `subject` are drawn from the seed if not given. `photometric` varies exposure, colour, noise and sharpness between
    cameras. The colour of pixels at edges is the mean over `supersample` squared rays. A calibration `board`, as
    for `page4d calibrate`, moves in front of the cameras. Camera poses refer to the synthetic world: metres, x right,
    y down, z forward, the floor at y = 0.
    """

    seed: Seed = 0
    family: SceneFamily = SceneFamily.ARC
    subject: Subject | None = None
    outdoors: bool = False
    num_views: NumViews = 4
    num_times: NumTimes = 24
    image_size: tuple[ImageSide, ImageSide] = (240, 320)
    mixed_sizes: bool = False
    fps: Annotated[float, Field(gt=0, le=1000)] = 12.0
    spacing_deg: Spacing | None = None
    moving_cameras: bool = False
    photometric: bool = False
    readout_s: Annotated[float, Field(ge=0, le=1)] = 0.0
    supersample: Annotated[int, Field(ge=1, le=8)] = 1
    board: str | None = None

    def __post_init__(self) -> None:
        if self.board is not None and self.readout_s:
            raise UsageError("⟨board⟩ with ⟨readout⟩", "leave one of them out")
        if self.family is SceneFamily.SINGLE and self.num_views > 1:
            raise UsageError(f"{self.num_views} views of the family 'single'", "use one view")
        if self._board is not None:
            self._board.check_size(self._rig_spec)

    @cached_property
    def _rig_spec(self) -> RigSpec:
        spacing = None if self.spacing_deg is None else (self.spacing_deg, self.spacing_deg)
        return sample_rig(self.seed, self.family, self.num_views, spacing, float(self.moving_cameras), self.subject)

    @cached_property
    def world(self) -> Worlds:
        """The synthetic world, a batch of one."""
        return build_world([self._world_spec])

    @cached_property
    def _world_spec(self) -> WorldSpec:
        spec = sample_world(self.seed, self._rig_spec, outdoor_probability=float(self.outdoors))
        if self._board is None:
            return spec
        return spec._replace(objects=(*spec.objects, self._board.spec(self._rig_spec, self.num_times / self.fps)))

    @cached_property
    def _board(self) -> MovingBoard | None:
        return None if self.board is None else MovingBoard(board_of(self.board))

    @cached_property
    def rig(self) -> CameraRigs:
        """The true camera rig, a batch of one."""
        return build_rig([self._rig_spec])

    @property
    def view_names(self) -> tuple[str, ...]:
        """View names: cam01, cam02, ..."""
        return tuple(f"cam{view + 1:02d}" for view in range(self.num_views))

    @cached_property
    def view_sizes(self) -> tuple[tuple[int, int], ...]:
        """Image size (height, width) of every view."""
        height, width = self.image_size
        choices = [self.image_size]
        if self.mixed_sizes:
            smaller = (height * 3 // 8 * 2, width * 3 // 8 * 2)
            choices += [(width, height), smaller, (height, smaller[1])]
        rng = Rng(self.seed, "sizes")
        return (self.image_size, *(rng.choice(choices) for _ in range(self.num_views - 1)))

    @property
    def times(self) -> NDArray[np.float64]:
        """Time of every frame in seconds."""
        return np.arange(self.num_times, dtype=np.float64) / self.fps

    @cached_property
    def cameras(self) -> Cameras:
        """The true cameras [T, V] in float64, for the pixels of the videos.

        Raises:
            UsageError: if views differ in size; use `cameras_of` then.
        """
        if len(set(self.view_sizes)) > 1:
            raise UsageError(
                f"{self.num_views} views of {len(set(self.view_sizes))} sizes", "use cameras_of for each view"
            )
        return self.rig.cameras(torch.from_numpy(self.times)[None], self.image_size)[0]

    def cameras_of(self, view: int) -> Cameras:
        """Return the true cameras [T] of a view in float64, for the pixels of its video."""
        return self.rig.cameras(torch.from_numpy(self.times)[None], self.view_sizes[view])[0, :, view]

    @cached_property
    def _appearance(self) -> Appearance:
        draw = partial(sample_appearance, [self.seed]) if self.photometric else partial(plain_appearance, 1)
        return draw(self.num_views)

    def rendered(self, time: int, view: int) -> "RenderedFrame":
        """Render one frame at the pixels of its video."""
        at, size = torch.from_numpy(self.times)[None, time : time + 1], self.view_sizes[view]
        rig = CameraRigs(**{name: value[:, view : view + 1] for name, value in vars(self.rig).items()})
        if self.readout_s:
            rendered = render_rolling(self.world, rig, at, size, self.readout_s, supersample=self.supersample)
        else:
            rendered = render(self.world, rig.cameras(at, size), at, supersample=self.supersample)
        appearance = Appearance(**{name: value[:, view : view + 1] for name, value in vars(self._appearance).items()})
        light = rendered.light
        if self._board is not None:
            number = len(self._world_spec.objects)  # the last one, after the enclosure
            pose = self.world.object_to_world(at)[0, 0, number]
            objects = rendered.objects[0, 0, 0]
            light = self._board.painted(light[0, 0, 0], objects, number, pose, self.cameras_of(view)[time])
            light = light[None, None, None]
        image = develop(light, appearance, [self.seed], first_frame=time, first_view=view)
        maps = {name: getattr(rendered, name)[0, 0, 0] for name in ("depth", "dynamic", "objects")}
        return RenderedFrame(image=image[0, 0, 0], **maps)

    def frame(self, time: int, view: int) -> UInt8[np.ndarray, "H W 3"]:
        """Render one frame as 8-bit RGB."""
        return quantize(self.rendered(time, view).image)

    def scene(self) -> Scene:
        """Return the capture as a scene with true metric cameras; frames are rendered when they are read."""
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


@dataclass(frozen=True, kw_only=True)
class RenderedFrame:
    """Rendered frame: RGB in [0, 1], z-depth in metres (0 in the sky), motion mask and object indices.

    With a rolling shutter, each row has the depth and motion of its own instant and camera pose.
    """

    image: Float[Tensor, "3 H W"]
    depth: Float[Tensor, "H W"]
    dynamic: Bool[Tensor, "H W"]
    objects: Tensor


def quantize(image: Float[Tensor, "3 H W"]) -> UInt8[np.ndarray, "H W 3"]:
    """Quantize RGB in [0, 1] to 8 bits."""
    return np.ascontiguousarray(torch.round(image * 255).to(torch.uint8).movedim(-3, -1).numpy())


@dataclass(frozen=True, kw_only=True)
class RenderedSource:
    """Frames of one view; `render` returns the RGB pixels of a frame given its index.

    `label` names the source in messages, `size` is (height, width), `frame_times` are seconds from the first frame.
    """

    label: str
    size: tuple[int, int]
    frame_times: NDArray[np.float64]
    render: Callable[[int], Image]

    @property
    def codec(self) -> str:
        """Name of the storage format."""
        return "rendered"

    def open(self, size: tuple[int, int] | None = None) -> AbstractContextManager[FrameReader]:
        """Return a reader of frames, resized to `size` (height, width) if given."""
        return nullcontext(dataclasses.replace(self, size=size or self.size))

    def read(self, indices: Sequence[int]) -> Iterator[Image]:
        """Yield the frames at `indices` at the size of this source."""
        for frame in map(self.render, indices):
            if self.size == frame.shape[:2]:
                yield frame
            else:
                yield np.asarray(cv2.resize(frame, self.size[::-1], interpolation=cv2.INTER_AREA), dtype=np.uint8)


_STEPS_S = (0.1, 0.8)
"""Range of the time between two instants of a scene for training."""


@config_record("scene request")
class SceneRequest:
    """Parameters of the scenes to render; everything else is drawn from the seed.

    `image_size` is (height, width). Instants are equidistant. `spacing_deg` (range) replaces the camera spacing of
    the family. HANDHELD cameras always move, others in half of the scenes. `photometric` varies exposure, colour,
    noise and sharpness between cameras.
    """

    family: SceneFamily = SceneFamily.ARC
    num_times: NumTimes = 2
    num_views: NumViews = 4
    image_size: tuple[ImageSide, ImageSide] = (64, 80)
    spacing_deg: tuple[Spacing, Spacing] | None = None
    outdoor_probability: Annotated[float, Field(ge=0, le=1)] = 0.25
    photometric: bool = True


def sample_truth(seeds: Sequence[int], request: SceneRequest, device: torch.device | str = "cpu") -> GroundTruth:
    """Render one scene per seed, with exact depth, motion masks and cameras in single precision.

    A scene does not depend on the other seeds of the batch.
    """
    rigs = [sample_rig(seed, request.family, request.num_views, request.spacing_deg) for seed in seeds]
    world = build_world(
        [sample_world(seed, rig, request.outdoor_probability) for seed, rig in zip(seeds, rigs, strict=True)]
    )
    times = torch.tensor([_times(seed, request) for seed in seeds], dtype=torch.float64)
    cameras = build_rig(rigs).cameras(times, request.image_size).to(device)
    rendered = render(to_device(world, device), cameras, times.to(device))
    count = len(seeds), request.num_views
    look = sample_appearance(seeds, request.num_views) if request.photometric else plain_appearance(*count)
    return GroundTruth(
        images=develop(rendered.light, look, seeds),
        valid=torch.ones_like(rendered.dynamic),
        depth=rendered.depth,
        dynamic=rendered.dynamic,
        cameras=cameras.to(torch.float32),
        times=times.to(device).float(),
    )


def _times(seed: int, request: SceneRequest) -> list[float]:
    rng = Rng(seed, "times")
    first, step = rng.uniform(0, 8), rng.log_uniform(*_STEPS_S)
    return [first + step * index for index in range(request.num_times)]
