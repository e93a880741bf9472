"""One supervised step: forward pass, losses and update."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from page4d.ground_truth import GroundTruth
from page4d.layers.block import Block
from page4d.models.conditioning import Conditioning
from page4d.models.network import ViewTimeNetwork
from page4d.models.output import NetworkOutput
from page4d.training.engine.distributed import SINGLE_PROCESS, ProcessGroup
from page4d.training.engine.step import StepResult, autocast, optimize
from page4d.training.supervised.config import TrainConfig, TrainedPart
from page4d.training.supervised.curriculum import CurriculumStep
from page4d.training.supervised.losses import losses, motion_losses
from page4d.training.supervised.training_state import TrainingState

Forward = Callable[..., NetworkOutput]


def take_step(
    forward: Forward,
    state: TrainingState,
    step: CurriculumStep,
    batches: Sequence[GroundTruth],
    precision: torch.dtype,
    group: ProcessGroup = SINGLE_PROCESS,
) -> StepResult:
    """Descend the mean loss of the batches of all processes by one step, unless its gradient is not finite.

    The losses that are returned are those of this process.
    """
    network = state.network
    if network.config.metric_focal is not None:
        step = replace(step, intrinsics_known=True)  # without them depth is not in metres
    trained: nn.Module = network
    criterion: Callable[[NetworkOutput, GroundTruth], Mapping[str, Tensor]] = partial(
        losses, config=state.config.loss
    )
    if step.trained_part is TrainedPart.MATCHES and network.matching is not None:
        forward = partial(_find_matches, network)
    elif step.trained_part is TrainedPart.MOTION:
        assert network.motion_head is not None
        trained, criterion = network.motion_head, motion_losses

    def measure(truth: GroundTruth) -> Mapping[str, Tensor]:
        return criterion(predict(forward, truth, step, precision), truth)

    with _training_only(network, trained):
        result = optimize(state, step, batches, measure, group)
    if result.moved:
        state.average.update(network, step.step)
    return result


@contextmanager
def _training_only(network: nn.Module, part: nn.Module) -> Iterator[None]:
    """Freeze all parameters outside a part of the network."""
    trained = set(part.parameters())
    frozen = [value for value in network.parameters() if value.requires_grad and value not in trained]
    for value in frozen:
        value.requires_grad_(False)
    try:
        yield
    finally:
        for value in frozen:
            value.requires_grad_(True)


def prepare_forward(network: ViewTimeNetwork, config: TrainConfig) -> Forward:
    """Return the network with recomputed activations, or compiled, as configured."""
    if config.checkpoint_blocks:
        for module in network.modules():
            if isinstance(module, Block):
                module.forward = partial(checkpoint, module.forward, use_reentrant=False)  # type: ignore[method-assign]
    return torch.compile(network) if config.compile else network


def predict(forward: Forward, truth: GroundTruth, step: CurriculumStep, precision: torch.dtype) -> NetworkOutput:
    """Run the network with the known inputs of the step."""
    conditioning = Conditioning(
        world_to_camera=truth.cameras.world_to_camera if step.poses_known else None,
        intrinsics=truth.cameras.intrinsics if step.intrinsics_known else None,
    )
    masks = truth.dynamic.to(truth.images.dtype) if step.masks_known and truth.dynamic is not None else None
    with autocast(truth.images.device, precision):
        return forward(truth.images, masks, conditioning=conditioning)


def _find_matches(
    network: ViewTimeNetwork, images: Tensor, masks: Tensor | None, *, conditioning: Conditioning
) -> NetworkOutput:
    """Compute only encoder and matching, without masks and conditioning."""
    del masks, conditioning
    return network.find_matches(images)
