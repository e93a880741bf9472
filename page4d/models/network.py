"""The network: images of T instants and V views in; cameras, depth, points and what moves out."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from page4d.encoders.base import Encoder, PatchTokens
from page4d.encoders.build import build_encoder
from page4d.errors import ShapeError, UsageError
from page4d.geometry.camera import Cameras
from page4d.geometry.pose_encoding import decode_pose
from page4d.geometry.rigid import invert_rigid, transform_points
from page4d.layers.embed import patch_grid
from page4d.layers.precision import full_precision
from page4d.models.conditioning import NO_CONDITIONING, Conditioning, check_conditioning
from page4d.models.config import DPTHeadConfig, FullAttention, NetworkConfig
from page4d.models.heads.camera import CameraHead
from page4d.models.heads.dpt import DenseActivation, DPTHead
from page4d.models.heads.dynamic import external_log_odds
from page4d.models.heads.frame import FrameHead
from page4d.models.heads.motion import MotionHead
from page4d.models.inputs.matching import Matches, PatchMatching, ViewMatches
from page4d.models.inputs.rays import RayEmbedding, relative_cameras
from page4d.models.inputs.triangulation import Triangulation
from page4d.models.intrinsics import fit_intrinsics
from page4d.models.limits import NO_LIMITS, ForwardLimits
from page4d.models.output import MixedOutput, NetworkOutput
from page4d.models.size_groups import Grid, SizeGroups, check_mixed
from page4d.models.trunk import Aggregator, TrunkOutput

IMAGE_MEAN = (0.485, 0.456, 0.406)
IMAGE_DEVIATION = (0.229, 0.224, 0.225)

AllMatches = Matches | tuple[ViewMatches, ...] | None
"""Of views of one size, of several, or of a network without matches."""


class ViewTimeNetwork(nn.Module):
    """An encoder, a trunk that follows the schedule of the configuration, and the heads it names."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        width = 2 * config.encoder.embed_dim
        dim = config.encoder.embed_dim
        self.encoder: Encoder = build_encoder(config.encoder)
        self.matching = None if config.matches is None else PatchMatching(config.matches, dim, config.patch_size)
        self.ray_embedding = RayEmbedding(dim) if config.known_cameras else None
        self.triangulation: Triangulation | None = None
        if config.matches is not None and config.known_cameras:
            self.triangulation = Triangulation(config.matches, dim)
        self.aggregator = Aggregator(config)
        self.camera_head = None if config.camera_head is None else CameraHead(config.camera_head, width)
        self.depth_head = self._dense_head(config.depth_head, 1, DenseActivation.EXPONENTIAL)
        self.point_head = self._dense_head(config.point_head, 3, DenseActivation.INVERSE_LOG)
        self.ray_head = nn.Linear(width, 3) if config.ray_head else None
        self.motion_head: MotionHead | None = None
        if config.motion_head is not None and config.mask is not None:
            self.motion_head = MotionHead(config.motion_head, width, teaches_trunk=config.mask.teaches_trunk)
        self.frame_head: FrameHead | None = None
        if config.frame_head is not None:
            special = self.aggregator.special.count
            self.frame_head = FrameHead(config.frame_head, width, config.patch_size, special, config.rope_base)

    def forward(
        self,
        images: Float[Tensor, "B T V 3 H W"],
        mask_ext: Float[Tensor, "B T V H W"] | None = None,
        *,
        conditioning: Conditioning = NO_CONDITIONING,
        limits: ForwardLimits = NO_LIMITS,
    ) -> NetworkOutput:
        """Predict everything for images in [0, 1] and, optionally, probabilities that their pixels move.

        Raises:
            ShapeError: if image sides are not multiples of the patch size or the mask is of other images.
            UsageError: if a mask is given to a network that has no use for it.
        """
        grid = self._check(images, mask_ext, conditioning)
        sizes = SizeGroups.of([grid] * images.shape[2])
        masks = None if mask_ext is None else [mask_ext]
        outputs, matches = self._predict_scheduled([images], masks, sizes, conditioning, limits)
        assert matches is None or isinstance(matches, Matches)
        return replace(outputs[0], matches=matches)

    def find_matches(self, images: Float[Tensor, "B T V 3 H W"]) -> NetworkOutput:
        """Return nothing but the matches, from the encoder's tokens alone.

        Raises:
            ShapeError: as `forward`.
            UsageError: if the network works out no matches.
        """
        if self.matching is None:
            raise UsageError("this network works out no matches", "use one whose configuration has them")
        grid = self._check(images, None, NO_CONDITIONING)
        encoded = self._encode(images, None)
        tokens = torch.unflatten(encoded.tokens, 0, images.shape[:3])
        _, matches = self.matching(tokens, grid, _as_images(encoded.fine, images))
        return NetworkOutput(matches=matches)

    def forward_mixed(
        self,
        images: Sequence[Float[Tensor, "B T 3 _ _"]],
        mask_ext: Sequence[Float[Tensor, "B T _ _"]] | None = None,
        *,
        conditioning: Conditioning = NO_CONDITIONING,
        limits: ForwardLimits = NO_LIMITS,
    ) -> MixedOutput:
        """Predict everything for views that each have a size of their own.

        Every view is cut into its own patches; no image is stretched, cropped or padded, and no token added.
        Conditioning is as in `forward`, with intrinsics in pixels of each view's own image.

        Raises:
            ShapeError: as `forward`, and if views differ in more than their size.
            UsageError: as `forward`, and if a part of the network needs images of one size.
        """
        sizes = self._check_mixed(images, mask_ext, conditioning)
        masks = None if mask_ext is None else sizes.by_group(mask_ext)
        outputs, matches = self._predict_scheduled(sizes.by_group(images), masks, sizes, conditioning, limits)
        places = {view: (group, place) for group, own in enumerate(sizes.members) for place, view in enumerate(own)}
        views = tuple(outputs[places[view][0]].of_view(places[view][1]) for view in range(sizes.num_views))
        if isinstance(matches, Matches):
            matches = tuple(matches.of_view(view) for view in range(sizes.num_views))
        return MixedOutput(views=views, matches=matches)

    def _predict_scheduled(
        self,
        images: list[Tensor],
        masks: list[Tensor] | None,
        sizes: SizeGroups,
        conditioning: Conditioning,
        limits: ForwardLimits,
    ) -> tuple[list[NetworkOutput], AllMatches]:
        """Predict for every group of one size; where all images see each other, as those of one instant."""
        full, num_times = self.config.full_attention, images[0].shape[1]
        if full is FullAttention.ALWAYS or (full is FullAttention.ONE_VIEW and sizes.num_views == 1):
            flat = [part.flatten(1, 2).unsqueeze(1) for part in images]
            flat_masks = None if masks is None else [part.flatten(1, 2).unsqueeze(1) for part in masks]
            sizes = sizes.as_one_instant(num_times)
            together, _ = self._predict(flat, flat_masks, sizes, conditioning.as_one_instant(), limits)
            return [output.at_instants(num_times) for output in together], None
        return self._predict(images, masks, sizes, conditioning, limits)

    def _predict(
        self,
        images: list[Tensor],
        masks: list[Tensor] | None,
        sizes: SizeGroups,
        conditioning: Conditioning,
        limits: ForwardLimits,
    ) -> tuple[list[NetworkOutput], AllMatches]:
        """Predict with the schedule as it stands, for every group of one size."""
        encoded = [self._encode(part, limits.max_images) for part in images]
        patches = [torch.unflatten(own.tokens, 0, part.shape[:3]) for own, part in zip(encoded, images, strict=True)]
        fine = [_as_images(own.fine, part) for own, part in zip(encoded, images, strict=True)]
        patches, matches = self._informed(patches, fine, sizes, conditioning)
        external = None
        if masks is not None and self.config.mask is not None:
            settings = (self.config.patch_size, self.config.mask.external_floor)
            external = [external_log_odds(mask.to(images[0].dtype), *settings) for mask in masks]
        if sizes.are_one:
            told = None if external is None else external[0]
            trunks: list[TrunkOutput] = [self.aggregator(patches[0], sizes.grids[0], told, limits, conditioning)]
        else:
            trunks = self.aggregator.over_sizes(patches, sizes, external, limits, conditioning)
        del patches
        with full_precision(images[0].device):
            if self.frame_head is None:
                predicted = self._by_parts(trunks, encoded, sizes, limits)
            else:
                pairs = zip(trunks, sizes.grids, strict=True)
                predicted = [_by_frames(self.frame_head, trunk, grid, limits) for trunk, grid in pairs]
            motion: list[Tensor | None] = [None] * len(trunks)
            if external is None:  # a mask that was given is not second-guessed
                groups = zip(images, fine, trunks, strict=True)
                motion = [self._motion(*group, limits) for group in groups]
        outputs = [
            replace(
                output,
                dynamic=self._enlarged(trunk.dynamic_logit) if finer is None else finer.sigmoid(),
                dynamic_logit=trunk.dynamic_logit,
                motion_logit=finer,
                memory=trunk.memory,
            )
            for output, trunk, finer in zip(predicted, trunks, motion, strict=True)
        ]
        return outputs, matches

    def _motion(
        self,
        images: Float[Tensor, "B T V 3 H W"],
        fine: Float[Tensor, "B T V F h w"] | None,
        trunk: TrunkOutput,
        limits: ForwardLimits,
    ) -> Float[Tensor, "B T V H W"] | None:
        """Return the log-odds that pixels move; a single instant shows nothing that its patches did not say."""
        if self.motion_head is None or trunk.dynamic_logit is None or fine is None or images.shape[1] == 1:
            return None
        tokens, given = self._last_patches(trunk), trunk.dynamic_logit
        logit: Tensor = self.motion_head(images, fine, tokens, given, limits.max_images)
        return logit

    def _informed(
        self, patches: list[Tensor], fine: list[Tensor | None], sizes: SizeGroups, conditioning: Conditioning
    ) -> tuple[list[Tensor], AllMatches]:
        """Tell the patches what matches and known cameras say of them."""
        told, matches = _told_by_matches(self.matching, patches, fine, sizes)
        informed = [one if more is None else one + more for one, more in zip(patches, told, strict=True)]
        if self.ray_embedding is not None and conditioning.intrinsics is not None:
            size = self.config.patch_size
            poses = None if conditioning.world_to_camera is None else relative_cameras(conditioning.world_to_camera)
            relative = [None] * len(patches) if poses is None else sizes.chosen(poses)
            for place, own in enumerate(sizes.chosen(conditioning.intrinsics)):
                informed[place] = informed[place] + self.ray_embedding(own, relative[place], sizes.grids[place], size)
            if self.triangulation is not None and matches is not None and conditioning.world_to_camera is not None:
                cameras = (conditioning.intrinsics, conditioning.world_to_camera)
                if isinstance(matches, Matches):
                    met = [self.triangulation(matches, *cameras, sizes.grids[0], size)]
                else:
                    met = sizes.by_group(self.triangulation.between(matches, *cameras, sizes.grid_of_views, size))
                informed = [one + more for one, more in zip(informed, met, strict=True)]
        return [one.to(part.dtype) for one, part in zip(informed, patches, strict=True)], matches

    def _by_parts(
        self, trunks: Sequence[TrunkOutput], encoded: Sequence[PatchTokens], sizes: SizeGroups, limits: ForwardLimits
    ) -> list[NetworkOutput]:
        """Return what is said by the camera head, which sees all images together, and the dense heads."""
        iterations = self._cameras(sizes.stacked([trunk.camera_tokens for trunk in trunks]))
        of_groups = [sizes.chosen(pose) for pose in iterations]
        return [
            self._of_group(trunk, own, tuple(pose[place] for pose in of_groups), limits)
            for place, (trunk, own) in enumerate(zip(trunks, encoded, strict=True))
        ]

    def _of_group(
        self, trunk: TrunkOutput, encoded: PatchTokens, iterations: tuple[Tensor, ...], limits: ForwardLimits
    ) -> NetworkOutput:
        """Return what heads say of views of one size, whose pose encodings are known."""
        grid = encoded.grid
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
        last = self._last_patches(trunk).to(_dtype(self.ray_head))
        return torch.unflatten(functional.normalize(self.ray_head(last), dim=-1), -2, grid)

    def _last_patches(self, trunk: TrunkOutput) -> Float[Tensor, "B T V P C2"]:
        """Return what the last layer that dense heads read says of the patches."""
        return trunk.levels[self.config.dense_layers[-1]][..., self.aggregator.special.count :, :]

    def _dense_head(
        self, config: DPTHeadConfig | None, value_dim: int, activation: DenseActivation
    ) -> DPTHead | None:
        if config is None:
            return None
        encoder = self.config.encoder
        return DPTHead(config, 2 * encoder.embed_dim, encoder.patch_size, value_dim, activation)

    def _check(self, images: Tensor, mask_ext: Tensor | None, conditioning: Conditioning) -> Grid:
        if images.ndim != 6 or images.shape[3] != 3:
            raise ShapeError(f"images have shape {tuple(images.shape)}", "give [B, T, V, 3, H, W]")
        if mask_ext is not None:
            self._check_mask(mask_ext, images, (*images.shape[:3], *images.shape[4:]))
        grid = patch_grid(images.shape[-2], images.shape[-1], self.config.patch_size)
        check_conditioning(conditioning, tuple(images.shape[:3]), grid)
        return grid

    def _check_mixed(
        self, images: Sequence[Tensor], mask_ext: Sequence[Tensor] | None, conditioning: Conditioning
    ) -> SizeGroups:
        for view in images:
            if view.ndim != 5 or view.shape[2] != 3 or view.shape[:2] != images[0].shape[:2]:
                raise ShapeError(f"a view of shape {tuple(view.shape)}", "give [B, T, 3, H, W] for every view")
        masks = () if mask_ext is None else mask_ext
        if not images or len(masks) not in (0, len(images)):
            raise ShapeError(f"{len(images)} views with masks of {len(masks)}", "give views, and all masks or none")
        for view, mask in zip(images, masks, strict=False):
            self._check_mask(mask, view, (*view.shape[:2], *view.shape[3:]))
        sizes = SizeGroups.of([patch_grid(view.shape[-2], view.shape[-1], self.config.patch_size) for view in images])
        if not sizes.are_one:
            check_mixed(self.config, conditioning)
        check_conditioning(
            conditioning, (*images[0].shape[:2], len(images)), sizes.grids[0] if sizes.are_one else None
        )
        return sizes

    def _check_mask(self, mask: Tensor, images: Tensor, expected: tuple[int, ...]) -> None:
        if self.config.mask is None:
            raise UsageError("this network takes no masks", "leave the masks out or use a network with a mask head")
        if tuple(mask.shape) != expected:
            raise ShapeError(
                f"masks have shape {tuple(mask.shape)}, images {tuple(images.shape)}", f"give {expected}"
            )

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

    def _cameras(self, camera_tokens: Float[Tensor, "B T V C"]) -> tuple[Float[Tensor, "B T V 9"], ...]:
        if self.camera_head is None:
            return ()
        tokens = camera_tokens.flatten(1, 2).to(_dtype(self.camera_head))
        return tuple(torch.unflatten(pose, 1, camera_tokens.shape[1:3]) for pose in self.camera_head(tokens))

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


def _told_by_matches(
    matching: PatchMatching | None, patches: list[Tensor], fine: list[Tensor | None], sizes: SizeGroups
) -> tuple[list[Tensor | None], AllMatches]:
    """Return what to add to the patches of every group."""
    if matching is None:
        return [None] * len(patches), None
    if sizes.are_one:
        told, matches = matching(patches[0], sizes.grids[0], fine[0])
        return [told], matches
    given = [part for part in fine if part is not None]
    maps = sizes.by_view(given) if given else None
    of_views, found = matching.between(sizes.by_view(patches), sizes.grid_of_views, maps)
    return list(sizes.by_group(of_views)), found


def _as_images(
    fine: Float[Tensor, "F C h w"] | None, images: Float[Tensor, "B T V 3 H W"]
) -> Float[Tensor, "B T V C h w"] | None:
    return None if fine is None else torch.unflatten(fine, 0, images.shape[:3])


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


def _dtype(module: nn.Module) -> torch.dtype:
    return next(module.parameters()).dtype
