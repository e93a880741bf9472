"""Profile of a network at any size and stage by stage, from a run on the meta device."""

from collections.abc import Iterator, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from page4d.choices import FullAttention, SparseStrategy
from page4d.errors import UsageError, counted
from page4d.networks.conditioning import Conditioning
from page4d.networks.config import NetworkConfig, Step
from page4d.networks.config_parts import MaskRule
from page4d.networks.encoders.stem import StemConfig
from page4d.networks.layers.block import FeedForwardKind, patch_grid, swiglu_width
from page4d.networks.layers.execution import NO_LIMITS, ForwardLimits
from page4d.networks.network import ViewTimeNetwork, build_network
from page4d.networks.profile.meta import meta_run, on_meta_device
from page4d.networks.profile.table import Profile, ProfileBuilder, ProfileStage, num_parameters
from page4d.networks.sparse import cell_counts, dilated_neighbours

_ENCODERS = {
    "dinov2": "DINOv2",
    "dinov3": "DINOv3",
    "vit": "ViT",
    "swin": "Swin",
    "twins": "Twins-SVT",
    "navit": "NaViT",
}
"""Names of the encoders in their papers, by kind of configuration."""

_GROUPED = {
    Step.FRAME: ("B*T*V N", "one image"),
    Step.VIEW: ("B*T V*N", "fixed t"),
    Step.TIME: ("B*V T*N", "fixed v"),
    Step.GLOBAL: ("B T*V*N", "all images"),
}
"""Groups of tokens within which a step attends, as axes and in words."""

MAX_IMAGES = 2**20
"""Largest number of images of a profile; no memory holds as many."""

_MAX_COMPARISONS = 2**38
"""Largest number of pairs of patches and cells that are matched."""

_NetworkProfile = ProfileBuilder[ViewTimeNetwork]


def profile_network(
    config: NetworkConfig,
    *,
    times: int,
    views: int,
    size: tuple[int, int],
    batch: int = 1,
    limits: ForwardLimits = NO_LIMITS,
) -> Profile:
    """Run a network of this configuration on the meta device.

    All parts run: gates are open, and cameras, keypoints and masks are given to networks that use them, except a mask
    that would replace the motion head. A network that treats all images as views of one instant has T = 1.

    Raises:
        ShapeError: if the sides of `size` (height, width) are not multiples of the patch size.
        UsageError: if there are no images, or too many.
    """
    if min(times, views, batch) < 1:
        raise UsageError(f"{batch} x {times} x {views} images", "give at least one time, one view and a batch of one")
    num_images = batch * times * views
    if num_images > MAX_IMAGES:
        raise UsageError(f"{num_images:,} images", f"profile at most {MAX_IMAGES:,} at once")
    grid = patch_grid(*size, config.patch_size)
    patches = grid[0] * grid[1]
    if config.matches is not None and num_images * (patches * config.matches.finer) ** 2 > _MAX_COMPARISONS:
        raise UsageError(
            f"matching of {patches:,} patches in each of {num_images:,} images", "profile fewer or smaller images"
        )
    network = _network_on_meta(config)
    with meta_run(network) as run:
        images = torch.empty(batch, times, views, 3, *size)
        takes_mask = config.mask is not None and config.motion_head is None
        mask = torch.empty(batch, times, views, *size) if takes_mask else None
        network(images, mask, conditioning=_conditioning(config, images, grid), limits=limits)
    joint = config.full_attention is FullAttention.ALWAYS
    if joint or (config.full_attention is FullAttention.ONE_VIEW and views == 1):
        times, views = 1, times * views
    symbols = _symbols(network, (batch, times, views), grid)
    builder = ProfileBuilder(network=network, run=run, symbols=symbols)
    return builder.profile(network_stages(builder))


def forward_cost(
    config: NetworkConfig, *, times: int, sizes: Sequence[tuple[int, int]], limits: ForwardLimits = NO_LIMITS
) -> tuple[int, int]:
    """Return the peak memory in float32 of a network's inputs and all that is computed from them, and its FLOPs.

    `sizes` are the (height, width) of every view. There are no masks, and no ray and point maps; cameras, depth and
    keypoints are given to networks that use them, if all views have one size.
    """
    network = _network_on_meta(config, all_maps=False)
    with meta_run(network) as run:
        if len(set(sizes)) > 1:
            network([torch.empty(1, times, 3, *size) for size in sizes], limits=limits)
        else:
            images = torch.empty(1, times, len(sizes), 3, *sizes[0])
            conditioning = _conditioning(config, images, patch_grid(*sizes[0], config.patch_size))
            network(images, conditioning=conditioning, limits=limits)
    return run.peak, sum(run.flops.values())


@lru_cache(maxsize=4)
def _network_on_meta(config: NetworkConfig, *, all_maps: bool = True) -> ViewTimeNetwork:
    with on_meta_device():
        network = build_network(config).eval().requires_grad_(False)
    network.predicts_ray_map = network.predicts_points = all_maps
    return network


def network_stages(builder: _NetworkProfile) -> tuple[ProfileStage, ...]:
    """Return all stages; their parameters add up to those of the network."""
    return (
        *_encoding(builder),
        *_inputs(builder),
        *_mask(builder),
        *_trunk(builder),
        *_sparse(builder),
        *_heads(builder),
        *_metric_network(builder),
    )


def _conditioning(config: NetworkConfig, images: Tensor, grid: tuple[int, int]) -> Conditioning:
    """Return all conditioning inputs of the network."""
    leading = images.shape[:3]
    cameras = config.takes_cameras
    return Conditioning(
        keypoints=None if config.sparse is None else images.new_empty(*leading, *grid),
        intrinsics=images.new_empty(*leading, 3, 3) if cameras else None,
        world_to_camera=images.new_empty(*leading, 4, 4) if cameras else None,
        depths=images.new_empty(*leading, *images.shape[4:]) if config.known_geometry else None,
    )


def _symbols(network: ViewTimeNetwork, leading: tuple[int, int, int], grid: tuple[int, int]) -> dict[str, int]:
    config, special = network.config, network.aggregator.special
    patches, width = grid[0] * grid[1], config.encoder.embed_dim
    symbols = {
        **dict(zip("BTV", leading, strict=True)),
        "H": grid[0] * config.patch_size,
        "W": grid[1] * config.patch_size,
        "gh": grid[0],
        "gw": grid[1],
        "P": patches,
        "R": config.num_registers,
        "N": special.count + patches,
        "C": width,
        "h": config.num_heads,
        "d": width // config.num_heads,
    }
    if isinstance(config.encoder, StemConfig):
        symbols["F"] = config.encoder.fine_dim
    if config.matches is not None:
        symbols["G"] = len(config.matches.targets)
        symbols["Q"] = patches * config.matches.finer**2
    if config.sparse is not None:
        if config.sparse.strategy is SparseStrategy.LANDMARK:
            rows, columns = cell_counts(grid, config.sparse.landmarks)
            symbols["L"] = special.count + rows * columns
        elif config.sparse.strategy is SparseStrategy.DILATED:
            symbols["E"] = max(map(len, dilated_neighbours(*leading[1:], config.sparse.dilations)))
        else:
            symbols["M"] = config.sparse.memory_tokens
    return symbols


def _encoding(builder: _NetworkProfile) -> Iterator[ProfileStage]:
    tokens, part = builder.network.aggregator.special, "encoding"
    yield builder.stage(part, "1 normalized images", "B T V 3 H W")
    yield builder.stage(part, "2 images in one batch", "B*T*V 3 H W")
    if isinstance(builder.network.config.encoder, StemConfig):
        yield builder.stage(part, "3 fine feature map (first convolution)", "B*T*V F H/2 W/2", "encoder.fine")
        rest = ("encoder.middle", "encoder.coarse", "encoder.coarse_norm", "encoder.blocks", "encoder.norm")
        yield builder.stage(part, "3 patch tokens (convolutions and blocks)", "B*T*V P C", *rest)
    else:
        name = _ENCODERS[builder.network.config.encoder.kind]
        yield builder.stage(part, f"3 patch tokens ({name})", "B*T*V P C", "encoder")
    if tokens.register_token is not None:
        yield builder.stage(part, "4 register tokens", "B*T*V R C", parameters=tokens.register_token.numel())
    if tokens.count == 0:
        return
    yield builder.stage(part, "5 concatenated tokens", "B*T*V R+P C")
    yield builder.stage(part, "6 tokens per image", "B T V R+P C")
    if tokens.camera_token is not None:
        yield builder.stage(part, "7 camera token", "B T V 1+R+P C", parameters=tokens.camera_token.numel())


def _inputs(builder: _NetworkProfile) -> Iterator[ProfileStage]:
    network, part = builder.network, "inputs"
    if network.matching is not None:
        yield builder.stage(part, "match scores with the cells of G images", "B T V P Q", "matching")
    if network.ray_embedding is not None:
        yield builder.stage(part, "ray embedding of known cameras", "B T V P C", "ray_embedding")
    if network.camera_encoder is not None:
        yield builder.stage(part, "tokens of known cameras", "B T V C", "camera_encoder")
    if network.known_geometry is not None:
        yield builder.stage(part, "embedding of known rays", "B T V P C", "known_geometry.rays")
        token = network.known_geometry.depth_token.numel()
        yield builder.stage(
            part, "tokens of known depth maps", "B T V P C", "known_geometry.depth_encoder", parameters=token
        )
    if network.triangulation is not None:
        yield builder.stage(part, "triangulated matches", "B T V P C", "triangulation")


def _mask(builder: _NetworkProfile) -> Iterator[ProfileStage]:
    mask, aggregator, part = builder.network.config.mask, builder.network.aggregator, "mask"
    if mask is None or aggregator.dynamic is None or aggregator.mask_bias is None:
        return
    gates = [
        f"aggregator.dynamic.{name}" for name in ("alpha_gate", "beta_gate") if hasattr(aggregator.dynamic, name)
    ]
    scalars = sum(parameter.numel() for parameter in aggregator.dynamic.parameters(recurse=False))
    yield builder.stage(part, f"predicted mask ({mask.head} head)", "B T V gh gw", "aggregator.dynamic.head")
    name = "mask, fused with the external mask"
    yield builder.stage(part, name, "B T V P", *gates, parameters=scalars)
    layers = _listed(mask.layers)
    for step in builder.network.config.schedule:
        if mask.rule is MaskRule.LAMBDA or step.across_views:
            name = f"mask bias of {step}-attention, {layers}"
            yield builder.stage(part, name, _GROUPED[step][0])
    scalars = num_parameters(aggregator.mask_bias)
    if scalars:
        name = "weights (lambda) of the mask bias"
        yield builder.stage(part, name, f"{scalars}", "aggregator.mask_bias")


def _trunk(builder: _NetworkProfile) -> Iterator[ProfileStage]:
    config, aggregator, part = builder.network.config, builder.network.aggregator, "trunk"
    if config.depth == 0:
        name = f"levels for the depth head, {_listed(config.dense_layers)}"
        yield builder.stage("encoding", name, "B T V P C")
        return
    hidden = _hidden_width(config, builder.symbols["C"])
    for step in config.schedule:
        axes, words = _GROUPED[step]
        groups, length = axes.split()
        num_layers = config.depth - (config.starts_across and not step.across_views)
        name = f"{step}-attention ({words}), {counted(num_layers, 'layer')}"
        yield builder.stage(part, name, f"{groups} {length} C", f"aggregator.blocks.{step}")
        yield builder.stage(part, f"{step}-attention: q, k, v", f"3 {groups} h {length} d")
        yield builder.stage(part, f"{step}-attention: hidden layer of the MLP", f"{groups} {length} {hidden}")
        yield builder.stage(part, f"{step}-attention: tokens per image", "B T V N C")
    if config.register_layers:
        name = f"attention of special tokens alone, {_listed(config.register_layers)}"
        yield builder.stage(part, name, f"B T V {'1+' * config.camera_token}R C")
    if config.epipolar is not None:
        name = f"epipolar prior of view-attention, {_listed(config.epipolar.layers)}"
        yield builder.stage(part, name, "B*T V*N V*N")
    if aggregator.pose_injection is not None:
        name = f"injection of known poses, {_listed(aggregator.pose_injection.config.pose_layers)}"
        yield builder.stage(part, name, "B T*V*P C", "aggregator.pose_injection")
    for stream in aggregator.stream_blocks:
        name = f"own blocks of the {stream} stream"
        yield builder.stage(part, name, "B T V N C", f"aggregator.stream_blocks.{stream}")
    if aggregator.time is not None:
        name = f"relative time ({config.time_encoding}): one gate per layer"
        yield builder.stage(part, name, f"{config.depth}", "aggregator.time")
    if config.dense_layers:
        name = f"outputs of both steps for the heads, {_listed(config.dense_layers)}"
        yield builder.stage(part, name, "B T V N 2*C", "aggregator.readout_norm")


def _sparse(builder: _NetworkProfile) -> Iterator[ProfileStage]:
    sparse, part = builder.network.config.sparse, "sparse"
    if sparse is None:
        return
    yield builder.stage(part, f"{sparse.strategy} attention after {_listed(sparse.layers)}", "B T*V*N C")
    keys = {
        SparseStrategy.LANDMARK: ("keys: special tokens and landmarks", "B T*V*L C"),
        SparseStrategy.DILATED: ("keys: tokens of at most E images", "B E*N C"),
        SparseStrategy.MEMORY: ("memory tokens", "B M C"),
    }
    yield builder.stage(part, *keys[sparse.strategy])
    yield builder.stage(part, "tokens per image", "B T V N C", "aggregator.sparse")


def _heads(builder: _NetworkProfile) -> Iterator[ProfileStage]:
    rows = (
        ("pose encodings (t, quaternion, fov)", "B T V 9", "camera_head"),
        ("depth", "B T V H W 1", "depth_head"),
        ("world points", "B T V H W 3", "point_head"),
        ("patch rays", "B T V gh gw 3", "ray_head"),
        ("motion log-odds", "B T V H W", "motion_head"),
    )
    for name, symbolic, head in rows:
        if getattr(builder.network, head) is not None:
            yield builder.stage("heads", name, symbolic, head)
    depth_head = builder.network.config.depth_head
    if depth_head is not None and depth_head.ray_map:
        yield builder.stage("heads", "ray map (directions, origins), by the depth head", "B T V 8*gh 8*gw 6")
    if depth_head is not None and depth_head.sky:
        yield builder.stage("heads", "sky", "B T V H W")
    if builder.network.frame_head is not None:
        point, confidence, camera = (f"frame_head.{name}_decoder" for name in ("point", "confidence", "camera"))
        yield builder.stage("heads", "camera-frame points", "B T V H W 3", point, "frame_head.point_out")
        yield builder.stage("heads", "confidence", "B T V H W", confidence, "frame_head.confidence_out")
        yield builder.stage("heads", "camera-to-world poses", "B T V 4 4", camera, "frame_head.pose")
    if builder.network.metric_head is not None:
        yield builder.stage("heads", "metric scale, from the tokens of all images", "B", "metric_head")


def _metric_network(builder: _NetworkProfile) -> Iterator[ProfileStage]:
    metric, part = builder.network.metric_network, "metric network"
    if metric is None:
        return
    encoder = metric.config.encoder
    name = f"levels for its depth head ({_ENCODERS[encoder.kind]})"
    yield builder.stage(part, name, f"B*T*V P {encoder.embed_dim}", "metric_network.encoder")
    yield builder.stage(part, "depth for a focal length", "B T V H W", "metric_network.depth_head")
    yield builder.stage(part, "sky", "B T V H W")


def _hidden_width(config: NetworkConfig, width: int) -> str:
    """Return the width of the first layer of the feed-forward networks of the trunk; of SwiGLU, for both factors."""
    hidden = int(config.mlp_ratio * width)
    if config.feed_forward is FeedForwardKind.SWIGLU:
        return f"{2 * swiglu_width(hidden)}"
    return f"{config.mlp_ratio:g}*C" if config.mlp_ratio % 1 == 0 else f"{hidden}"


def _listed(layers: tuple[int, ...]) -> str:
    """Name layers, consecutive ones as a range."""
    first, last = layers[0], layers[-1]
    if len(layers) > 2 and layers == tuple(range(first, last + 1)):
        return f"layers {first}-{last}"
    return f"layer{'s' if len(layers) > 1 else ''} {', '.join(map(str, layers))}"
