"""What is truly there: the record that synthetic captures and captures with sensors share."""

from dataclasses import dataclass

from jaxtyping import Bool, Float
from torch import Tensor

from page4d.errors import ShapeError
from page4d.geometry.camera import Cameras


@dataclass(frozen=True, kw_only=True)
class GroundTruth:
    """Images of B scenes in [0, 1] with their cameras, depth and motion, all at the same pixels.

    `depth` is z-depth in the unit of the cameras' translations, 0 where it is not known (sky, a sensor's hole).
    `dynamic` is True on things that move during the capture; None if nobody knows. `valid` is False on padding.
    `times` are in seconds.

    Raises:
        ShapeError: if parts are not of the same images.
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
                f"truth for images {tuple(self.images.shape)} with maps {[tuple(part.shape) for part in maps]}, "
                f"cameras {tuple(cameras.world_to_camera.shape)} at {cameras.image_size} px",
                "give every part for the same images",
            )
        if tuple(self.times.shape) != leading[:2]:
            raise ShapeError(f"times {tuple(self.times.shape)} for {leading[:2]} instants", "give one an instant")
