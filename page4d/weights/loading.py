"""Loading of networks and encoders from weights files, at a given device and precision; the bundled network."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from page4d.choices import Precision
from page4d.errors import ON_STDERR, CapabilityError, Observer, UsageError, WeightsError, counted, unknown_name
from page4d.io.atomic import describe_mismatch, parse_pin
from page4d.networks.conditioning import NO_CONDITIONING, Conditioning
from page4d.networks.config import NetworkConfig
from page4d.networks.encoders.build import EncoderConfig, build_encoder
from page4d.networks.inputs.known_geometry import PoseBlock
from page4d.networks.layers.block import Block, MixerBlock
from page4d.networks.layers.execution import ForwardLimits, exact_convolutions
from page4d.networks.network import ViewTimeNetwork
from page4d.networks.output import NetworkOutput, RigOutput
from page4d.networks.profile.meta import on_meta_device
from page4d.weights.file_type import FETCH_AGAIN
from page4d.weights.names import BUNDLED_FILE
from page4d.weights.resolve import find_weights
from page4d.weights.store import WeightsInfo, damaged, describe_encoder, describe_weights, is_finite

_HALVES = (torch.float16, torch.bfloat16)
_FREE_SETTINGS = ("num_classes", "drop_path", "level")
"""Settings in which an encoder may differ from that of a network that it fills."""

DTYPES = {Precision.FP32: torch.float32, Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16}

BUNDLED_KIND = "a demonstration, trained on synthetic scenes alone"
BUNDLED_NOTICE = f"{BUNDLED_KIND}: for real footage pass ⟨weights=da3-base⟩"
"""What the bundled network is, and what to do about it."""

BUNDLED_NAME = "mv-demo 1.1"
"""Name and version of the bundled network."""

_BUNDLED_SHA256 = "4755241741c22a19a1a0d5ca857a5e38c9e53e5d90a5ba9deae4f28c1e81e7c5"


class LoadedNetwork(ViewTimeNetwork):
    """A network whose encoder and trunk may compute in half precision, its heads in float32.

    In half precision linear layers of blocks are stored in it, the type to which autocast would convert them in every
    call. Norms, tokens, position tables, the mask and the heads are stored in float32. `info` is the provenance of
    the weights.
    """

    info: WeightsInfo

    def __init__(self, config: NetworkConfig, precision: torch.dtype = torch.float32) -> None:
        super().__init__(config)
        self.precision = precision
        for linear in _linears_of_blocks(self) if precision in _HALVES else ():
            linear.to(precision)

    def forward(
        self,
        images: Float[Tensor, "B T V 3 H W"] | Sequence[Float[Tensor, "B T 3 _ _"]],
        mask_ext: Float[Tensor, "B T V H W"] | Sequence[Float[Tensor, "B T _ _"]] | None = None,
        *,
        conditioning: Conditioning = NO_CONDITIONING,
        limits: ForwardLimits | None = None,
    ) -> NetworkOutput | RigOutput:
        """Predict as `ViewTimeNetwork.forward`, with encoder and trunk in the precision of the network."""
        if self.precision not in _HALVES:
            with exact_convolutions():
                return super().forward(images, mask_ext, conditioning=conditioning, limits=limits)
        with torch.autocast(next(self.parameters()).device.type, dtype=self.precision):
            return super().forward(images, mask_ext, conditioning=conditioning, limits=limits)


def load(
    path: Path | str | None = None,
    device: str | torch.device = "auto",
    precision: str = Precision.AUTO,
    sha256: str | None = None,
    observer: Observer | None = ON_STDERR,
) -> LoadedNetwork:
    """Load a network by the name of a public checkpoint, from the hub, or from a file.

    `network(images)` takes images [B, T, V, 3, H, W] in [0, 1] on the same device and returns a `NetworkOutput`. A
    set of S single images is passed as S instants of one view. The network is in evaluation mode, and its parameters
    do not require gradients; in fp32 it can be trained further after `requires_grad_()`.

    Args:
        path: a file, the name of a public checkpoint, or `hf:org/name[@revision][:file]`, which are fetched once; by
            default the bundled network.
        device: auto, cpu, cuda or cuda:N.
        precision: precision of encoder and trunk: auto, fp32, bf16 or fp16.
        sha256: SHA-256 that the file, or that of the hub, must have; that of the bundled network is always checked.
        observer: receives the licence and the progress of weights that are fetched; None is silent.

    Raises:
        WeightsError: if the file is missing, damaged, of another kind or of another network, has another hash, or
            cannot be fetched.
        UsageError: if the name, device or precision is unknown, or `sha256` is no hash or given without a file.
        CapabilityError: if the device is not available.
    """
    place = choose_device(device)
    dtype = choose_precision(precision, place)
    found = find_weights(path, parse_pin(path, sha256), observer)
    if found.path == BUNDLED_FILE:
        config, info = describe_weights(
            found.path, _BUNDLED_SHA256, "the bundled network is damaged: reinstall page4d"
        )
    else:
        config, info = describe_weights(found.path, found.sha256)
        if found.sha256 is None:
            _check_copy(info)
    with on_meta_device():
        network = LoadedNetwork(config, dtype)
    # Half precision copies every tensor, so that the file does not stay memory-mapped for a few norms.
    tensors = _read_tensors(found.path, network.state_dict(), place, copied=dtype in _HALVES)
    network.load_state_dict(tensors, assign=True)
    network.info = info
    return network.eval().requires_grad_(False)


def _check_copy(info: WeightsInfo) -> None:
    """Refuse a damaged copy of the bundled network; one that was trained further has a description of its own.

    Raises:
        WeightsError: if a file has the description of the bundled network, and another hash.
    """
    if not BUNDLED_FILE.is_file() or describe_weights(BUNDLED_FILE)[1].description != info.description:
        return
    if info.sha256 != _BUNDLED_SHA256:
        mismatch = describe_mismatch(info.sha256, _BUNDLED_SHA256)
        raise WeightsError(
            f"'{info.path}' is described as the bundled network, and {mismatch}",
            "it is damaged: leave ⟨weights⟩ out; if it was trained further, give its ⟨sha256⟩",
        )


def load_encoder(path: Path) -> tuple[nn.Module, EncoderConfig, WeightsInfo]:
    """Load an encoder in evaluation mode in float32 on the CPU, with its configuration and provenance.

    Raises:
        WeightsError: if the file is missing, damaged, of another kind or of another encoder.
    """
    config, info = describe_encoder(path)
    with on_meta_device():
        encoder = build_encoder(config)
    encoder.load_state_dict(_read_tensors(path, encoder.state_dict(), "cpu"), assign=True)
    return encoder.eval(), config, info


def fill_encoder(network: ViewTimeNetwork, path: Path, name: str) -> WeightsInfo:
    """Fill the encoder of a network with the weights of a file, and return their provenance.

    A classification head in the file is ignored; the stochastic depth rate is that of the network. Messages call the
    network `name`.

    Raises:
        WeightsError: if the file is missing or damaged, or its encoder differs from that of the network.
    """
    encoder, config, info = load_encoder(path)
    own = network.config.encoder
    if config.kind != own.kind:
        raise WeightsError(
            f"'{path}' is a {config.kind}, and {name} has a {own.kind}",
            "give ⟨model⟩ a network with this encoder, as a JSON file",
        )
    theirs, ours = asdict(config), asdict(own)
    differing = [key for key in theirs if key not in _FREE_SETTINGS and theirs[key] != ours[key]]
    if differing:
        raise WeightsError(
            f"'{path}' has {', '.join(f'{key} {theirs[key]}' for key in differing)} where {name} has "
            + ", ".join(f"{ours[key]}" for key in differing),
            "give ⟨model⟩ a network with this encoder, as a JSON file",
        )
    tensors = {key: value for key, value in encoder.state_dict().items() if not key.startswith("head.")}
    network.get_submodule("encoder").load_state_dict(tensors)
    return info


def choose_device(name: str | torch.device = "auto") -> torch.device:
    """Return a device by name; `auto` is a GPU if there is one.

    Raises:
        UsageError: if the name is not that of a device.
        CapabilityError: if this machine has no such device, or its type is not supported.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"no device is called '{name}'", "give auto, cpu, cuda or cuda:N") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise CapabilityError(f"no CUDA device is available (torch {torch.__version__})", "use ⟨device=cpu⟩")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise CapabilityError(f"there is no {name}: {torch.cuda.device_count()} CUDA devices", "use another index")
    if device.type not in ("cpu", "cuda"):
        raise CapabilityError(f"device '{name}' is not supported", "use cpu or cuda")
    return device


def choose_precision(name: str, device: torch.device) -> torch.dtype:
    """Return the precision of a name on a device.

    Raises:
        UsageError: if the name is not that of a precision.
    """
    if name not in list(Precision):
        raise unknown_name("precision", name, list(Precision))
    if name == Precision.AUTO:
        fast = device.type == "cuda" and torch.cuda.is_bf16_supported()
        return torch.bfloat16 if fast else torch.float32
    return DTYPES[Precision(name)]


def _read_tensors(
    path: Path, expected: Mapping[str, Tensor], device: torch.device | str, *, copied: bool = False
) -> dict[str, Tensor]:
    """Read exactly the expected tensors, in their types."""
    try:
        with safe_open(path, framework="pt") as file:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
            _check_tensors(path, expected, shapes)
            return {
                name: _converted(path, name, file.get_tensor(name), kept.dtype, copied=copied).to(device)
                for name, kept in expected.items()
            }
    except (SafetensorError, OSError) as error:
        raise damaged(path, error) from error


def _converted(path: Path, name: str, tensor: Tensor, dtype: torch.dtype, *, copied: bool) -> Tensor:
    """Return a tensor of a file in another type; refuse values that are not finite, also in that type."""
    if tensor.is_floating_point() != dtype.is_floating_point:
        raise WeightsError(f"'{path}': tensor '{name}' is {tensor.dtype}, the network's {dtype}", FETCH_AGAIN)
    if not is_finite(tensor):
        raise WeightsError(f"'{path}': tensor '{name}' holds values that are not finite", FETCH_AGAIN)
    converted = tensor.to(dtype, copy=copied)
    if not is_finite(converted):
        raise WeightsError(f"'{path}': tensor '{name}' exceeds the range of {dtype}", "pass ⟨precision=bf16⟩ or fp32")
    return converted


def _linears_of_blocks(network: ViewTimeNetwork) -> Iterator[nn.Linear]:
    """Yield the layers of encoder and trunk that autocast always runs in half precision."""
    for name in ("encoder", "known_geometry", "aggregator"):
        part: nn.Module | None = getattr(network, name)
        for block in () if part is None else part.modules():
            if isinstance(block, Block | MixerBlock | PoseBlock):
                yield from (module for module in block.modules() if isinstance(module, nn.Linear))
    if network.metric_network is not None:
        yield from _linears_of_blocks(network.metric_network)


def _check_tensors(path: Path, expected: Mapping[str, Tensor], found: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse tensors whose names or shapes differ, naming the first."""
    missing = [name for name in expected if name not in found]
    unexpected = [name for name in found if name not in expected]
    hint = "the file does not fit its own configuration; " + FETCH_AGAIN
    if missing:
        raise WeightsError(f"'{path}': {counted(len(missing), 'tensor')} missing, first: {missing[0]}", hint)
    if unexpected:
        raise WeightsError(f"'{path}': {counted(len(unexpected), 'tensor')} unexpected, first: {unexpected[0]}", hint)
    misshaped = [name for name, value in expected.items() if found[name] != tuple(value.shape)]
    if misshaped:
        name = misshaped[0]
        raise WeightsError(
            f"'{path}': {counted(len(misshaped), 'tensor')} misshaped, first: {name} is {list(found[name])} "
            f"where the network has {list(expected[name].shape)}",
            hint,
        )
