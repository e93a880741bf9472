"""Walk through a network without computing it: the shape, parameters and work of every stage, at any size."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from page4d.errors import UsageError
from page4d.layers.embed import patch_grid
from page4d.models.config import NetworkConfig
from page4d.models.network import ViewTimeNetwork, build_network
from page4d.models.schedule import Step, images_together

BYTES_A_NUMBER = 4
_GROUPS = {Step.FRAME: "B*T*V", Step.VIEW: "B*T", Step.TIME: "B*V", Step.GLOBAL: "B"}
_LENGTHS = {Step.FRAME: "N", Step.VIEW: "V*N", Step.TIME: "T*N", Step.GLOBAL: "T*V*N"}
_SEEN = {Step.FRAME: "one image", Step.VIEW: "fixed t", Step.TIME: "fixed v", Step.GLOBAL: "all images"}


_KNOWN_PARTS = ("special", "blocks", "stream_blocks", "dynamic", "mask_bias")


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage of the specification: what leaves it. `flops` counts a multiplication and an addition as two."""

    part: str
    name: str
    symbolic: str
    shape: tuple[int, ...]
    parameters: int = 0
    flops: int = 0

    @property
    def num_bytes(self) -> int:
        """Size of what leaves the stage, in float32."""
        return torch.Size(self.shape).numel() * BYTES_A_NUMBER


@dataclass(frozen=True, kw_only=True)
class Walk:
    """All stages of a network for one size of input."""

    symbols: dict[str, int]
    stages: tuple[Stage, ...]
    parameters: int

    @property
    def flops(self) -> int:
        """Work of linear layers, convolutions and attention; norms and activations are not counted."""
        return sum(stage.flops for stage in self.stages)


@dataclass
class _Ledger:
    """What hooks saw: work by the module that does it, shapes by name."""

    flops: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    attended: int = 0
    """Work of attention that no module has been given yet."""

    def work(self, *prefixes: str) -> int:
        """Return the work of all modules below some names."""
        return sum(
            work
            for name, work in self.flops.items()
            if any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)
        )


def walk_network(config: NetworkConfig, *, times: int, views: int, size: tuple[int, int], batch: int = 1) -> Walk:
    """Run a network of this configuration on the meta device, which holds shapes but no numbers.

    Every gate counts as open, and an external mask as given, so that all parts take part.

    Raises:
        ShapeError: if the sides of `size` (height, width) are no multiples of the patch size.
        UsageError: if there is nothing to look at.
    """
    if min(times, views, batch) < 1:
        raise UsageError(f"{batch} x {times} x {views} images", "give at least one time, one view and a batch of one")
    grid = patch_grid(*size, config.patch_size)
    with torch.device("meta"), _Unwritten():
        network = build_network(config).eval().requires_grad_(False)
    ledger = _Ledger()
    with _hooks(network, ledger), torch.device("meta"), _ShapesOnly(ledger), torch.no_grad():
        _run(network, ledger, (batch, times, views), grid)
    symbols = _symbols(config, network, (batch, times, views), size)
    stages = (
        *_encoding(network, ledger),
        *_mask(network, ledger),
        *_trunk(network, ledger),
        *_heads(network, ledger),
    )
    return Walk(symbols=symbols, stages=stages, parameters=_parameters(network))


def _run(network: ViewTimeNetwork, ledger: _Ledger, leading: tuple[int, int, int], grid: tuple[int, int]) -> None:
    """Pass through encoder, trunk and heads as the network does, and note what leaves them."""
    patch = network.config.patch_size
    images = torch.empty(*leading, 3, grid[0] * patch, grid[1] * patch)
    encoded = network.encoder(images.flatten(0, 2)).tokens
    patches = torch.unflatten(encoded, 0, leading)
    external = None if network.config.mask is None else torch.empty(*leading, *grid)
    trunk = network.aggregator(patches, grid, external)
    ledger.shapes |= {"images": tuple(images.shape), "encoded": tuple(encoded.shape), "patches": tuple(patches.shape)}
    if network.camera_head is not None:
        poses = network.camera_head(trunk.camera_tokens.flatten(1, 2))
        ledger.shapes["camera_head"] = tuple(torch.unflatten(poses[-1], 1, leading[1:]).shape)
    special = network.aggregator.special.count
    for name in ("depth_head", "point_head"):
        head, layers = getattr(network, name), getattr(network.config, name)
        if head is not None:
            levels = [trunk.levels[layer].flatten(0, 2)[:, special:] for layer in layers.layers]
            values, _ = head(levels, grid)
            ledger.shapes[name] = tuple(torch.unflatten(values, 0, leading).shape)
    if trunk.dynamic_logit is not None:
        ledger.shapes["dynamic"] = tuple(trunk.dynamic_logit.shape)
    if network.frame_head is not None:
        (level,) = trunk.levels.values()
        decoded = network.frame_head(level.flatten(0, 2), grid)
        for name in ("local_points", "confidence_logit", "camera_to_world"):
            ledger.shapes[name] = tuple(torch.unflatten(getattr(decoded, name), 0, leading).shape)


def _encoding(network: ViewTimeNetwork, ledger: _Ledger) -> list[Stage]:
    images, encoded, patches = (ledger.shapes[name] for name in ("images", "encoded", "patches"))
    special = ledger.shapes["aggregator.special"]
    tokens = network.aggregator.special
    registers = tokens.register_token.shape[2]
    camera = special[3] - registers
    leading, width = images[:3], special[-1]
    joined = encoded[1] + registers
    stages = [
        Stage(part="encoding", name="1 normalise", symbolic="B T V 3 H W", shape=images),
        Stage(part="encoding", name="2 images as one batch", symbolic="B*T*V 3 H W", shape=(encoded[0], *images[3:])),
        Stage(
            part="encoding",
            name="3 patch tokens (DINOv2)",
            symbolic="B*T*V P C",
            shape=encoded,
            parameters=_parameters(network.get_submodule("encoder")),
            flops=ledger.work("encoder"),
        ),
        Stage(
            part="encoding",
            name="4 register tokens",
            symbolic="B*T*V R C",
            shape=(encoded[0], registers, width),
            parameters=tokens.register_token.numel(),
        ),
        Stage(part="encoding", name="5 join", symbolic="B*T*V R+P C", shape=(encoded[0], joined, width)),
        Stage(part="encoding", name="6 group again", symbolic="B T V R+P C", shape=(*leading, joined, width)),
    ]
    if tokens.camera_token is not None:
        stages.append(
            Stage(
                part="encoding",
                name="7 camera token",
                symbolic="B T V 1+R+P C",
                shape=(*patches[:3], camera + joined, width),
                parameters=tokens.camera_token.numel(),
            )
        )
    return stages


def _mask(network: ViewTimeNetwork, ledger: _Ledger) -> list[Stage]:
    aggregator = network.aggregator
    if aggregator.dynamic is None or network.config.mask is None:
        return []
    logit = ledger.shapes["dynamic"]
    layers = network.config.mask.layers
    special = ledger.shapes["aggregator.special"][3]
    patches = logit[3] * logit[4]
    stages = [
        Stage(
            part="mask",
            name=f"M_tilde, M: {network.config.mask.head} head, fused with M_ext",
            symbolic="B T V gh gw",
            shape=logit,
            parameters=_parameters(aggregator.dynamic),
            flops=ledger.work("aggregator.dynamic"),
        )
    ]
    stages += [
        Stage(
            part="mask",
            name=f"M as key bias of {step}-attention, layers {layers[0]} to {layers[-1]}, 0 at special tokens",
            symbolic=f"{_GROUPS[step]} {_LENGTHS[step]}",
            shape=_merged((*logit[:3], special + patches), step),
        )
        for step in network.config.schedule
    ]
    if aggregator.mask_bias is not None and _parameters(aggregator.mask_bias):
        scalars = _parameters(aggregator.mask_bias)
        stages.append(
            Stage(part="mask", name="lambda of both streams", symbolic="4", shape=(scalars,), parameters=scalars)
        )
    return stages


def _trunk(network: ViewTimeNetwork, ledger: _Ledger) -> list[Stage]:
    aggregator, config = network.aggregator, network.config
    width = config.encoder.embed_dim
    stages = []
    for step in config.schedule:
        name = f"aggregator.blocks.{step}"
        stages.append(
            Stage(
                part="trunk",
                name=f"{step}-attention ({_SEEN[step]}), {config.depth} layers",
                symbolic=f"{_GROUPS[step]} {_LENGTHS[step]} C",
                shape=ledger.shapes[f"{name}.0"],
                parameters=_parameters(aggregator.blocks[step.value]),
                flops=ledger.work(name),
            )
        )
    for stream, blocks in aggregator.stream_blocks.items():
        first = ledger.shapes[f"aggregator.stream_blocks.{stream}.{config.schedule[0]}.0"]
        stages.append(
            Stage(
                part="trunk",
                name=f"blocks of the {stream} stream",
                symbolic=f"{_GROUPS[config.schedule[0]]} {_LENGTHS[config.schedule[0]]} C",
                shape=first,
                parameters=_parameters(blocks),
                flops=ledger.work(f"aggregator.stream_blocks.{stream}"),
            )
        )
    batch, times, views = ledger.shapes["patches"][:3]
    tokens = ledger.shapes["aggregator.special"][3] + ledger.shapes["patches"][3]
    shape = (batch, times, views, tokens, 2 * width)
    stages += [
        Stage(
            part="trunk",
            name=f"{name} attention",
            symbolic="B T V N C",
            shape=(*shape[:4], width),
            parameters=_parameters(part),
            flops=ledger.work(f"aggregator.{name}"),
        )
        for name, part in aggregator.named_children()
        if name not in _KNOWN_PARTS and _parameters(part)
    ]
    kept = ", ".join(map(str, config.dense_layers))
    if kept:
        stages.append(Stage(part="trunk", name=f"read-out of layers {kept}", symbolic="B T V N 2C", shape=shape))
    return stages


def _heads(network: ViewTimeNetwork, ledger: _Ledger) -> list[Stage]:
    rows = {
        "camera_head": ("camera_head", "pose encodings (t, quaternion, fov)", "B T V 9"),
        "depth_head": ("depth_head", "depth", "B T V H W 1"),
        "point_head": ("point_head", "points in the world", "B T V H W 3"),
        "local_points": ("frame_head", "points in the camera", "B T V H W 3"),
        "confidence_logit": ("frame_head", "confidence", "B T V H W"),
        "camera_to_world": ("frame_head", "camera to world", "B T V 4 4"),
    }
    within_frame_head = {
        "local_points": ("point_decoder", "point_out"),
        "confidence_logit": ("confidence_decoder", "confidence_out"),
        "camera_to_world": ("camera_decoder", "pose"),
    }
    stages = []
    for name, (head, title, symbolic) in rows.items():
        if name not in ledger.shapes:
            continue
        modules = [f"{head}.{part}" for part in within_frame_head[name]] if name in within_frame_head else [head]
        stages.append(
            Stage(
                part="heads",
                name=title,
                symbolic=symbolic,
                shape=ledger.shapes[name],
                parameters=sum(_parameters(network.get_submodule(module)) for module in modules),
                flops=ledger.work(*modules),
            )
        )
    return stages


def _symbols(
    config: NetworkConfig, network: ViewTimeNetwork, leading: tuple[int, int, int], size: tuple[int, int]
) -> dict[str, int]:
    rows, columns = patch_grid(*size, config.patch_size)
    special = network.aggregator.special
    return {
        **dict(zip("BTV", leading, strict=True)),
        "H": size[0],
        "W": size[1],
        "gh": rows,
        "gw": columns,
        "P": rows * columns,
        "R": special.register_token.shape[2],
        "N": special.count + rows * columns,
        "C": config.encoder.embed_dim,
    }


def _merged(shape: tuple[int, ...], step: Step) -> tuple[int, int]:
    batch, times, views, tokens = shape
    together = images_together(step, times, views)
    return batch * times * views // together, together * tokens


def _parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@contextmanager
def _hooks(network: nn.Module, ledger: _Ledger) -> Any:
    """Note shapes and work of every module that runs inside the body."""
    handles = [module.register_forward_hook(_note(ledger, name)) for name, module in network.named_modules() if name]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _note(ledger: _Ledger, name: str) -> Callable[[nn.Module, Any, Any], None]:
    def hook(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if isinstance(output, Tensor):
            ledger.shapes[name] = tuple(output.shape)
            ledger.flops[name] += _work(module, inputs, output) + ledger.attended
            ledger.attended = 0

    return hook


def _work(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> int:
    """Count multiplications and additions of what a module computes itself."""
    if isinstance(module, nn.Linear):
        return 2 * output.numel() * int(module.in_features)
    if isinstance(module, nn.ConvTranspose2d):
        return 2 * int(inputs[0].numel()) * module.weight[0].numel()
    if isinstance(module, nn.Conv2d):
        return 2 * output.numel() * module.weight[0].numel()
    return 0


class _Unwritten(TorchFunctionMode):
    """Leave out the filling of tensors that hold no numbers."""

    _FILLS = frozenset(
        getattr(Tensor, name)
        for name in ("uniform_", "normal_", "erfinv_", "mul_", "add_", "clamp_", "fill_", "zero_")
    )

    def __torch_function__(
        self, function: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        if function in self._FILLS:
            return args[0]
        return function(*args, **(kwargs or {}))


class _ShapesOnly(TorchFunctionMode):
    """Pass by what keeps a shape, and answer 1 where a network asks for a number: no gate is closed then."""

    _ANSWERS: dict[Any, float | bool] = {Tensor.__float__: 1.0, Tensor.item: 1.0, Tensor.__bool__: True}  # noqa: RUF012
    _SAME = frozenset((functional.layer_norm, functional.gelu, functional.relu, functional.silu))

    def __init__(self, ledger: _Ledger) -> None:
        super().__init__()
        self.ledger = ledger

    def __torch_function__(
        self, function: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        if function in self._ANSWERS:
            return self._ANSWERS[function]
        if function in self._SAME:
            return args[0]
        if function is functional.scaled_dot_product_attention:
            query, key, value = args[:3]
            pairs = query.shape[:-1].numel() * key.shape[-2]
            self.ledger.attended += 2 * pairs * (query.shape[-1] + value.shape[-1])
            return query[..., :1].expand(*query.shape[:-1], value.shape[-1])
        return function(*args, **(kwargs or {}))
