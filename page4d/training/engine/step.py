"""One optimization step: losses, gradients, clipping and the update."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from page4d.training.engine.distributed import ProcessGroup
from page4d.training.engine.optimizers import clip_gradients, set_rate
from page4d.training.engine.step_plan import PlannedStep, Position, RunConfig

Batch = TypeVar("Batch")


class LoopState(Protocol):
    """State of a run that steps change."""

    position: Position

    @property
    def config(self) -> RunConfig:
        """Settings of the run."""
        ...

    @property
    def network(self) -> nn.Module:
        """Network whose parameters are optimized."""
        ...

    @property
    def optimizers(self) -> Sequence[Optimizer]:
        """Optimizers of these parameters."""
        ...


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """Measurements of a step; `moved` is False if the gradient was not finite and the weights did not change."""

    losses: Mapping[str, float]
    gradient_norm: float
    moved: bool


def optimize(
    state: LoopState,
    step: PlannedStep,
    batches: Sequence[Batch],
    losses: Callable[[Batch], Mapping[str, Tensor]],
    group: ProcessGroup,
) -> StepResult:
    """Descend the mean "total" loss over batches and processes by one step, unless its gradient is not finite.

    The losses that are returned are means over the batches of this process.
    """
    config, network = state.config, state.network
    torch.manual_seed(step_seed(config.seed, step.step))
    set_rate(state.optimizers, step.rate)
    parts: dict[str, list[Tensor]] = {}
    for batch in batches:
        found = losses(batch)
        (found["total"] / len(batches)).backward()  # type: ignore[no-untyped-call]
        for name, value in found.items():
            parts.setdefault(name, []).append(value.detach().float())
    group.average_gradients(network)
    norm = clip_gradients(network, config.optimizer.max_gradient_norm)
    moved = bool(torch.isfinite(norm))
    for optimizer in state.optimizers:
        if moved:
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    means = torch.stack([torch.stack(values).mean() for values in parts.values()]).tolist()
    return StepResult(losses=dict(zip(parts, means, strict=True)), gradient_norm=float(norm), moved=moved)


def autocast(device: torch.device, precision: torch.dtype) -> torch.autocast:
    """Return the context in which a forward pass runs in a precision."""
    return torch.autocast(device.type, dtype=precision, enabled=precision is not torch.float32)


def step_seed(run_seed: int, step: int) -> int:
    """Return the seed of torch's random numbers in a step, such as dropout."""
    return (run_seed * 0x9E3779B1 + step) % 2**63
