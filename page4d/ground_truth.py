"""Ground truth of rendered captures and of captures with depth sensors."""

from dataclasses import dataclass

from jaxtyping import Bool, Float
from torch import Tensor

from page4d.errors import ShapeError
from page4d.geometry.camera import Cameras


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
