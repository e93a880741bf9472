"""Where predictions come from: a network, or depth that a sensor measured. Both see a batch and return a record."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from page4d.conventions import Scale
from page4d.errors import InputError, UsageError
from page4d.geometry.camera import Cameras
from page4d.models.conditioning import Conditioning, Memory
from page4d.models.network import ViewTimeNetwork
from page4d.models.ood import OODLimits, measure_ood
from page4d.models.output import MixedOutput, NetworkOutput
from page4d.models.size_groups import parts_for_one_size
from page4d.predictions import Predictions
from page4d.refinement.refine import refine_by
from page4d.scene.records import FrameBatch, Scene

PRECISION_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
"""What a precision is called in options and in `run.json`."""

CPU = torch.device("cpu")


class Predicted(NamedTuple):
    """What a predictor says of a batch, and what it wants to be told with the next one."""

    predictions: Predictions
    memory: Memory | None = None
    strange: tuple[str, ...] = ()
    """The names of `OODIndicators` that are worse than is usual on scenes like those of its training."""


class Predictor(Protocol):
    """Turns decoded frames into predictions."""

    @property
    def multiple(self) -> int:
        """What image sides must be divisible by: the side of a patch in pixels."""
        ...

    @property
    def default_long_side(self) -> int | None:
        """Long side of the images in pixels where the user does not say; None for the original size."""
        ...

    @property
    def takes_mixed_sizes(self) -> bool:
        """True if every view may have a size of its own; else all are placed on one canvas."""
        ...

    @property
    def uses_rig_cameras(self) -> bool:
        """True if predictions come with the calibrated cameras, in their world."""
        ...

    @property
    def predicts_points(self) -> bool:
        """True if predictions hold point maps beside depth."""
        ...

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        ...

    @property
    def precision(self) -> torch.dtype:
        """In which arithmetic."""
        ...

    def predict(self, batch: FrameBatch, memory: Memory | None = None) -> Predicted:
        """Predict all instants and views of a batch together; `memory` is what the chunk before left."""
        ...


@dataclass(frozen=True, kw_only=True)
class NetworkPredictor:
    """Runs a network. The trunk may run at lower `precision`; heads, poses and geometry stay in float32.

    With `tells_cameras` a network that can use the calibrated cameras is told them; with `refines` cameras and depth
    are made to agree with the matches that it found, if it looks for any. `domain` is where it is at home.
    """

    network: ViewTimeNetwork
    device: torch.device
    precision: torch.dtype = torch.float32
    uses_rig_cameras: bool = False
    tells_cameras: bool = True
    refines: bool = True
    domain: OODLimits | None = None

    @property
    def multiple(self) -> int:
        """Side of a patch in pixels."""
        return self.network.config.patch_size

    @property
    def default_long_side(self) -> int | None:
        """The size that the network was made for."""
        return self.network.config.encoder.image_size

    @property
    def takes_mixed_sizes(self) -> bool:
        """True unless a part of the network is for images of one size."""
        return not parts_for_one_size(self.network.config)

    @property
    def predicts_points(self) -> bool:
        """True if the network has a point head."""
        return self.network.config.point_head is not None

    def predict(self, batch: FrameBatch, memory: Memory | None = None) -> Predicted:
        """Predict cameras, depth, points, confidence and motion at network pixels."""
        found = self.run(batch, memory)
        strange = () if self.domain is None else self.domain.beyond(measure_ood(found))
        height, width = batch.images.shape[-2:]
        if self.refines:
            found = refine_by(self.network, found, self._images(batch), self._conditioning(batch, None))
        output = found.on_canvas((height, width)) if isinstance(found, MixedOutput) else found
        kept = output.memory and {name: tokens.detach().to("cpu") for name, tokens in output.memory.items()}
        return Predicted(_predictions(batch, output), kept, strange)

    def run(self, batch: FrameBatch, memory: Memory | None = None) -> NetworkOutput | MixedOutput:
        """Return what the network itself says, on its device; views on canvases of their own go in as they are.

        A network without a mask head cannot use external masks; they still say what moves in the result.
        """
        takes_masks = self.network.config.mask is not None
        external = batch.dynamic.to(self.device) if batch.dynamic is not None and takes_masks else None
        reduced = self.precision is not torch.float32
        images, conditioning = self._images(batch), self._conditioning(batch, memory)
        with torch.inference_mode(), torch.autocast(self.device.type, dtype=self.precision, enabled=reduced):
            if isinstance(images, list):
                masks = None if external is None else _each_view(external, _sizes(batch))
                return self.network.forward_mixed(images, masks, conditioning=conditioning)
            output: NetworkOutput = self.network(images, mask_ext=external, conditioning=conditioning)
        return output

    def _images(self, batch: FrameBatch) -> Tensor | list[Tensor]:
        """Return the images on the device; those of every view if their sizes differ."""
        images, sizes = batch.images.to(self.device), _sizes(batch)
        return _each_view(images, sizes) if len(set(sizes)) > 1 else images

    def _conditioning(self, batch: FrameBatch, memory: Memory | None) -> Conditioning:
        """Return what is known besides the images, on the device."""
        cameras = batch.cameras if self.tells_cameras else None
        return Conditioning(
            times=times_in_frames(batch.times).to(self.device)[None],
            memory=memory and {name: tokens.to(self.device) for name, tokens in memory.items()},
            world_to_camera=None if cameras is None else cameras.world_to_camera.to(self.device),
            intrinsics=None if cameras is None else cameras.intrinsics.to(self.device),
        )


def _sizes(batch: FrameBatch) -> list[tuple[int, int]]:
    """Return the (height, width) of every view's own images."""
    return [transform.canvas_size for transform in batch.pixel_transforms]


def _each_view(maps: Float[Tensor, "B T V *C H W"], sizes: Sequence[tuple[int, int]]) -> list[Tensor]:
    """Cut every view's own canvas out of the common one."""
    return [maps[:, :, view, ..., :height, :width] for view, (height, width) in enumerate(sizes)]


def times_in_frames(times: Float[Tensor, " T"]) -> Float[Tensor, " T"]:
    """Count times in seconds from the first one, with the usual distance between two of them as the unit."""
    if len(times) < 2:
        return torch.zeros_like(times)
    return (times - times[0]) / times.diff().median()


def _predictions(batch: FrameBatch, output: NetworkOutput) -> Predictions:
    """Bring a network's output to page4d's conventions, in float32 on the CPU."""
    if output.world_to_camera is None or output.intrinsics is None:
        raise UsageError("this network predicts no cameras", "use weights of a network with a camera head")
    if output.depth is None or output.depth_confidence is None:
        raise UsageError("this network predicts no depth", "use weights of a network with a depth head")
    height, width = batch.images.shape[-2:]
    cameras = Cameras(
        world_to_camera=output.world_to_camera.detach().to("cpu", torch.float64),
        intrinsics=output.intrinsics.detach().to("cpu", torch.float64),
        image_size=(height, width),
    )
    return Predictions(
        times=batch.times,
        view_names=batch.view_names,
        scale=Scale.ARBITRARY,
        pixel_transforms=batch.pixel_transforms,
        cameras=cameras,
        images=batch.images,
        valid=batch.valid,
        depth=_to_host(output.depth),
        depth_confidence=_unit_confidence(_to_host(output.depth_confidence)),
        points=None if output.points is None else _to_host(output.points),
        points_confidence=(
            None if output.points_confidence is None else _unit_confidence(_to_host(output.points_confidence))
        ),
        dynamic=batch.dynamic if output.dynamic is None else _to_host(output.dynamic),
    )


def _to_host(values: Tensor) -> Tensor:
    return values.detach().to("cpu", torch.float32).clone()


def _unit_confidence(raw: Tensor) -> Tensor:
    """Map 1 + exp(x) in [1, inf) to sigmoid(x) in [0, 1), so that a threshold means the same for every network."""
    return 1 - 1 / raw


@dataclass(frozen=True)
class MeasuredDepth:
    """Takes depth from a sensor and cameras from a calibration: no network is run."""

    scene: Scene
    multiple: int = 1
    default_long_side: int | None = None
    takes_mixed_sizes: bool = False
    uses_rig_cameras: bool = True
    predicts_points: bool = False
    device: torch.device = CPU
    precision: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        lacking = [view.name for view in self.scene.views if view.camera is None]
        if lacking:
            raise UsageError("measured depth needs the cameras of all views", "pass --calibration")
        without = [view.name for view in self.scene.views if view.depth is None]
        if without:
            raise InputError(f"no measured depth for {', '.join(without)}", "leave them out with --views")

    def predict(self, batch: FrameBatch, memory: Memory | None = None) -> Predicted:  # noqa: ARG002  a sensor remembers nothing
        """Return the measurements as predictions, with confidence 1 wherever the sensor saw something."""
        assert batch.depth is not None
        assert batch.cameras is not None
        cameras = Cameras(
            world_to_camera=batch.cameras.world_to_camera,
            intrinsics=batch.cameras.intrinsics,
            image_size=batch.cameras.image_size,
        )
        measured = Predictions(
            times=batch.times,
            view_names=batch.view_names,
            scale=self.scene.scale,
            pixel_transforms=batch.pixel_transforms,
            cameras=cameras,
            images=batch.images,
            valid=batch.valid,
            depth=batch.depth,
            depth_confidence=(batch.valid & (batch.depth > 0)).to(torch.float32),
            dynamic=batch.dynamic,
        )
        return Predicted(measured)
