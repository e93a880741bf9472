"""One step: batches in, losses out, weights moved."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint

from page4d.ground_truth import GroundTruth
from page4d.layers.block import Block
from page4d.models.conditioning import Conditioning
from page4d.models.network import ViewTimeNetwork
from page4d.models.output import NetworkOutput
from page4d.training.engine.distributed import ALONE, Team
from page4d.training.engine.optimizers import gradient_norm, set_rate
from page4d.training.engine.step_plan import StepPlan
from page4d.training.supervised.config import Learner, TrainConfig
from page4d.training.supervised.losses import losses, motion_losses
from page4d.training.supervised.training_state import RunState

Forward = Callable[..., NetworkOutput]
Judge = Callable[[NetworkOutput, GroundTruth], dict[str, Tensor]]


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """What a step measured; `moved` is False where the gradient was not finite and nothing was changed."""

    losses: Mapping[str, float]
    gradient_norm: float
    moved: bool


def take_step(
    forward: Forward,
    state: RunState,
    plan: StepPlan,
    batches: Sequence[GroundTruth],
    precision: torch.dtype,
    team: Team = ALONE,
) -> StepResult:
    """Lower the mean loss of the batches of all processes by one step, unless its gradient is not finite.

    The losses that are returned are those of this process.
    """
    config = state.config
    torch.manual_seed(step_seed(config.seed, plan.step))
    set_rate(state.optimizers, plan.rate)
    lesson = _lesson(plan.learner, forward, state)
    measured = (lesson.judge(predict(lesson.forward, truth, plan, precision), truth) for truth in batches)
    limit = config.optimizer.max_gradient_norm
    with learning(state.network, lesson.part):
        result = descend(state.network, state.optimizers, measured, len(batches), limit, team)
    if result.moved:
        state.average.update(state.network, plan.step)
    return result


class _Lesson(NamedTuple):
    """What is run, what is asked of the result, and the part that learns; None is all of the network."""

    forward: Forward
    judge: Judge
    part: nn.Module | None


def _lesson(learner: Learner, forward: Forward, state: RunState) -> _Lesson:
    network, everything = state.network, partial(losses, config=state.config.loss)
    if learner is Learner.MATCHES and network.matching is not None:
        return _Lesson(partial(_matches_alone, network), everything, None)
    if learner is Learner.MOTION:
        return _Lesson(forward, motion_losses, network.motion_head)
    return _Lesson(forward, everything, None)


def descend(
    network: nn.Module,
    optimizers: Sequence[Optimizer],
    measured: Iterable[Mapping[str, Tensor]],
    num_batches: int,
    max_gradient_norm: float,
    team: Team = ALONE,
) -> StepResult:
    """Lower the mean over batches and processes of the loss called "total", unless its gradient is not finite."""
    parts: dict[str, list[Tensor]] = {}
    for found in measured:
        (found["total"] / num_batches).backward()  # type: ignore[no-untyped-call]
        for name, value in found.items():
            parts.setdefault(name, []).append(value.detach().float())
    team.average_gradients(network)
    norm = gradient_norm(network, max_gradient_norm)
    moved = bool(torch.isfinite(norm))
    for optimizer in optimizers:
        if moved:
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    means = torch.stack([torch.stack(values).mean() for values in parts.values()]).tolist()
    return StepResult(losses=dict(zip(parts, means, strict=True)), gradient_norm=float(norm), moved=moved)


@contextmanager
def learning(network: nn.Module, part: nn.Module | None) -> Iterator[None]:
    """Let nothing but a part of a network learn, or all of it if that is None."""
    own = set() if part is None else set(part.parameters())
    waiting = [] if part is None else [value for value in network.parameters() if value not in own]
    waiting = [value for value in waiting if value.requires_grad]
    for value in waiting:
        value.requires_grad_(False)
    try:
        yield
    finally:
        for value in waiting:
            value.requires_grad_(True)


def prepare_forward(network: ViewTimeNetwork, config: TrainConfig) -> Forward:
    """Return the network as a step runs it: with what the configuration says about memory, perhaps compiled."""
    if config.checkpoint_blocks:
        checkpoint_blocks(network)
    return torch.compile(network) if config.compile else network


def checkpoint_blocks(network: ViewTimeNetwork) -> None:
    """Let the blocks of a network compute their activations again in the backward pass."""
    for module in network.modules():
        if isinstance(module, Block):
            module.forward = partial(checkpoint, module.forward, use_reentrant=False)  # type: ignore[method-assign]


def predict(forward: Forward, truth: GroundTruth, plan: StepPlan, precision: torch.dtype) -> NetworkOutput:
    """Run the network with what the step tells it."""
    conditioning = Conditioning(
        world_to_camera=truth.cameras.world_to_camera if plan.tells_poses else None,
        intrinsics=truth.cameras.intrinsics if plan.tells_intrinsics else None,
    )
    masks = truth.dynamic.to(truth.images.dtype) if plan.tells_masks and truth.dynamic is not None else None
    kind = truth.images.device.type
    with torch.autocast(kind, dtype=precision) if precision is not torch.float32 else nullcontext():
        return forward(truth.images, masks, conditioning=conditioning)


def _matches_alone(
    network: ViewTimeNetwork, images: Tensor, masks: Tensor | None, *, conditioning: Conditioning
) -> NetworkOutput:
    """Find matches and nothing else, as if there were no masks and no conditioning."""
    del masks, conditioning
    return network.find_matches(images)


def step_seed(run_seed: int, step: int) -> int:
    """Return the seed of whatever the network draws in a step, such as dropout."""
    return (run_seed * 0x9E3779B1 + step) % 2**63
