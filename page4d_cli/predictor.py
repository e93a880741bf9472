"""Which predictor a command line asks for: a network (the bundled one if none is named), or measured depth."""

from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from page4d.errors import UsageError

if TYPE_CHECKING:
    import torch

    from page4d.export.run_record import NetworkRecord
    from page4d.inference.predictor import NetworkPredictor, Predictor
    from page4d.models.network import ViewTimeNetwork
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
    tells_cameras: bool = True
    """Whether the network is told the calibrated cameras."""
    refines: bool = True
    """Whether cameras and depth are made to agree with its matches."""


def choose_predictor(scene: "Scene", choice: NetworkChoice) -> tuple["Predictor", "NetworkRecord"]:
    """Build what makes the predictions, and the record of it for `run.json`.

    Raises:
        UsageError: if the options contradict each other.
        WeightsError: if the weights cannot be used.
        CapabilityError: if the device is not there.
    """
    from page4d.export.run_record import NetworkRecord
    from page4d.inference.predictor import MeasuredDepth

    if any(view.depth is not None for view in scene.views):
        if choice.weights is not None or choice.untrained:
            raise UsageError("--depth replaces the network, but a network is asked for too", "give one of them")
        return MeasuredDepth(scene), NetworkRecord(name="measured depth, no network", trained=True)
    return choose_network(choice)


@lru_cache(maxsize=1)
def choose_network(choice: NetworkChoice) -> tuple["NetworkPredictor", "NetworkRecord"]:
    """Build a network that makes predictions, and its record; the scenes of a batch share it.

    Raises:
        UsageError: if the options contradict each other.
        WeightsError: if the weights cannot be used.
        CapabilityError: if the device is not there.
    """
    if choice.weights is not None and choice.untrained:
        raise UsageError("--weights and --untrained contradict each other", "give one of them")
    return _untrained(choice) if choice.untrained else _trained(choice)


def _trained(choice: NetworkChoice) -> tuple["NetworkPredictor", "NetworkRecord"]:
    import json

    from page4d.export.run_record import NetworkRecord
    from page4d.models.ood import OODLimits
    from page4d.weights.bundled import NOTICE, bundled_weights
    from page4d.weights.loading import load_network
    from page4d.weights.placement import choose_device, choose_precision

    device = choose_device(choice.device)
    precision = choose_precision(choice.precision, device)
    loaded = load_network(choice.weights or bundled_weights(), device, precision)
    record = NetworkRecord(
        name=loaded.info.description,
        trained=True,
        config=json.loads(loaded.config.to_json()),
        weights=loaded.info.path.name,
        sha256=loaded.info.sha256,
        licence=loaded.info.licence,
        notice=NOTICE if choice.weights is None else "",
    )
    domain = loaded.info.metadata.get("domain")
    predictor = _network_predictor(choice, loaded.network, device, precision)
    return replace(predictor, domain=None if domain is None else OODLimits.from_json(domain)), record


def _untrained(choice: NetworkChoice) -> tuple["NetworkPredictor", "NetworkRecord"]:
    import json

    import torch

    from page4d.export.run_record import NetworkRecord
    from page4d.models.config import PRESETS
    from page4d.models.network import build_network
    from page4d.weights.placement import choose_device, choose_precision

    if choice.preset not in PRESETS:
        raise UsageError(f"no preset is called '{choice.preset}'", f"choose from {', '.join(PRESETS)}")
    device = choose_device(choice.device)
    precision = choose_precision(choice.precision, device)
    torch.manual_seed(choice.seed)
    network = build_network(PRESETS[choice.preset]).to(device).eval()
    record = NetworkRecord(
        name="page4d-mv",
        trained=False,
        preset=choice.preset,
        config=json.loads(network.config.to_json()),
    )
    return _network_predictor(choice, network, device, precision), record


def _network_predictor(
    choice: NetworkChoice, network: "ViewTimeNetwork", device: "torch.device", precision: "torch.dtype"
) -> "NetworkPredictor":
    from page4d.inference.predictor import NetworkPredictor

    return NetworkPredictor(
        network=network,
        device=device,
        precision=precision,
        tells_cameras=choice.tells_cameras,
        refines=choice.refines,
    )
