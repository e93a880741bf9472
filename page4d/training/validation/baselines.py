"""Baseline predictions that use no images: lower bounds for a network."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from page4d.choices import SceneFamily
from page4d.geometry.camera import Cameras
from page4d.geometry.rigid import invert_rigid, rigid
from page4d.geometry.rotation import mean_rotation
from page4d.ground_truth import GroundTruth
from page4d.synthetic.sampler import sample_truth
from page4d.training.validation.held_out import SCENES_PER_BATCH, HeldOutScenes, training_seed
from page4d.training.validation.validation_metrics import ScenePrediction, ScenePredictor

CONSTANT = "constant depth, identity"
MEAN = "mean depth map, mean pose"
SIDEWAYS = "sideways, oracle's sign"

_MAX_TRAINING_SCENES = 64
_TRAINING_SCENES_PER_HELD_OUT = 4
"""Training scenes in the mean scene, per held-out scene."""


def baselines(scenes: HeldOutScenes, family: SceneFamily, device: torch.device) -> dict[str, ScenePredictor]:
    """Return the baselines of a family by name; the mean scene is computed from training scenes."""
    starts = range(0, min(_MAX_TRAINING_SCENES, _TRAINING_SCENES_PER_HELD_OUT * scenes.scenes), SCENES_PER_BATCH)
    seeds = ([training_seed(0, start + number) for number in range(SCENES_PER_BATCH)] for start in starts)
    mean = mean_scene(sample_truth(batch, scenes.scene_request(family), device) for batch in seeds)
    return {CONSTANT: constant, MEAN: mean, SIDEWAYS: sideways}


def constant(truth: GroundTruth) -> ScenePrediction:
    """Predict depth 1, identity poses, and that all pixels move."""
    identity = torch.eye(4, dtype=torch.float64, device=truth.depth.device)
    return ScenePrediction(
        depth=torch.ones_like(truth.depth),
        world_to_camera=identity.expand(truth.cameras.world_to_camera.shape),
        dynamic=torch.ones_like(truth.valid),
    )


@dataclass(frozen=True, kw_only=True)
class MeanScene:
    """Mean over scenes of a family, with the same numbers of cameras and instants.

    Depth is a mean of logarithms, relative to the mean depth of the scene; poses are relative to the first camera, in
    the same unit. `focal` is relative to the image diagonal.
    """

    log_depth: Float[Tensor, "T V H W"]
    world_to_camera: Float[Tensor, "T V 4 4"]
    focal: float

    def __call__(self, truth: GroundTruth) -> ScenePrediction:
        """Predict the mean scene."""
        shape = truth.depth.shape
        intrinsics = torch.zeros_like(truth.cameras.intrinsics)
        intrinsics[..., 0, 0] = intrinsics[..., 1, 1] = self.focal * _diagonal(truth.cameras)
        intrinsics[..., 2, 2] = 1
        return ScenePrediction(
            depth=self.log_depth.exp().to(truth.depth).expand(shape),
            world_to_camera=self.world_to_camera.expand(*shape[:3], 4, 4),
            intrinsics=intrinsics,
        )


def mean_scene(truths: Iterable[GroundTruth]) -> MeanScene:
    """Average scenes of one shape; a pixel without any known depth has the mean depth of its scene."""
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


def sideways(truth: GroundTruth) -> ScenePrediction:
    """Predict unrotated cameras on the x-axis of the first one, with the true sign of their x-coordinate.

    Signs are relative to the first camera; they may contradict the true direction between two other cameras.
    """
    cameras = truth.cameras.world_to_camera.double()
    relative = cameras @ invert_rigid(cameras[:, :1, :1])
    poses = torch.eye(4, dtype=torch.float64, device=cameras.device).expand(cameras.shape).clone()
    poses[..., 0, 3] = relative[..., 0, 3]
    return ScenePrediction(world_to_camera=poses)


def _diagonal(cameras: Cameras) -> float:
    height, width = cameras.image_size
    return float((height**2 + width**2) ** 0.5)
