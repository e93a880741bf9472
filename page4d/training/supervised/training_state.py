"""A run in memory: how it begins, goes on and branches off."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer

from page4d.errors import UsageError
from page4d.models.config import PRESETS, NetworkConfig
from page4d.models.network import ViewTimeNetwork, build_network
from page4d.training.engine.ema import WeightAverage
from page4d.training.engine.optimizers import build_optimizers
from page4d.training.engine.step_plan import Budget, Position
from page4d.training.supervised.checkpoint import Checkpoint
from page4d.training.supervised.config import Learner, TrainConfig
from page4d.weights.loading import fill_encoder, load_network

_ADDED_LATER = ("motion_head",)
"""Parts of a network that change nothing until they are trained."""


@dataclass(kw_only=True)
class RunState:
    """What a step changes; `history` says where the first weights came from."""

    config: TrainConfig
    network: ViewTimeNetwork
    average: WeightAverage[ViewTimeNetwork]
    optimizers: list[Optimizer]
    position: Position
    history: Mapping[str, str]

    def snapshot(self, position: Position, budget: Budget) -> Checkpoint:
        """Return everything as it stands."""
        return Checkpoint(
            config=self.config,
            network_config=self.network.config,
            position=position,
            network=self.network.state_dict(),
            average=self.average.network.state_dict(),
            optimizers=[optimizer.state_dict() for optimizer in self.optimizers],
            history=self.history,
            budget=budget,
        )


def begin(config: TrainConfig, device: torch.device, encoder: Path | None = None) -> RunState:
    """Start from fresh weights, drawn from the run's seed, perhaps with an encoder that has learned already.

    Raises:
        UsageError: if the configuration names no network.
        WeightsError: if the file of the encoder cannot be used, or holds another encoder than the network has.
    """
    torch.manual_seed(config.seed)
    network = build_network(config.network())
    origin = f"fresh weights of {config.model_name}, seed {config.seed}"
    if encoder is not None:
        info = fill_encoder(network, encoder, config.model_name)
        origin += f"; encoder of {encoder.name}, sha256 {info.sha256} ({info.licence})"
    return _new(config, network.to(device), {"from": origin})


def begin_from_weights(config: TrainConfig, path: Path, device: torch.device) -> RunState:
    """Start from trained weights, whose file says what network they are of.

    Parts that start by doing nothing are added if the configured network has them and is otherwise the same.

    Raises:
        WeightsError: if they cannot be used.
    """
    loaded = load_network(path, device)
    network, origin = loaded.network, f"{path.name}, sha256 {loaded.info.sha256}"
    added = _lacking(network.config, config)
    if added:
        torch.manual_seed(config.seed)
        grown = build_network(replace(network.config, **added)).to(device)
        grown.load_state_dict({**grown.state_dict(), **network.state_dict()})
        network, origin = grown, f"{origin}, with a fresh {' and '.join(added)}"
    return _new(config, network, {"from": origin, "licence": loaded.info.licence})


def _lacking(own: NetworkConfig, config: TrainConfig) -> dict[str, Any]:
    """Return what a network lacks to be the one that is configured, if that is nothing but what can be added."""
    if isinstance(config.model, str) and config.model not in PRESETS:
        return {}
    wanted = config.network()
    added = [name for name in _ADDED_LATER if getattr(own, name) is None and getattr(wanted, name) is not None]
    without: dict[str, Any] = dict.fromkeys(added)
    is_same = replace(wanted, **without) == own
    return {name: getattr(wanted, name) for name in added} if is_same else {}


def resume(checkpoint: Checkpoint, device: torch.device, config: TrainConfig | None = None) -> RunState:
    """Go on where a checkpoint stands; another configuration than its own changes what is learned from here on.

    Raises:
        UsageError: if the configuration has another optimizer.
    """
    config = config or checkpoint.config
    if config.optimizer.kind is not checkpoint.config.optimizer.kind:
        raise UsageError(
            f"a run of {checkpoint.config.optimizer.kind} cannot go on with {config.optimizer.kind}",
            "start a run from its weights",
        )
    state = _new(config, build_network(checkpoint.network_config).to(device), checkpoint.history)
    state.network.load_state_dict(checkpoint.network)
    state.average.network.load_state_dict(checkpoint.average)
    for optimizer, saved in zip(state.optimizers, checkpoint.optimizers, strict=True):
        # Momenta are the checkpoint's; step sizes and decay the configuration's.
        optimizer.load_state_dict({**optimizer.state_dict(), "state": saved["state"]})
    state.position = checkpoint.position
    if config != checkpoint.config:
        state.history = {**state.history, "changed": f"another configuration from step {state.position.step} on"}
    return state


def branch(
    checkpoint: Checkpoint, device: torch.device, config: TrainConfig | None = None, *, decay_only: bool
) -> RunState:
    """Go on in another folder from where a checkpoint stands; budgets count from here.

    With `decay_only` the rate falls from the first step on, and the curriculum stays where it is.
    """
    state = resume(checkpoint, device, config)
    at = state.position
    starts = tuple(start for start in at.stage_starts if start <= at.samples)
    state.position = replace(
        at, seconds=0.0, first_sample=at.samples, stage_starts=starts, decay_start=None, decay_samples=0
    )
    if decay_only:
        state.config = replace(state.config, stages=state.config.stages[: len(starts)], decay_fraction=1.0)
    state.history = {**state.history, "branch": f"off step {at.step}, {at.samples} samples"}
    return state


def check_sizes(config: TrainConfig, patch_size: int) -> None:
    """Refuse images that do not consist of whole patches.

    Raises:
        UsageError: naming the first such size.
    """
    sizes = [size for stage in config.stages for size in stage.sizes]
    for height, width in (*sizes, config.evaluation.image_size):
        if height % patch_size or width % patch_size:
            raise UsageError(
                f"images of {width}x{height} px for a network with patches of {patch_size} px",
                f"give stages and evaluation sizes in multiples of {patch_size}",
            )


def check_learners(config: TrainConfig, network: ViewTimeNetwork) -> None:
    """Refuse stages that teach a part which the network does not have.

    Raises:
        UsageError: naming the first such stage.
    """
    for stage in config.stages:
        if stage.learner is Learner.MOTION and network.motion_head is None:
            raise UsageError(
                f"stage at {stage.start:g} teaches {stage.learner}, which this network has not",
                "leave the stage out, or name a model with that part in the configuration",
            )


def _new(config: TrainConfig, network: ViewTimeNetwork, history: Mapping[str, str]) -> RunState:
    check_sizes(config, network.config.patch_size)
    check_learners(config, network)
    return RunState(
        config=config,
        network=network.train(),
        average=WeightAverage(network, config.optimizer.average_decay),
        optimizers=build_optimizers(network, config.optimizer),
        position=Position(),
        history=history,
    )
