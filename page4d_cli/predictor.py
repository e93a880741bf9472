"""Which predictor a command line asks for: weights, an untrained network, or measured depth."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from page4d.errors import CapabilityError, UsageError, WeightsError

if TYPE_CHECKING:
    import torch

    from page4d.export.run_record import NetworkRecord
    from page4d.inference.predict import Predictor
    from page4d.scene.records import Scene


class Precision(StrEnum):
    """Arithmetic of the trunk; heads and geometry stay in fp32."""

    AUTO = "auto"
    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"


@dataclass(frozen=True)
class NetworkChoice:
    """The options that name a network and where it runs."""

    weights: Path | None
    untrained: bool
    preset: str
    device: str
    precision: Precision
    seed: int


def choose_predictor(scene: "Scene", choice: NetworkChoice) -> tuple["Predictor", "NetworkRecord"]:
    """Build what makes the predictions, and the record of it for `run.json`.

    Raises:
        UsageError: if the options contradict each other.
        WeightsError: if no weights are given or they cannot be used.
        CapabilityError: if the device is not there.
    """
    from page4d.export.run_record import NetworkRecord
    from page4d.inference.predict import MeasuredDepth

    if any(view.depth is not None for view in scene.views):
        if choice.weights is not None or choice.untrained:
            raise UsageError("--depth replaces the network, but a network is asked for too", "give one of them")
        return MeasuredDepth(scene), NetworkRecord(name="measured depth, no network", trained=True)
    if choice.weights is not None and choice.untrained:
        raise UsageError("--weights and --untrained contradict each other", "give one of them")
    if choice.weights is not None:
        return _trained(choice, choice.weights)
    if not choice.untrained:
        raise WeightsError(
            "no weights are given", "pass --weights FILE, or --untrained to try everything but the values"
        )
    return _untrained(choice)


def _trained(choice: NetworkChoice, path: Path) -> tuple["Predictor", "NetworkRecord"]:
    import json

    from page4d.export.run_record import NetworkRecord
    from page4d.inference.predict import NetworkPredictor
    from page4d.weights.store import load_network

    device = _device(choice.device)
    loaded = load_network(path, device)
    record = NetworkRecord(
        name=loaded.info.description,
        trained=True,
        config=json.loads(loaded.config.to_json()),
        weights=path.name,
        sha256=loaded.info.sha256,
        licence=loaded.info.licence,
    )
    predictor = NetworkPredictor(
        network=loaded.network, device=device, precision=_precision(choice.precision, device)
    )
    return predictor, record


def _untrained(choice: NetworkChoice) -> tuple["Predictor", "NetworkRecord"]:
    import json

    import torch

    from page4d.export.run_record import NetworkRecord
    from page4d.inference.predict import NetworkPredictor
    from page4d.models.config import PRESETS
    from page4d.models.network import build_network

    if choice.preset not in PRESETS:
        raise UsageError(f"no preset is called '{choice.preset}'", f"choose from {', '.join(PRESETS)}")
    device = _device(choice.device)
    torch.manual_seed(choice.seed)
    network = build_network(PRESETS[choice.preset]).to(device).eval()
    record = NetworkRecord(
        name="page4d-mv",
        trained=False,
        preset=choice.preset,
        config=json.loads(network.config.to_json()),
    )
    return NetworkPredictor(network=network, device=device, precision=_precision(choice.precision, device)), record


def _device(name: str) -> "torch.device":
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"no device is called '{name}'", "give auto, cpu, cuda or cuda:N") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise CapabilityError(f"no CUDA device is available (torch {torch.__version__})", "use --device cpu")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise CapabilityError(f"there is no {name}: {torch.cuda.device_count()} CUDA devices", "use another index")
    if device.type not in ("cpu", "cuda"):
        raise CapabilityError(f"device '{name}' is not supported", "use cpu or cuda")
    return device


def _precision(choice: Precision, device: "torch.device") -> "torch.dtype":
    import torch

    if choice is Precision.AUTO:
        fast = device.type == "cuda" and torch.cuda.is_bf16_supported()
        return torch.bfloat16 if fast else torch.float32
    return {Precision.FP32: torch.float32, Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16}[choice]
