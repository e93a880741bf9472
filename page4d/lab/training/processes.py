"""Data-parallel training: the processes that torchrun starts, one per device."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn


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
