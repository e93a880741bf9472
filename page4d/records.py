"""Cameras, depth and motion of a range of instants: predicted, measured or rendered, and true."""

from dataclasses import dataclass, fields, replace
from typing import get_args

from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from page4d.conventions import Scale
from page4d.errors import ShapeError
from page4d.geometry.camera import Cameras, has_depth, world_points
from page4d.geometry.pixels import PixelTransform
from page4d.geometry.time_axis import clone_tensors, slice_times
from page4d.geometry.transforms import Sim3
from page4d.geometry.warp import Agreement


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """Cameras and per-pixel predictions of T instants and V views at network pixels [H, W].

    `images` are the RGB inputs in [0, 1]. `valid` is False on padding and on ignored pixels, where depth is
    undefined. Confidences and `dynamic`, the probability of motion, lie in [0, 1].
    `static` is True where depth is that of a background, fused over instants; None without one.
    `agreement` counts the other views that confirm or contradict each depth; None if views were not compared.
    `velocity` is that of each pixel's point in the world, in units of the scene per second, exactly 0 where the point
    stands still, and `velocity_sigma` the standard deviation of its error; both are 0 where the velocity is unknown.
    `faults` has the codes of frames without content, by `FAULTS` of `page4d/scene/content.py`; None if not judged.
    If the canvases of the views differ in size, each is placed at the top left of [H, W] and the rest is not valid.
    """

    times: Float[Tensor, " T"]
    view_names: tuple[str, ...]
    scale: Scale
    pixel_transforms: tuple[PixelTransform, ...]
    cameras: Cameras
    images: Float[Tensor, "B T V 3 H W"]
    valid: Bool[Tensor, "B T V H W"]
    depth: Float[Tensor, "B T V H W"]
    depth_confidence: Float[Tensor, "B T V H W"]
    dynamic: Float[Tensor, "B T V H W"] | None = None
    static: Bool[Tensor, "B T V H W"] | None = None
    agreement: Agreement | None = None
    velocity: Float[Tensor, "B T V H W 3"] | None = None
    velocity_sigma: Float[Tensor, "B T V H W"] | None = None
    faults: UInt8[Tensor, "B T V"] | None = None

    def __post_init__(self) -> None:
        maps = tuple(self.depth.shape)
        sides = dict(zip("BTVHW", maps, strict=True)) | {"3": 3}
        tensors = {**vars(self), "cameras": self.cameras.world_to_camera[..., 0, 0]}
        if self.agreement is not None:
            tensors["agreement"] = self.agreement.confirmed
        for name, axes in _AXES.items():
            shape = tuple(sides[axis] for axis in axes.split())
            if tensors[name] is not None and (found := tuple(tensors[name].shape)) != shape:
                raise ShapeError(
                    f"predictions: {name} has shape {found}, depth {maps}", f"pass {name} of shape {shape}"
                )
        if not len(self.view_names) == len(self.pixel_transforms) == maps[2]:
            raise ShapeError(
                f"predictions: {len(self.view_names)} names and {len(self.pixel_transforms)} transforms "
                f"for {maps[2]} views",
                "pass one name and one transform per view",
            )

    @property
    def num_times(self) -> int:
        """Number of instants T."""
        return self.depth.shape[1]

    @property
    def known(self) -> Bool[Tensor, "B T V H W"]:
        """Valid pixels with a finite, positive depth."""
        return self.valid & has_depth(self.depth)

    @property
    def shown_views(self) -> list[int]:
        """Views of which most frames have content; all if none has."""
        views = range(len(self.view_names))
        if self.faults is None:
            return list(views)
        shown = ((self.faults[0] > 0).float().mean(dim=0) < 0.5).tolist()
        return [view for view in views if shown[view] or not any(shown)]

    @property
    def view_sizes(self) -> tuple[tuple[int, int], ...]:
        """Canvas size (height, width) of every view."""
        return tuple(transform.canvas_size for transform in self.pixel_transforms)

    def world_points(self) -> Float[Tensor, "B T V H W 3"]:
        """Unproject the depth maps to points in the world."""
        return world_points(self.depth, self.cameras)

    def transformed(self, transform: Sim3) -> "Predictions":
        """Apply a similarity transform of the world consistently to cameras, depth and velocities."""
        poses = self.cameras.world_to_camera
        velocity, sigma = self.velocity, self.velocity_sigma
        return replace(
            self,
            cameras=replace(self.cameras, world_to_camera=transform.like(poses).apply_to_cameras(poses)),
            depth=self.depth * transform.scale.to(self.depth),
            velocity=None if velocity is None else transform.like(velocity).apply_to_vectors(velocity),
            velocity_sigma=None if sigma is None else sigma * transform.scale.to(sigma),
        )

    def at_times(self, start: int, stop: int) -> "Predictions":
        """Return the instants from `start` to before `stop`."""
        return slice_times(self, start, stop)

    def clone(self) -> "Predictions":
        """Copy the tensors, so that a slice does not keep its whole chunk in memory."""
        return clone_tensors(self)


_AXES: dict[str, str] = {
    field.name: kind.dim_str
    for field in fields(Predictions)
    for kind in (field.type, *get_args(field.type))
    if hasattr(kind, "dim_str")
} | {"cameras": "B T V", "agreement": "B T V H W"}
"""Axes of the tensors of predictions."""


@dataclass(frozen=True, kw_only=True)
class GroundTruth:
    """Images of B scenes in [0, 1] with cameras, depth and motion masks on the same pixel grid.

    `depth` is z-depth in the unit of the camera translations, 0 where unknown (sky, sensor holes). `dynamic` is True
    on objects that move during the capture, None if unknown. `valid` is False on padding. `times` are in seconds.

    Raises:
        ShapeError: if the shapes contradict each other.
    """

    images: Float[Tensor, "B T V 3 H W"]
    valid: Bool[Tensor, "B T V H W"]
    depth: Float[Tensor, "B T V H W"]
    dynamic: Bool[Tensor, "B T V H W"] | None
    cameras: Cameras
    times: Float[Tensor, "B T"]

    def __post_init__(self) -> None:
        leading, size = tuple(self.images.shape[:3]), tuple(self.images.shape[4:])
        maps = [self.valid, self.depth, *([] if self.dynamic is None else [self.dynamic])]
        agree = all(tuple(part.shape) == (*leading, *size) for part in maps)
        cameras = self.cameras
        if not agree or tuple(cameras.world_to_camera.shape) != (*leading, 4, 4) or cameras.image_size != size:
            raise ShapeError(
                f"ground truth: images {tuple(self.images.shape)} with maps {[tuple(part.shape) for part in maps]}, "
                f"cameras {tuple(cameras.world_to_camera.shape)} at {cameras.image_size} px",
                "pass maps and cameras of the same images",
            )
        if tuple(self.times.shape) != leading[:2]:
            raise ShapeError(
                f"ground truth: times {tuple(self.times.shape)} for images {leading[:2]}", "pass one time per instant"
            )
