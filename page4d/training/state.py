"""A run in memory: how it begins, goes on and branches off."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch.optim import Optimizer

from page4d.errors import UsageError
from page4d.models.network import ViewTimeNetwork, build_network
from page4d.training.average import WeightAverage
from page4d.training.checkpoint import Checkpoint
from page4d.training.config import TrainConfig
from page4d.training.optimizers import build_optimizers
from page4d.training.plan import Budget, Position
from page4d.weights.loading import fill_encoder, load_network


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

    Raises:
        WeightsError: if they cannot be used.
    """
    loaded = load_network(path, device)
    about = {"from": f"{path.name}, sha256 {loaded.info.sha256}", "licence": loaded.info.licence}
    return _new(config, loaded.network, about)


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


def _new(config: TrainConfig, network: ViewTimeNetwork, history: Mapping[str, str]) -> RunState:
    check_sizes(config, network.config.patch_size)
    return RunState(
        config=config,
        network=network.train(),
        average=WeightAverage(network, config.optimizer.average_decay),
        optimizers=build_optimizers(network, config.optimizer),
        position=Position(),
        history=history,
    )
