"""The optimizer and its parameter groups, the memory that it needs, and data-parallel training under torchrun."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import torch
import torch.distributed as dist
from pydantic import Field
from torch import nn
from torch.optim import AdamW, Optimizer

from page4d.errors import MemoryBudgetError
from page4d.io.json_records import config_record
from page4d.run.memory import usable_bytes

_Decay = Annotated[float, Field(ge=0, lt=1)]
_Rate = Annotated[float, Field(gt=0, le=1)]
"""AdamW changes a weight by about the rate per step: above 1 nothing trains."""


@config_record("optimizer")
class OptimizerConfig:
    """Learning rate, weight decay, warm-up, gradient clipping and EMA of AdamW."""

    learning_rate: _Rate = 1e-3
    betas: tuple[_Decay, _Decay] = (0.9, 0.98)
    weight_decay: _Decay = 0.02
    warmup_steps: Annotated[int, Field(ge=0, le=10**9)] = 300
    max_gradient_norm: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    average_decay: _Decay = 0.999
    """Decay of the EMA, whose weights are evaluated and released."""
    max_skipped: Annotated[int, Field(ge=1, le=10**6)] = 50
    """Consecutive steps with a non-finite gradient after which the run aborts."""


def build_optimizer(network: nn.Module, config: OptimizerConfig) -> AdamW:
    """Build AdamW for all parameters.

    Only matrices and kernels have weight decay: norms, biases, scales and tokens do not.
    """
    values = [value for value in network.parameters() if value.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": [value for value in values if _is_matrix(value)], "weight_decay": config.weight_decay},
        {"params": [value for value in values if not _is_matrix(value)], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    optimizer = AdamW(groups, lr=config.learning_rate, betas=config.betas, fused=True)
    for group in optimizer.param_groups:
        group["full_lr"] = group["lr"]
    return optimizer


def restore_optimizer(optimizer: Optimizer, saved: Mapping[str, Any]) -> None:
    """Load the moments of a saved optimizer; learning rate and weight decay stay those of the configuration."""
    optimizer.load_state_dict({**optimizer.state_dict(), "state": saved["state"]})


def set_rate(optimizer: Optimizer, rate: float) -> None:
    """Set every learning rate to a fraction of its peak."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["full_lr"]


def _is_matrix(value: torch.Tensor) -> bool:
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
