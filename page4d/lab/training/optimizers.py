"""Optimizers and their parameter groups, the memory that they need, and data-parallel training under torchrun.

Muon is momentum SGD with orthogonalized matrix updates.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import torch
import torch.distributed as dist
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from page4d.errors import MemoryBudgetError
from page4d.io.json_records import config_record
from page4d.run.memory import usable_bytes

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5


class OptimizerKind(StrEnum):
    """Optimization algorithm."""

    ADAMW = "adamw"
    MUON = "muon"
    """Muon for the matrices of the trunk, AdamW for all other parameters."""


_Decay = Annotated[float, Field(ge=0, lt=1)]
_Rate = Annotated[float, Field(gt=0, le=1)]
"""AdamW and Muon change a weight by about the rate per step: above 1 nothing trains."""


@config_record("optimizer")
class OptimizerConfig:
    """Learning rates, weight decay, warm-up, gradient clipping and EMA; the Muon settings apply to its matrices."""

    kind: OptimizerKind = OptimizerKind.ADAMW
    learning_rate: _Rate = 1e-3
    betas: tuple[_Decay, _Decay] = (0.9, 0.98)
    weight_decay: _Decay = 0.02
    muon_learning_rate: _Rate = 0.02
    muon_momentum: _Decay = 0.95
    warmup_steps: Annotated[int, Field(ge=0, le=10**9)] = 300
    max_gradient_norm: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    average_decay: _Decay = 0.999
    """Decay of the EMA, whose weights are evaluated and released."""
    max_skipped: Annotated[int, Field(ge=1, le=10**6)] = 50
    """Consecutive steps with a non-finite gradient after which the run aborts."""


def build_optimizers(network: nn.Module, config: OptimizerConfig) -> list[Optimizer]:
    """Build AdamW for all parameters, or Muon for the matrices of the trunk and AdamW for the others.

    Only matrices and kernels have weight decay: norms, biases, scales and tokens do not. Patch kernels of encoders,
    embeddings and the last layers of heads always use AdamW.
    """
    named = [(name, value) for name, value in network.named_parameters() if value.requires_grad]
    hidden: list[Tensor] = []
    if config.kind is OptimizerKind.MUON:
        hidden = [value for name, value in named if value.ndim == 2 and ".blocks." in f".{name}"]
    taken = {id(value) for value in hidden}
    rest = [value for _, value in named if id(value) not in taken]
    groups: list[dict[str, Any]] = [
        {"params": [value for value in rest if _is_matrix(value)], "weight_decay": config.weight_decay},
        {"params": [value for value in rest if not _is_matrix(value)], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    optimizers: list[Optimizer] = [AdamW(groups, lr=config.learning_rate, betas=config.betas, fused=True)]
    if hidden:
        muon = Muon(
            hidden, lr=config.muon_learning_rate, momentum=config.muon_momentum, weight_decay=config.weight_decay
        )
        optimizers.append(muon)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["full_lr"] = group["lr"]
    return optimizers


def restore_optimizers(optimizers: Sequence[Optimizer], saved: Sequence[Mapping[str, Any]]) -> None:
    """Load the moments of saved optimizers; learning rates and weight decay stay those of the configuration."""
    for optimizer, content in zip(optimizers, saved, strict=True):
        optimizer.load_state_dict({**optimizer.state_dict(), "state": content["state"]})


def set_rate(optimizers: Sequence[Optimizer], rate: float) -> None:
    """Set every learning rate to a fraction of its peak."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = rate * group["full_lr"]


class Muon(Optimizer):
    """Muon for matrices: updates with singular values near 1, scaled by the aspect ratio.

    Source: Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024 (Nesterov momentum, five
    iterations, factor sqrt(max(1, rows / columns))). That of PyTorch orthogonalizes in bfloat16, which takes 28 times
    the time on a CPU.
    """

    def __init__(
        self, parameters: Iterable[Any], *, lr: float = 0.02, momentum: float = 0.95, weight_decay: float = 0.0
    ) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every matrix that has a gradient."""
        loss = None if closure is None else closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                momentum = state.setdefault("momentum", torch.zeros_like(parameter))
                momentum.lerp_(parameter.grad, 1 - group["momentum"])
                direction = orthogonalize(parameter.grad.lerp(momentum, group["momentum"]))
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                factor = max(1.0, parameter.shape[0] / parameter.shape[1]) ** 0.5
                parameter.add_(direction, alpha=-group["lr"] * factor)
        return loss


def orthogonalize(matrix: Float[Tensor, "rows columns"]) -> Float[Tensor, "rows columns"]:
    """Bring all singular values near 1 (0.7 to 1.2) by a quintic Newton-Schulz iteration.

    Source: as above; the coefficients trade exactness for speed.
    """
    a, b, c = _COEFFICIENTS
    wide = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    wide = wide / (wide.norm() + 1e-7)
    for _ in range(_ITERATIONS):
        gram = wide @ wide.T
        wide = a * wide + (b * gram + c * gram @ gram) @ wide
    return wide.T if matrix.shape[0] > matrix.shape[1] else wide


def _is_matrix(value: Tensor) -> bool:
    """Return whether a parameter is a weight of a layer, not a vector or a token with axes of length 1."""
    return sum(side > 1 for side in value.shape) >= 2 and value.shape[0] > 1


FLOAT_BYTES = 4


def check_training_memory(weight_bytes: int, activation_bytes: int, device: torch.device, hint: str) -> None:
    """Refuse a training that cannot fit: both numbers are lower bounds.

    Raises:
        MemoryBudgetError: if the device, or the machine, has less usable memory; `hint` is the advice.
    """
    usable = usable_bytes(device)
    needed = weight_bytes + activation_bytes
    if needed > usable:
        part = "a batch" if activation_bytes > weight_bytes else "weights and optimizer"
        raise MemoryBudgetError(
            f"this training needs {needed / 1e9:,.1f} GB or more, mostly for {part}, and {usable / 1e9:,.1f} GB are "
            f"usable on {device}",
            hint,
        )


@dataclass(frozen=True)
class ProcessGroup:
    """This process among those that train one network."""

    rank: int = 0
    size: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and reports progress."""
        return self.rank == 0

    def batches(self, num_batches: int) -> range:
        """Return the indices of this process's batches of a step."""
        share = num_batches // self.size
        return range(self.rank * share, (self.rank + 1) * share)

    def average_gradients(self, network: nn.Module) -> None:
        """Replace gradients by their mean over all processes; parameters without one in any process keep none.

        All gradients are reduced at once after the backward pass: DistributedDataParallel needs the same outputs to
        contribute to the loss in every process, and here they depend on the batch.
        """
        if self.size == 1:
            return
        parameters = [value for value in network.parameters() if value.requires_grad]
        counts = torch.tensor([value.grad is not None for value in parameters], dtype=torch.float32)
        counts = counts.to(parameters[0].device)
        dist.all_reduce(counts)
        moving = [value for value, count in zip(parameters, counts.tolist(), strict=True) if count]
        gradients = [torch.zeros_like(value) if value.grad is None else value.grad for value in moving]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        means = torch.split(flat / self.size, [value.numel() for value in moving])
        for value, mean in zip(moving, means, strict=True):
            value.grad = mean.view_as(value)

    def average(self, values: torch.Tensor) -> torch.Tensor:
        """Return the mean of a tensor over all processes."""
        if self.size == 1:
            return values
        total = values.clone()
        dist.all_reduce(total)
        return total / self.size

    def synchronize(
        self, clock: tuple[float, float], stop: bool, device: torch.device
    ) -> tuple[tuple[float, float], bool]:
        """Return time and speed of the main process, and whether a stop is requested in any process."""
        if self.size == 1:
            return clock, stop
        local = clock if self.is_main else (0.0, 0.0)
        total = torch.tensor([*local, float(stop)], dtype=torch.float64, device=device)
        dist.all_reduce(total)
        seconds, speed, stops = total.tolist()
        return (seconds, speed), stops > 0

    def wait(self) -> None:
        """Wait for all processes."""
        if self.size > 1:
            dist.barrier()


SINGLE_PROCESS = ProcessGroup()


def local_device(device: torch.device) -> torch.device:
    """Return the device of this process: the GPU of its local rank under torchrun."""
    if device.type != "cuda" or "LOCAL_RANK" not in os.environ:
        return device
    local = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(local)
    return local


def is_main_process() -> bool:
    """Return whether this process has rank 0 under torchrun, or was not started by it."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def open_process_group(device: torch.device) -> Iterator[ProcessGroup]:
    """Join the other processes if torchrun started several."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield SINGLE_PROCESS
        return
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield ProcessGroup(dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()
