"""The view x time network: cameras, depth, points and motion from images of T instants and V views.

Images, masks and conditioning are checked first. Without a trunk, heads read the levels of the encoder.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from page4d.choices import FullAttention
from page4d.errors import ShapeError, UsageError
from page4d.geometry.camera import decode_pose
from page4d.networks.conditioning import (
    NO_CONDITIONING,
    Conditioning,
    Grid,
    SizeGroups,
    as_one_instant,
    check_conditioning,
    check_known,
    parts_for_one_size,
)
from page4d.networks.config import NetworkConfig
from page4d.networks.encoders.base import Encoder, PatchTokens
from page4d.networks.encoders.build import build_encoder
from page4d.networks.heads.build import build_camera_head, build_dense_head, dtype_of, run_dense_head
from page4d.networks.heads.dense import DenseActivation
from page4d.networks.heads.frame import FrameHead, run_frame_head
from page4d.networks.heads.motion import MotionHead, external_log_odds
from page4d.networks.inputs.known_cameras import CameraEncoder, RayEmbedding, relative_cameras
from page4d.networks.inputs.known_geometry import KnownGeometry, KnownPoses, length_unit
from page4d.networks.inputs.matching import Matches, PatchMatching, Triangulation
from page4d.networks.layers.block import normalize_images, patch_grid
from page4d.networks.layers.execution import NO_LIMITS, ForwardLimits, each_part, full_precision
from page4d.networks.limits import default_limits
from page4d.networks.metric import MetricHead, metric_depth, scale_to_metric
from page4d.networks.output import NetworkOutput, RigOutput
from page4d.networks.tokens import reference_of_images
from page4d.networks.trunk import Aggregator, TrunkOutput

_MAX_VALUE = 20.0
"""Above interpolated or normally distributed values, below those of images in [0, 255]."""


def check_images(config: NetworkConfig, images: Tensor, mask_ext: object, conditioning: Conditioning) -> Grid:
    """Check views of one size; return their patch grid.

    Raises:
        ShapeError: if image sides are not multiples of the patch size, or masks or conditioning do not fit.
        UsageError: if images are not floating point, or the network does not take masks or conditioning.
    """
    if images.ndim != 6 or images.shape[3] != 3:
        raise ShapeError(f"images have shape {tuple(images.shape)}", "give [B, T, V, 3, H, W]")
    _check_values(images)
    if mask_ext is not None:
        _check_mask(config, mask_ext, images, (*images.shape[:3], *images.shape[4:]))
    grid = patch_grid(images.shape[-2], images.shape[-1], config.patch_size)
    check_conditioning(conditioning, tuple(images.shape[:3]), grid)
    check_known(conditioning, images, accepted=config.known_geometry is not None)
    return grid


def check_views(
    config: NetworkConfig,
    images: Sequence[Tensor],
    mask_ext: Sequence[Tensor] | Tensor | None,
    conditioning: Conditioning,
) -> SizeGroups:
    """Check views [B, T, 3, H, W] that may differ in size; return their groups of one size.

    Raises:
        ShapeError: as `check_images`, or if views do not fit together.
        UsageError: as `check_images`, or if views differ in size where a part of the network needs one size.
    """
    for view in images:
        if view.ndim != 5 or view.shape[2] != 3 or view.shape[:2] != images[0].shape[:2]:
            raise ShapeError(f"a view of shape {tuple(view.shape)}", "give [B, T, 3, H, W] for every view")
        _check_values(view)
    masks = () if mask_ext is None else mask_ext
    if not images or isinstance(masks, Tensor) or len(masks) not in (0, len(images)):
        raise ShapeError(f"{len(images)} views with masks of {len(masks)}", "give views, and all masks or none")
    for view, mask in zip(images, masks, strict=False):
        _check_mask(config, mask, view, (*view.shape[:2], *view.shape[3:]))
    sizes = SizeGroups.of([patch_grid(view.shape[-2], view.shape[-1], config.patch_size) for view in images])
    parts = parts_for_one_size(config) or (["keypoints"] if conditioning.keypoints is not None else [])
    if parts and not sizes.are_one:
        raise UsageError(f"views of different sizes with {' and '.join(parts)}", "give images of one size")
    leading = (images[0].shape[0], images[0].shape[1], len(images))
    check_conditioning(conditioning, leading, sizes.grids[0] if sizes.are_one else None)
    check_known(conditioning, images, accepted=config.known_geometry is not None)
    return sizes


def _check_mask(config: NetworkConfig, mask: object, images: Tensor, expected: tuple[int, ...]) -> None:
    if config.mask is None:
        raise UsageError("this network takes no masks", "leave the masks out or use a network with a mask head")
    shape = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
    if shape != expected:
        raise ShapeError(f"masks have shape {shape}, images {tuple(images.shape)}", f"give {expected}")


def _check_values(images: Tensor) -> None:
    """Refuse images in [0, 255], which integers usually are, and those with NaN."""
    if not images.is_floating_point():
        kind = str(images.dtype).removeprefix("torch.")
        raise UsageError(f"images are {kind}", "give floating-point values in [0, 1], such as images.float() / 255")
    if not (images.is_meta or torch.compiler.is_compiling() or images.numel() == 0 or images.max() <= _MAX_VALUE):
        raise UsageError(
            f"images reach {float(images.max()):g}", "give finite values in [0, 1], such as images / 255"
        )


def encode_images(encoder: Encoder, images: Float[Tensor, "B T V 3 H W"], max_images: int | None) -> PatchTokens:
    """Encode images in [0, 1], at most `max_images` at once; the result has one batch dimension."""
    frames = images.flatten(0, 2)
    parts = each_part(lambda part: encoder(normalize_images(frames[part])), len(frames), max_images)
    fine = [part.fine for part in parts if part.fine is not None]
    class_tokens = [part.class_tokens for part in parts if part.class_tokens is not None]
    return PatchTokens(
        tokens=torch.cat([part.tokens for part in parts]),
        grid=parts[0].grid,
        fine=torch.cat(fine) if fine else None,
        class_tokens=torch.cat(class_tokens) if class_tokens else None,
        levels=tuple(map(torch.cat, zip(*(part.levels for part in parts), strict=True))),
    )


def levels_as_trunk(config: NetworkConfig, encoded: PatchTokens, images: Float[Tensor, "B T V 3 H W"]) -> TrunkOutput:
    """Return the levels of the encoder as the output of a trunk without special tokens."""
    assert config.depth_head is not None
    levels = [torch.unflatten(level, 0, images.shape[:3]) for level in encoded.levels]
    return TrunkOutput(
        special_tokens=levels[-1][..., :0, :],
        levels=dict(zip(config.depth_head.layers, levels, strict=True)),
        dynamic_logit=None,
        memory=None,
    )


def as_images(
    values: Float[Tensor, "F ..."] | None, images: Float[Tensor, "B T V 3 H W"]
) -> Float[Tensor, "B T V ..."] | None:
    """Split the batch dimension of encoded values into that of images."""
    return None if values is None else torch.unflatten(values, 0, images.shape[:3])


class ViewTimeNetwork(nn.Module):
    """An encoder, a trunk with an attention schedule, and prediction heads, as configured.

    `predicts_ray_map` and `predicts_points` can be set to False where these maps are not used, to save their time and
    memory.
    """

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        self.predicts_ray_map = self.predicts_points = True
        width = config.head_width
        dim = config.encoder.embed_dim
        self.encoder: Encoder = build_encoder(config.encoder)
        self.matching = None if config.matches is None else PatchMatching(config.matches, dim, config.patch_size)
        self.ray_embedding = RayEmbedding(dim) if config.known_cameras else None
        self.known_geometry = None if config.known_geometry is None else KnownGeometry(config.known_geometry)
        self.triangulation: Triangulation | None = None
        if config.matches is not None and config.known_cameras:
            self.triangulation = Triangulation(config.matches, dim)
        self.camera_encoder: CameraEncoder | None = None
        if config.camera_encoder is not None:
            self.camera_encoder = CameraEncoder(config.camera_encoder, dim)
        self.aggregator = Aggregator(config)
        self.camera_head = None if config.camera_head is None else build_camera_head(config.camera_head, width)
        self.depth_head = build_dense_head(config, config.depth_head, 1, DenseActivation.EXPONENTIAL)
        self.point_head = build_dense_head(config, config.point_head, 3, DenseActivation.INVERSE_LOG)
        self.ray_head = nn.Linear(width, 3) if config.ray_head else None
        self.motion_head: MotionHead | None = None
        if config.motion_head is not None and config.mask is not None:
            self.motion_head = MotionHead(config.motion_head, width, teaches_trunk=config.mask.teaches_trunk)
        self.metric_network: ViewTimeNetwork | None = None
        if config.metric_network is not None:
            self.metric_network = ViewTimeNetwork(config.metric_network)
        self.frame_head: FrameHead | None = None
        self.metric_head: MetricHead | None = None
        if config.frame_head is not None:
            special = self.aggregator.special.count
            self.frame_head = FrameHead(config.frame_head, width, config.patch_size, special, config.rope_base)
            if config.frame_head.metric is not None:
                self.metric_head = MetricHead(config.frame_head.metric, width, special, config.rope_base)

    def forward(
        self,
        images: Float[Tensor, "B T V 3 H W"] | Sequence[Float[Tensor, "B T 3 _ _"]],
        mask_ext: Float[Tensor, "B T V H W"] | Sequence[Float[Tensor, "B T _ _"]] | None = None,
        *,
        conditioning: Conditioning = NO_CONDITIONING,
        limits: ForwardLimits | None = None,
    ) -> NetworkOutput | RigOutput:
        """Predict cameras, depth, points and motion from images in [0, 1].

        Images are one tensor, or a sequence of views that may differ in size; the result is a `NetworkOutput` or a
        `RigOutput`. Every view has its own patches: no image is stretched, cropped or padded. `mask_ext` holds
        probabilities that pixels move, in the same form. Intrinsics in `conditioning` are in pixels of each view.
        `limits` bound the memory; by default they are chosen by `default_limits`, unless gradients are computed.

        Raises:
            ShapeError: if image sides are not multiples of the patch size, or masks or views do not fit together.
            UsageError: if images are not floating point, a mask is given to a network without a mask head, or views
                differ in size where a part of the network needs one size.
        """
        if isinstance(images, Tensor):
            sizes = SizeGroups.of([check_images(self.config, images, mask_ext, conditioning)] * images.shape[2])
            masks = [mask_ext] if isinstance(mask_ext, Tensor) else None
            conditioning = conditioning.by_group(sizes)
            return self._predict([images], masks, sizes, conditioning, limits)[0]
        sizes = check_views(self.config, images, mask_ext, conditioning)
        masks = None if mask_ext is None else sizes.by_group(list(mask_ext))
        conditioning = conditioning.by_group(sizes)
        outputs = self._predict(sizes.by_group(images), masks, sizes, conditioning, limits)
        return RigOutput(outputs=tuple(outputs), groups=sizes)

    def find_matches(self, images: Float[Tensor, "B T V 3 H W"]) -> NetworkOutput:
        """Compute the matches alone, from the encoder's tokens.

        Raises:
            ShapeError: as `forward`.
            UsageError: as `forward`, and if the network has no matching.
        """
        if self.matching is None:
            raise UsageError("this network has no matching", "use one whose configuration has matches")
        sizes = SizeGroups.of([check_images(self.config, images, None, NO_CONDITIONING)] * images.shape[2])
        encoded = encode_images(self.encoder, images, None)
        _, matches = self.matching([as_images(encoded.tokens, images)], sizes, [as_images(encoded.fine, images)])
        return NetworkOutput(matches=matches[0])

    def _predict(
        self,
        images: list[Tensor],
        masks: Sequence[Tensor] | None,
        sizes: SizeGroups,
        conditioning: Conditioning,
        limits: ForwardLimits | None,
    ) -> list[NetworkOutput]:
        """Predict for every group of views of one size, in the metres of the metric network if there is one.

        Where attention is full, all images are one instant.
        """
        if limits is None:
            limits = self._default_limits(sizes, images[0].device)
        full, num_times = self.config.full_attention, images[0].shape[1]
        if full is FullAttention.ALWAYS or (full is FullAttention.ONE_VIEW and sizes.num_views == 1):
            joint = [as_one_instant(part) for part in images]
            masks = None if masks is None else [as_one_instant(part) for part in masks]
            sizes, conditioning = sizes.as_one_instant(num_times), conditioning.as_one_instant()
            outputs = self._predict_groups(joint, masks, sizes, conditioning, limits)
            outputs = [output.at_instants(num_times) for output in outputs]
        else:
            outputs = self._predict_groups(images, masks, sizes, conditioning, limits)
        if self.metric_network is None:
            return outputs
        singles = [self.metric_network(part, limits=limits) for part in images]
        focal = self.metric_network.config.metric_focal
        assert focal is not None
        with full_precision(images[0].device):
            return scale_to_metric(outputs, singles, focal)

    def _predict_groups(
        self,
        images: list[Tensor],
        masks: Sequence[Tensor] | None,
        sizes: SizeGroups,
        conditioning: Conditioning,
        limits: ForwardLimits,
    ) -> list[NetworkOutput]:
        """Run encoder, inputs, trunk and heads for every group of views of one size."""
        encoded = [encode_images(self.encoder, part, limits.max_images) for part in images]
        fine = [as_images(own.fine, part) for own, part in zip(encoded, images, strict=True)]
        patches = [torch.unflatten(own.tokens, 0, part.shape[:3]) for own, part in zip(encoded, images, strict=True)]
        patches, matches = self._add_inputs(patches, fine, sizes, conditioning)
        patches, poses = self._add_known_geometry(patches, sizes, conditioning, limits)
        external = None
        if masks is not None and self.config.mask is not None:
            settings = (self.config.patch_size, self.config.mask.external_floor)
            external = [external_log_odds(mask.to(images[0].dtype), *settings) for mask in masks]
        camera_tokens = self._camera_tokens(sizes, conditioning)
        reference = None
        if camera_tokens is None:
            reference = reference_of_images(self.config.reference_view, encoded, sizes, len(images[0]))
        trunks: list[TrunkOutput] = (
            self.aggregator(patches, sizes, external, limits, conditioning, reference, camera_tokens, poses)
            if self.config.depth
            else [levels_as_trunk(self.config, own, part) for own, part in zip(encoded, images, strict=True)]
        )
        del patches
        with full_precision(images[0].device):
            if self.frame_head is None:
                predicted = self._run_heads(trunks, encoded, sizes, limits)
            else:
                scale = self._metric_scale(trunks, sizes, limits)
                last = [self._last_level(trunk) for trunk in trunks]
                pairs = zip(last, sizes.grids, strict=True)
                predicted = [run_frame_head(self.frame_head, *pair, limits, scale) for pair in pairs]
            motion: list[Tensor | None] = [None] * len(trunks)
            if external is None:  # an external mask replaces the motion head
                groups = zip(images, fine, trunks, strict=True)
                motion = [self._motion(*group, limits) for group in groups]
        if self.config.metric_focal is not None and conditioning.intrinsics is not None:
            focal, calibrated = self.config.metric_focal, sizes.chosen(conditioning.intrinsics)
            predicted = [
                output if output.depth is None else replace(output, depth=metric_depth(output.depth, lenses, focal))
                for output, lenses in zip(predicted, calibrated, strict=True)
            ]
        return [
            replace(
                output,
                dynamic=self._dynamic(trunk, finer),
                dynamic_logit=trunk.dynamic_logit,
                motion_logit=finer,
                reference=reference,
                memory=trunk.memory,
                matches=found,
            )
            for output, trunk, finer, found in zip(predicted, trunks, motion, matches, strict=True)
        ]

    def _default_limits(self, sizes: SizeGroups, device: torch.device) -> ForwardLimits:
        if torch.is_grad_enabled() and any(parameter.requires_grad for parameter in self.parameters()):
            return NO_LIMITS  # all activations are kept for the gradient
        side = self.config.patch_size
        return default_limits(self.config, [(rows * side, columns * side) for rows, columns in sizes.grids], device)

    def _camera_tokens(self, sizes: SizeGroups, conditioning: Conditioning) -> Float[Tensor, "B T V C"] | None:
        """Encode known cameras, if there are poses with intrinsics."""
        poses, intrinsics = conditioning.world_to_camera, conditioning.intrinsics
        if self.camera_encoder is None or poses is None or intrinsics is None:
            return None
        return self.camera_encoder(poses, intrinsics, sizes, self.config.patch_size)

    def _motion(
        self,
        images: Float[Tensor, "B T V 3 H W"],
        fine: Float[Tensor, "B T V F h w"] | None,
        trunk: TrunkOutput,
        limits: ForwardLimits,
    ) -> Float[Tensor, "B T V H W"] | None:
        """Return the log-odds that pixels move; None for a single instant, which has no motion to compare."""
        if self.motion_head is None or trunk.dynamic_logit is None or fine is None or images.shape[1] == 1:
            return None
        tokens, given = self._last_patches(trunk), trunk.dynamic_logit
        return self.motion_head(images, fine, tokens, given, limits.max_images)

    def _dynamic(self, trunk: TrunkOutput, finer: Tensor | None) -> Float[Tensor, "B T V H W"] | None:
        """Return the probability that pixels move: of the motion head, or interpolated from patches."""
        coarse = trunk.dynamic_logit
        if finer is not None or coarse is None:
            return None if finer is None else finer.sigmoid()
        factor, probability = float(self.config.patch_size), coarse.sigmoid().flatten(0, 2)[:, None]
        pixels = functional.interpolate(probability, scale_factor=factor, mode="bilinear", align_corners=False)
        return torch.unflatten(pixels[:, 0], 0, coarse.shape[:3])

    def _add_inputs(
        self, patches: list[Tensor], fine: Sequence[Tensor | None], sizes: SizeGroups, conditioning: Conditioning
    ) -> tuple[list[Tensor], Sequence[Matches | None]]:
        """Add the embeddings of matches and known cameras to the patch tokens; return them and the matches."""
        added, matches = list(patches), None
        if self.matching is not None:
            embedded, matches = self.matching(patches, sizes, fine)
            added = _sums(added, embedded)
        if self.ray_embedding is not None and conditioning.intrinsics is not None:
            size = self.config.patch_size
            poses = conditioning.world_to_camera
            relative = [None] * len(patches) if poses is None else sizes.chosen(relative_cameras(poses))
            rays = zip(sizes.chosen(conditioning.intrinsics), relative, sizes.grids, strict=True)
            added = _sums(added, [self.ray_embedding(*group, size) for group in rays])
            if self.triangulation is not None and matches is not None and poses is not None:
                added = _sums(added, self.triangulation(matches, conditioning.intrinsics, poses, sizes, size))
        found = [None] * len(patches) if matches is None else matches
        return [one.to(part.dtype) for one, part in zip(added, patches, strict=True)], found

    def _add_known_geometry(
        self, patches: list[Tensor], sizes: SizeGroups, conditioning: Conditioning, limits: ForwardLimits
    ) -> tuple[list[Tensor], KnownPoses | None]:
        """Add known intrinsics and depth to the patch tokens; return them and the known poses."""
        if self.known_geometry is None:
            return patches, None
        with full_precision(patches[0].device):
            unit, poses = length_unit(conditioning)
        added = self.known_geometry(patches, conditioning, unit, sizes, limits.max_images)
        return [one.to(part.dtype) for one, part in zip(added, patches, strict=True)], poses

    def _run_heads(
        self, trunks: Sequence[TrunkOutput], encoded: Sequence[PatchTokens], sizes: SizeGroups, limits: ForwardLimits
    ) -> list[NetworkOutput]:
        """Run the camera head on all images together and the dense heads group by group."""
        special_tokens = sizes.stacked([trunk.special_tokens for trunk in trunks])
        of_groups = []
        if self.camera_head is not None:
            iterations = self.camera_head(special_tokens.flatten(1, 2).to(dtype_of(self.camera_head)))
            leading = special_tokens.shape[1:3]
            of_groups = [sizes.chosen(torch.unflatten(pose, 1, leading)) for pose in iterations]
        return [
            self._group_output(trunk, own, tuple(pose[place] for pose in of_groups), limits)
            for place, (trunk, own) in enumerate(zip(trunks, encoded, strict=True))
        ]

    def _metric_scale(
        self, trunks: Sequence[TrunkOutput], sizes: SizeGroups, limits: ForwardLimits
    ) -> Float[Tensor, " B"] | None:
        if self.metric_head is None:
            return None
        levels = [self._last_level(trunk) for trunk in trunks]
        return self.metric_head(levels, sizes.grids, limits.max_queries)

    def _group_output(
        self, trunk: TrunkOutput, encoded: PatchTokens, iterations: tuple[Tensor, ...], limits: ForwardLimits
    ) -> NetworkOutput:
        """Assemble the output of views of one size from pose encodings and dense heads."""
        special, rays = self.aggregator.special.count, self.predicts_ray_map
        heads = (self.depth_head, self.point_head if self.predicts_points else None)
        depth, points = (run_dense_head(head, trunk, encoded, special, limits, rays=rays) for head in heads)
        cameras = None
        if self.camera_head is not None:
            rows, columns = encoded.grid
            size = (rows * self.config.patch_size, columns * self.config.patch_size)
            cameras = decode_pose(iterations[-1].to(torch.float64), size, self.camera_head.min_tangent)
        return NetworkOutput(
            world_to_camera=None if cameras is None else cameras.world_to_camera,
            intrinsics=None if cameras is None else cameras.intrinsics,
            pose_encoding=iterations[-1] if iterations else None,
            pose_encoding_iterations=iterations,
            depth=depth["values"][..., 0] if depth else None,
            depth_confidence=depth.get("confidence"),
            points=points.get("values"),
            points_confidence=points.get("confidence"),
            sky=depth.get("sky"),
            rays=self._rays(trunk, encoded.grid),
            ray_map=depth.get("rays"),
            ray_confidence=depth.get("ray_confidence"),
        )

    def _rays(self, trunk: TrunkOutput, grid: tuple[int, int]) -> Float[Tensor, "B T V rows columns 3"] | None:
        if self.ray_head is None:
            return None
        last = self._last_patches(trunk).to(dtype_of(self.ray_head))
        return torch.unflatten(functional.normalize(self.ray_head(last), dim=-1), -2, grid)

    def _last_patches(self, trunk: TrunkOutput) -> Float[Tensor, "B T V P C2"]:
        """Return the patch tokens of the last layer that dense heads read."""
        return self._last_level(trunk)[..., self.aggregator.special.count :, :]

    def _last_level(self, trunk: TrunkOutput) -> Float[Tensor, "B T V N C2"]:
        return trunk.levels[self.config.dense_layers[-1]]


def build_network(config: NetworkConfig) -> ViewTimeNetwork:
    """Build a network with random weights, drawn from torch's global generator."""
    return ViewTimeNetwork(config)


def _sums(first: Sequence[Tensor], second: Sequence[Tensor]) -> list[Tensor]:
    return [one + other for one, other in zip(first, second, strict=True)]
