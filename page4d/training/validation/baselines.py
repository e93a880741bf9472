"""What one can say of a scene without looking at it: the least that a network must beat."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from page4d.geometry.camera import Cameras
from page4d.geometry.rigid import invert_rigid, rigid
from page4d.geometry.rotation import mean_rotation
from page4d.ground_truth import GroundTruth
from page4d.training.validation.validation_metrics import Guess


def constant(truth: GroundTruth) -> Guess:
    """Say that everything is equally far, that no camera is turned, and that everything moves."""
    eye = torch.eye(4, dtype=torch.float64, device=truth.depth.device)
    return Guess(
        depth=torch.ones_like(truth.depth),
        world_to_camera=eye.expand(truth.cameras.world_to_camera.shape),
        dynamic=torch.ones_like(truth.valid),
    )


@dataclass(frozen=True, kw_only=True)
class MeanScene:
    """The mean over scenes of one kind, seen through the same number of cameras at the same number of instants.

    Depth is a mean of logarithms, relative to the scene's mean depth; poses are relative to the first camera, in the
    same unit. `focal` is that over the image's diagonal.
    """

    log_depth: Float[Tensor, "T V H W"]
    world_to_camera: Float[Tensor, "T V 4 4"]
    focal: float

    def __call__(self, truth: GroundTruth) -> Guess:
        """Say that every scene is the mean one."""
        shape = truth.depth.shape
        intrinsics = torch.zeros_like(truth.cameras.intrinsics)
        intrinsics[..., 0, 0] = intrinsics[..., 1, 1] = self.focal * _diagonal(truth.cameras)
        intrinsics[..., 2, 2] = 1
        return Guess(
            depth=self.log_depth.exp().to(truth.depth).expand(shape),
            world_to_camera=self.world_to_camera.expand(*shape[:3], 4, 4),
            intrinsics=intrinsics,
        )


def mean_scene(truths: Iterable[GroundTruth]) -> MeanScene:
    """Average scenes of one shape; a pixel whose depth is never known gets the mean depth of its scene."""
    logs, counts, rotations, translations, focals = [], [], [], [], []
    for truth in truths:
        known = (truth.depth > 0) & truth.valid
        number = known.sum((1, 2, 3, 4)).clamp_min(1)
        scale = torch.where(known, truth.depth, 0).sum((1, 2, 3, 4)) / number
        relative = truth.depth / scale.reshape(-1, 1, 1, 1, 1)
        logs.append(torch.where(known, relative.clamp_min(1e-9).log(), 0.0).sum(0).double().cpu())
        counts.append(known.sum(0).cpu())
        cameras = truth.cameras.world_to_camera.double().cpu()
        poses = cameras @ invert_rigid(cameras[:, :1, :1])
        rotations.append(poses[..., :3, :3])
        translations.append(poses[..., :3, 3] / scale.double().cpu().reshape(-1, 1, 1, 1))
        focals.append((truth.cameras.intrinsics[..., 0, 0] / _diagonal(truth.cameras)).mean().double().cpu())
    rotation = mean_rotation(torch.cat(rotations).movedim(0, -3))
    return MeanScene(
        log_depth=torch.stack(logs).sum(0) / torch.stack(counts).sum(0).clamp_min(1),
        world_to_camera=rigid(rotation, torch.cat(translations).mean(0)),
        focal=float(torch.stack(focals).mean()),
    )


def sideways(truth: GroundTruth) -> Guess:
    """Say that every camera stands beside the others, and ask an oracle only whether to the left or to the right.

    That is asked against the first camera; between two others the oracle's answers may disagree.
    """
    cameras = truth.cameras.world_to_camera.double()
    relative = cameras @ invert_rigid(cameras[:, :1, :1])
    guess = torch.eye(4, dtype=torch.float64, device=cameras.device).expand(cameras.shape).clone()
    guess[..., 0, 3] = relative[..., 0, 3]
    return Guess(world_to_camera=guess)


def _diagonal(cameras: Cameras) -> float:
    height, width = cameras.image_size
    return float((height**2 + width**2) ** 0.5)
