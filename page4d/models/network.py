"""The network: images of T instants and V views in; cameras, depth, points and what moves out."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.amp import is_autocast_available
from torch.nn import functional

from page4d.encoders.base import Encoder, PatchTokens
from page4d.encoders.build import build_encoder
from page4d.errors import ShapeError, UsageError
from page4d.geometry.camera import Cameras
from page4d.geometry.pose_encoding import decode_pose
from page4d.geometry.rigid import invert_rigid, transform_points
from page4d.layers.embed import patch_grid
from page4d.models.aggregator import Aggregator, TrunkOutput
from page4d.models.config import DPTHeadConfig, FullAttention, NetworkConfig
from page4d.models.heads.camera import CameraHead
from page4d.models.heads.dpt import DenseActivation, DPTHead
from page4d.models.heads.dynamic import external_log_odds
from page4d.models.heads.frame import FrameHead
from page4d.models.hints import NO_HINTS, Hints, Memory, as_one_instant, check_hints
from page4d.models.intrinsics import fit_intrinsics
from page4d.models.limits import NO_LIMITS, ForwardLimits
from page4d.models.matching import Matches, PatchMatching
from page4d.models.rays import RayEmbedding
from page4d.models.triangulation import Triangulation

IMAGE_MEAN = (0.485, 0.456, 0.406)
IMAGE_DEVIATION = (0.229, 0.224, 0.225)


@dataclass(frozen=True, kw_only=True)
class NetworkOutput:
    """Predictions at network pixels; a part is None if the network has no head for it.

    `world_to_camera` and `intrinsics` are float64, so that rotations are orthonormal to the last digit of a file; a
    network without a head for fields of view fits intrinsics to its points. `pose_encoding` are the encodings that an
    iterative camera head predicts (see `geometry.pose_encoding`). Confidences are raw: 1 + exp, so at least 1 and
    unbounded. Points are in the world. A frame head says more of what it predicts: `local_points` in the frame of
    their camera, `confidence_logits` x of the confidence 1 + exp(x), and `camera_to_world`. `dynamic` is the
    probability that a pixel moves, 0.5 from a head that was never trained; `dynamic_logit` are the log-odds a patch
    before they were enlarged.
    """

    world_to_camera: Float[Tensor, "B T V 4 4"] | None = None
    intrinsics: Float[Tensor, "B T V 3 3"] | None = None
    pose_encoding: Float[Tensor, "B T V 9"] | None = None
    pose_encoding_iterations: tuple[Float[Tensor, "B T V 9"], ...] = ()
    depth: Float[Tensor, "B T V H W"] | None = None
    depth_confidence: Float[Tensor, "B T V H W"] | None = None
    points: Float[Tensor, "B T V H W 3"] | None = None
    points_confidence: Float[Tensor, "B T V H W"] | None = None
    local_points: Float[Tensor, "B T V H W 3"] | None = None
    confidence_logits: Float[Tensor, "B T V H W"] | None = None
    camera_to_world: Float[Tensor, "B T V 4 4"] | None = None
    dynamic: Float[Tensor, "B T V H W"] | None = None
    dynamic_logit: Float[Tensor, "B T V rows columns"] | None = None
    rays: Float[Tensor, "B T V rows columns 3"] | None = None
    """Unit directions in the camera's frame, of a network that is trained with them."""
    matches: Matches | None = None
    memory: Memory | None = None
    """To be given as a hint with the next chunk of instants."""

    def at_instants(self, num_times: int) -> "NetworkOutput":
        """Return the predictions for images that were put into one instant at the instants where they belong."""

        def back(values: Tensor) -> Tensor:
            return torch.unflatten(values[:, 0], 1, (num_times, -1))

        parts: dict[str, Any] = {}
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                parts[name] = back(value)
        parts["pose_encoding_iterations"] = tuple(back(pose) for pose in self.pose_encoding_iterations)
        parts["matches"] = None  # their targets were those of images in one instant
        return replace(self, **parts)


class ViewTimeNetwork(nn.Module):
    """An encoder, a trunk that follows the schedule of the configuration, and the heads it names."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        width = 2 * config.encoder.embed_dim
        dim = config.encoder.embed_dim
        self.encoder: Encoder = build_encoder(config.encoder)
        self.matching = None if config.matches is None else PatchMatching(config.matches, dim)
        self.ray_embedding = RayEmbedding(dim) if config.known_cameras else None
        self.triangulation: Triangulation | None = None
        if config.matches is not None and config.known_cameras:
            self.triangulation = Triangulation(config.matches, dim)
        self.aggregator = Aggregator(config)
        self.camera_head = None if config.camera_head is None else CameraHead(config.camera_head, width)
        self.depth_head = self._dense_head(config.depth_head, 1, DenseActivation.EXPONENTIAL)
        self.point_head = self._dense_head(config.point_head, 3, DenseActivation.INVERSE_LOG)
        self.ray_head = nn.Linear(width, 3) if config.ray_head else None
        self.frame_head: FrameHead | None = None
        if config.frame_head is not None:
            special = self.aggregator.special.count
            self.frame_head = FrameHead(config.frame_head, width, config.patch_size, special, config.rope_base)

    def forward(
        self,
        images: Float[Tensor, "B T V 3 H W"],
        mask_ext: Float[Tensor, "B T V H W"] | None = None,
        *,
        hints: Hints = NO_HINTS,
        limits: ForwardLimits = NO_LIMITS,
    ) -> NetworkOutput:
        """Predict everything for images in [0, 1] and, optionally, probabilities that their pixels move.

        Raises:
            ShapeError: if image sides are not multiples of the patch size or the mask is of other images.
            UsageError: if a mask is given to a network that has no use for it.
        """
        grid = self._check(images, mask_ext, hints)
        full = self.config.full_attention
        if full is FullAttention.ALWAYS or (full is FullAttention.ONE_VIEW and images.shape[2] == 1):
            flat, flat_mask = as_one_instant(images), as_one_instant(mask_ext)
            assert flat is not None
            together = self._predict(flat, flat_mask, grid, hints.as_one_instant(), limits)
            return together.at_instants(images.shape[1])
        return self._predict(images, mask_ext, grid, hints, limits)

    def _predict(
        self,
        images: Float[Tensor, "B T V 3 H W"],
        mask_ext: Float[Tensor, "B T V H W"] | None,
        grid: tuple[int, int],
        hints: Hints,
        limits: ForwardLimits,
    ) -> NetworkOutput:
        """Predict with the schedule as it stands."""
        encoded = self._encode(images, limits.max_images)
        patches = torch.unflatten(encoded.tokens, 0, images.shape[:3])
        patches, matches = self._informed(patches, grid, hints)
        external = None
        if mask_ext is not None and self.config.mask is not None:
            external = external_log_odds(
                mask_ext.to(images.dtype), self.config.patch_size, self.config.mask.external_floor
            )
        trunk: TrunkOutput = self.aggregator(patches, grid, external, limits, hints)
        with _full_precision(images.device):
            if self.frame_head is None:
                predicted = self._by_parts(trunk, encoded, limits)
            else:
                predicted = _by_frames(self.frame_head, trunk, grid, limits)
        return replace(
            predicted,
            dynamic=self._enlarged(trunk.dynamic_logit),
            dynamic_logit=trunk.dynamic_logit,
            matches=matches,
            memory=trunk.memory,
        )

    def _informed(self, patches: Tensor, grid: tuple[int, int], hints: Hints) -> tuple[Tensor, Matches | None]:
        """Tell the patches what matches and known cameras say of them."""
        informed, matches = patches, None
        if self.matching is not None:
            told, matches = self.matching(patches, grid)
            informed = informed + told
        if self.ray_embedding is not None and hints.intrinsics is not None:
            size = self.config.patch_size
            cameras = (hints.intrinsics, hints.world_to_camera)
            informed = informed + self.ray_embedding(*cameras, grid, size)
            if self.triangulation is not None and matches is not None and hints.world_to_camera is not None:
                informed = informed + self.triangulation(matches, *cameras, grid, size)
        return informed.to(patches.dtype), matches

    def _by_parts(self, trunk: TrunkOutput, encoded: PatchTokens, limits: ForwardLimits) -> NetworkOutput:
        """Return what is said by the camera head and the dense heads."""
        grid = encoded.grid
        iterations = self._cameras(trunk)
        depth, depth_confidence = self._dense(self.depth_head, self.config.depth_head, trunk, encoded, limits)
        points, points_confidence = self._dense(self.point_head, self.config.point_head, trunk, encoded, limits)
        cameras: Cameras | None = None
        if iterations:
            size = (grid[0] * self.config.patch_size, grid[1] * self.config.patch_size)
            cameras = decode_pose(iterations[-1].to(torch.float64), size)
        return NetworkOutput(
            world_to_camera=None if cameras is None else cameras.world_to_camera,
            intrinsics=None if cameras is None else cameras.intrinsics,
            pose_encoding=iterations[-1] if iterations else None,
            pose_encoding_iterations=iterations,
            depth=None if depth is None else depth[..., 0],
            depth_confidence=depth_confidence,
            points=points,
            points_confidence=points_confidence,
            rays=self._rays(trunk, grid),
        )

    def _rays(self, trunk: TrunkOutput, grid: tuple[int, int]) -> Float[Tensor, "B T V rows columns 3"] | None:
        if self.ray_head is None:
            return None
        last = trunk.levels[self.config.dense_layers[-1]][..., self.aggregator.special.count :, :]
        directions = functional.normalize(self.ray_head(last.to(_dtype(self.ray_head))), dim=-1)
        return torch.unflatten(directions, -2, grid)

    def _dense_head(
        self, config: DPTHeadConfig | None, value_dim: int, activation: DenseActivation
    ) -> DPTHead | None:
        if config is None:
            return None
        encoder = self.config.encoder
        return DPTHead(config, 2 * encoder.embed_dim, encoder.patch_size, value_dim, activation)

    def _check(self, images: Tensor, mask_ext: Tensor | None, hints: Hints) -> tuple[int, int]:
        if images.ndim != 6 or images.shape[3] != 3:
            raise ShapeError(f"images have shape {tuple(images.shape)}", "give [B, T, V, 3, H, W]")
        if mask_ext is not None and self.config.mask is None:
            raise UsageError("this network takes no masks", "leave the masks out or use a network with a mask head")
        expected = (*images.shape[:3], *images.shape[4:])
        if mask_ext is not None and tuple(mask_ext.shape) != expected:
            raise ShapeError(
                f"masks have shape {tuple(mask_ext.shape)}, images {tuple(images.shape)}", f"give {expected}"
            )
        grid = patch_grid(images.shape[-2], images.shape[-1], self.config.patch_size)
        check_hints(hints, images, grid)
        return grid

    def _encode(self, images: Tensor, max_images: int | None) -> PatchTokens:
        mean = images.new_tensor(IMAGE_MEAN)[:, None, None]
        deviation = images.new_tensor(IMAGE_DEVIATION)[:, None, None]
        frames = images.flatten(0, 2)
        parts = [self.encoder((part - mean) / deviation) for part in torch.split(frames, max_images or len(frames))]
        fine = [part.fine for part in parts if part.fine is not None]
        return PatchTokens(
            tokens=torch.cat([part.tokens for part in parts]),
            grid=parts[0].grid,
            fine=torch.cat(fine) if fine else None,
        )

    def _cameras(self, trunk: TrunkOutput) -> tuple[Tensor, ...]:
        if self.camera_head is None:
            return ()
        tokens = trunk.camera_tokens.flatten(1, 2).to(_dtype(self.camera_head))
        return tuple(torch.unflatten(pose, 1, trunk.camera_tokens.shape[1:3]) for pose in self.camera_head(tokens))

    def _dense(
        self,
        head: DPTHead | None,
        config: DPTHeadConfig | None,
        trunk: TrunkOutput,
        encoded: PatchTokens,
        limits: ForwardLimits,
    ) -> tuple[Tensor | None, Tensor | None]:
        if head is None or config is None:
            return None, None
        levels = [trunk.levels[layer].flatten(0, 2) for layer in config.layers]
        frames = levels[0].shape[0]
        values, confidences = [], []
        for start in range(0, frames, limits.max_images or frames):
            chosen = slice(start, start + (limits.max_images or frames))
            fine = None if encoded.fine is None else encoded.fine[chosen]
            value, confidence = head(self._patches(levels, chosen, _dtype(head)), encoded.grid, fine)
            values.append(value)
            confidences.append(confidence)
        leading = trunk.camera_tokens.shape[:3]
        return torch.unflatten(torch.cat(values), 0, leading), torch.unflatten(torch.cat(confidences), 0, leading)

    def _patches(self, levels: Sequence[Tensor], frames: slice, dtype: torch.dtype) -> list[Tensor]:
        return [level[frames, self.aggregator.special.count :].to(dtype) for level in levels]

    def _enlarged(self, logit: Tensor | None) -> Float[Tensor, "B T V H W"] | None:
        if logit is None:
            return None
        probability = logit.sigmoid().flatten(0, 2)[:, None]
        enlarged = functional.interpolate(
            probability, scale_factor=float(self.config.patch_size), mode="bilinear", align_corners=False
        )
        return torch.unflatten(enlarged[:, 0], 0, logit.shape[:3])


def build_network(config: NetworkConfig) -> ViewTimeNetwork:
    """Build the network of a configuration with fresh weights, drawn from torch's global generator."""
    return ViewTimeNetwork(config)


def _by_frames(head: FrameHead, trunk: TrunkOutput, grid: tuple[int, int], limits: ForwardLimits) -> NetworkOutput:
    """Return what is said by the frame head: depth is the z of its local points, points are they in the world."""
    (level,) = trunk.levels.values()
    leading = level.shape[:3]
    tokens = level.flatten(0, 2).to(_dtype(head))
    parts = [head(part, grid) for part in torch.split(tokens, limits.max_images or len(tokens))]
    local_points = torch.unflatten(torch.cat([part.local_points for part in parts]), 0, leading)
    logit = torch.unflatten(torch.cat([part.confidence_logit for part in parts]), 0, leading)
    camera_to_world = torch.unflatten(torch.cat([part.camera_to_world for part in parts]), 0, leading)
    confidence = 1 + logit.exp()
    return NetworkOutput(
        world_to_camera=invert_rigid(camera_to_world),
        intrinsics=fit_intrinsics(local_points.to(torch.float64), logit.sigmoid().to(torch.float64)),
        depth=local_points[..., 2],
        depth_confidence=confidence,
        points=transform_points(camera_to_world.to(local_points.dtype), local_points),
        points_confidence=confidence,
        local_points=local_points,
        confidence_logits=logit,
        camera_to_world=camera_to_world,
    )


def _full_precision(device: torch.device) -> AbstractContextManager[None]:
    """Switch automatic casting off on devices that have it; tensors without numbers are on one that has not."""
    return torch.autocast(device.type, enabled=False) if is_autocast_available(device.type) else nullcontext()


def _dtype(module: nn.Module) -> torch.dtype:
    return next(module.parameters()).dtype
