"""State of supervised training, in memory and in checkpoints: how a run starts, resumes and branches."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from page4d.choices import Precision
from page4d.errors import UsageError
from page4d.io.atomic import parse_pin
from page4d.lab.training.checkpoint import EMA, Checkpoint, RunState, restored_state
from page4d.lab.training.config import TrainConfig, TrainedPart
from page4d.lab.training.losses import SceneUnit
from page4d.lab.training.optimizers import FLOAT_BYTES, build_optimizer, check_training_memory, restore_optimizer
from page4d.networks.config import NetworkConfig
from page4d.networks.network import ViewTimeNetwork, build_network
from page4d.networks.presets import PRESETS
from page4d.networks.profile.meta import on_meta_device
from page4d.weights.loading import fill_encoder, load
from page4d.weights.resolve import find_weights
from page4d.weights.store import COMMERCIAL

_RESIDUAL_PARTS = ("motion_head",)
"""Parts of a network without effect on its output until they are trained."""


@dataclass(frozen=True, kw_only=True)
class TrainCheckpoint(Checkpoint):
    """A supervised run at one position."""

    config: TrainConfig
    network_config: NetworkConfig
    network: Mapping[str, Tensor]
    average: Mapping[str, Tensor]
    """EMA of the weights."""
    history: Mapping[str, str]
    """Origin of the run: initial weights, or the run that it continues."""

    FILE_FORMAT, COMMAND = 2, TrainConfig.COMMAND
    READERS = {"config": TrainConfig.from_json, "network_config": NetworkConfig.from_json}  # noqa: RUF012


@dataclass(kw_only=True)
class TrainingState(RunState):
    """State of supervised training; `history` records the origin of the initial weights."""

    config: TrainConfig
    network: ViewTimeNetwork
    average: EMA[ViewTimeNetwork]
    history: Mapping[str, str]

    checkpoint = TrainCheckpoint

    def content(self) -> dict[str, Any]:
        """Return what a checkpoint holds besides position, budget and optimizer."""
        return {
            "config": self.config.to_json(),
            "network_config": self.network.config.to_json(),
            "network": dict(self.network.state_dict()),
            "average": dict(self.average.network.state_dict()),
            "history": dict(self.history),
        }


def begin(config: TrainConfig, device: torch.device, encoder: Path | None = None) -> TrainingState:
    """Start from random weights, drawn from the run's seed, optionally with a pretrained encoder.

    Raises:
        UsageError: if the configuration names an unknown network.
        MemoryBudgetError: if weights or a batch do not fit into memory.
        WeightsError: if the encoder cannot be loaded, or differs from that of the network.
    """
    _check_memory(config, config.network(), device)
    torch.manual_seed(config.seed)
    network = build_network(config.network())
    origin = f"fresh weights of {config.model_name}, seed {config.seed}"
    if encoder is not None:
        info = fill_encoder(network, encoder, config.model_name)
        origin += f"; encoder of {encoder.name}, sha256 {info.sha256} ({info.licence})"
    return _new(config, network.to(device), {"from": origin})


def begin_from_weights(
    config: TrainConfig, weights: str | Path, device: torch.device, sha256: str | None = None
) -> TrainingState:
    """Start from trained weights, with the network that their file records; their hash must be `sha256`, if given.

    `weights` are a file, the name of a public checkpoint or a file of the hub, as `find_weights` takes them.

    Residual parts, such as a motion head, are added if the configured network has them and is otherwise the same.

    Raises:
        WeightsError: if they cannot be loaded.
    """
    found = find_weights(weights, parse_pin(weights, sha256))
    loaded = load(found.path, device, Precision.FP32, found.sha256).requires_grad_()
    origin = f"{found.name}, sha256 {loaded.info.sha256}"
    network: ViewTimeNetwork = loaded
    added = _missing_parts(network.config, config)
    if added:
        torch.manual_seed(config.seed)
        grown = build_network(replace(network.config, **added)).to(device)
        grown.load_state_dict({**grown.state_dict(), **network.state_dict()})
        network, origin = grown, f"{origin}, with a fresh {' and '.join(added)}"
    recorded = loaded.info.metadata.get(COMMERCIAL)
    if found.commercial is not None:
        recorded = "yes" if found.commercial else "no"
    history = {"from": origin, "licence": loaded.info.licence}
    return _new(config, network, history if recorded is None else {**history, COMMERCIAL: recorded})


def resume(checkpoint: TrainCheckpoint, device: torch.device, config: TrainConfig | None = None) -> TrainingState:
    """Continue from a checkpoint, with its configuration or another one.

    Raises:
        InputError: if the checkpoint does not fit its own configuration.
    """
    config = config or checkpoint.config
    _check_memory(config, checkpoint.network_config, device)
    state = _new(config, build_network(checkpoint.network_config).to(device), checkpoint.history)
    with restored_state():
        state.network.load_state_dict(checkpoint.network)
        state.average.network.load_state_dict(checkpoint.average)
        restore_optimizer(state.optimizer, checkpoint.optimizer)
    state.position = checkpoint.position
    if config != checkpoint.config:
        state.history = {**state.history, "changed": f"another configuration from step {state.position.step} on"}
    return state


def _check_memory(config: TrainConfig, network: NetworkConfig, device: torch.device) -> None:
    """Refuse a run whose weights do not fit four times, or whose outputs of all blocks do not fit for a batch.

    Weights, gradients, moments and EMA are held at the same time.
    """
    with on_meta_device():
        parameters = sum(value.numel() for value in build_network(network).parameters())
    per_pixel = network.encoder.embed_dim * network.depth * len(network.schedule) / network.patch_size**2
    largest = 0.0
    for stage in config.stages:
        values = 3 + (per_pixel if stage.learner is TrainedPart.ALL else 0)
        largest = max(largest, stage.images_per_batch * max(map(prod, stage.sizes)) * values)
    hint = "use a smaller network, or fewer images_per_batch and smaller sizes in the configuration"
    check_training_memory(4 * FLOAT_BYTES * parameters, int(FLOAT_BYTES * largest), device, hint)


def _missing_parts(existing: NetworkConfig, config: TrainConfig) -> dict[str, Any]:
    """Return the residual parts that the configured network has in addition, if nothing else differs."""
    if isinstance(config.model, str) and config.model not in PRESETS:
        return {}
    wanted = config.network()
    added = [
        name for name in _RESIDUAL_PARTS if getattr(existing, name) is None and getattr(wanted, name) is not None
    ]
    without: dict[str, Any] = dict.fromkeys(added)
    is_same = replace(wanted, **without) == existing
    return {name: getattr(wanted, name) for name in added} if is_same else {}


def _new(config: TrainConfig, network: ViewTimeNetwork, history: Mapping[str, str]) -> TrainingState:
    _check_sizes(config, network.config.patch_size)
    _check_trained_parts(config, network)
    network.predicts_ray_map = False  # it has no loss
    if network.config.predicts_metres:
        config = replace(config, loss=replace(config.loss, unit=SceneUnit.TRUTH))
    return TrainingState(
        config=config,
        network=network.train(),
        average=EMA(network, config.optimizer.average_decay),
        optimizer=build_optimizer(network, config.optimizer),
        history=history,
    )


def _check_sizes(config: TrainConfig, patch_size: int) -> None:
    sizes = [size for stage in config.stages for size in stage.sizes]
    for height, width in (*sizes, config.evaluation.image_size):
        if height % patch_size or width % patch_size:
            raise UsageError(
                f"images of {width}x{height} px for a network with patches of {patch_size} px",
                f"give stages and evaluation sizes in multiples of {patch_size}",
            )


def _check_trained_parts(config: TrainConfig, network: ViewTimeNetwork) -> None:
    for stage in config.stages:
        if stage.learner is TrainedPart.MOTION and network.motion_head is None:
            raise UsageError(
                f"stage at {stage.start:g} trains {stage.learner}, which this network does not have",
                "leave the stage out, or name a model with that part in the configuration",
            )
