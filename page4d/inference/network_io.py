"""Conversion of batches of frames to inputs of a network, and of its outputs to predictions."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from page4d.conventions import Scale
from page4d.errors import UsageError
from page4d.geometry.camera import Cameras
from page4d.networks.output import NetworkOutput, has_both, is_sky
from page4d.records import Predictions
from page4d.scene.records import FrameBatch

CAMERAS_HINT = "pass --calibration, register the rig with --register, or use a network that predicts cameras"


def views_of(maps: Float[Tensor, "B T V *C H W"], batch: FrameBatch) -> list[Tensor]:
    """Cut every view's canvas out of the common one."""
    sizes: Sequence[tuple[int, int]] = [transform.canvas_size for transform in batch.pixel_transforms]
    return [maps[:, :, view, ..., :height, :width] for view, (height, width) in enumerate(sizes)]


def times_in_frames(times: Float[Tensor, " T"]) -> Float[Tensor, " T"]:
    """Convert times in seconds to frames since the first, in units of the median frame interval."""
    if len(times) < 2:
        return torch.zeros_like(times)
    return (times - times[0]) / times.diff().median()


def predictions_of(batch: FrameBatch, output: NetworkOutput, scale: Scale) -> Predictions:
    """Convert a network's output to predictions in page4d's conventions, in float32 on the CPU.

    A network without a camera head has the calibrated cameras, one without a depth confidence has confidence 1.
    The sky, where it is predicted, has no depth, unless almost everything is sky.
    """
    if output.depth is None:
        raise UsageError("this network predicts no depth", "use weights of a network with a depth head")
    depth_confidence = torch.ones_like(batch.valid, dtype=torch.float32)
    if output.depth_confidence is not None:
        depth_confidence = _unit_confidence(_to_host(output.depth_confidence))
    valid = batch.valid
    if output.sky is not None:
        in_sky = is_sky(_to_host(output.sky))
        valid = valid & ~in_sky if has_both(in_sky[valid]) else valid
    points_confidence = output.points_confidence
    motion = None if output.dynamic is None else _to_host(output.dynamic)
    if motion is not None and len(batch.times) == 1:
        # One instant shows no motion: only external masks are a result.
        motion = torch.zeros_like(motion) if batch.dynamic is None else batch.dynamic
    return Predictions(
        times=batch.times,
        view_names=batch.view_names,
        scale=scale,
        pixel_transforms=batch.pixel_transforms,
        cameras=_cameras(batch, output),
        images=batch.images,
        valid=valid,
        depth=_to_host(output.depth),
        depth_confidence=depth_confidence,
        points=None if output.points is None else _to_host(output.points),
        points_confidence=None if points_confidence is None else _unit_confidence(_to_host(points_confidence)),
        dynamic=batch.dynamic if motion is None else motion,
    )


def _cameras(batch: FrameBatch, output: NetworkOutput) -> Cameras:
    """Return the predicted cameras in float64, or the calibrated ones if the network predicts none."""
    if output.world_to_camera is None or output.intrinsics is None:
        if batch.cameras is None:
            raise UsageError("this network predicts no cameras", CAMERAS_HINT)
        return batch.cameras
    return Cameras(
        world_to_camera=output.world_to_camera.detach().to("cpu", torch.float64),
        intrinsics=output.intrinsics.detach().to("cpu", torch.float64),
        image_size=(batch.images.shape[-2], batch.images.shape[-1]),
    )


def _to_host(values: Tensor) -> Tensor:
    return values.detach().to("cpu", torch.float32).clone()


def _unit_confidence(raw: Tensor) -> Tensor:
    """Map 1 + exp(x) to sigmoid(x) in [0, 1), so that thresholds are comparable between networks."""
    return 1 - 1 / raw
