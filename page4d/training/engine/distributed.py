"""Several processes that train one network, each on its own samples, as torchrun starts them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn


@dataclass(frozen=True)
class Team:
    """Which of how many processes this one is."""

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """Whether this process writes files and talks."""
        return self.rank == 0

    def batches(self, num_batches: int) -> range:
        """Return which of a step's batches are this process's."""
        share = num_batches // self.size
        return range(self.rank * share, (self.rank + 1) * share)

    def average_gradients(self, network: nn.Module) -> None:
        """Replace gradients by their mean over all processes; what got none in any process keeps none.

        One exchange of everything after the backward pass, and not DistributedDataParallel: that wants to know which
        outputs a loss will use, and here that depends on the batch.
        """
        if self.size == 1:
            return
        parameters = [value for value in network.parameters() if value.requires_grad]
        reached = torch.tensor([value.grad is not None for value in parameters], dtype=torch.float32)
        reached = reached.to(parameters[0].device)
        dist.all_reduce(reached)
        moving = [value for value, found in zip(parameters, reached.tolist(), strict=True) if found]
        gradients = [torch.zeros_like(value) if value.grad is None else value.grad for value in moving]
        together = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(together)
        means = torch.split(together / self.size, [value.numel() for value in moving])
        for value, mean in zip(moving, means, strict=True):
            value.grad = mean.view_as(value)

    def average(self, values: torch.Tensor) -> torch.Tensor:
        """Return the mean of a tensor over all processes."""
        if self.size == 1:
            return values
        together = values.clone()
        dist.all_reduce(together)
        return together / self.size

    def agree(self, clock: tuple[float, float], stop: bool, device: torch.device) -> tuple[tuple[float, float], bool]:
        """Return the first process's time and speed, and whether any process wants to stop."""
        if self.size == 1:
            return clock, stop
        mine = clock if self.leads else (0.0, 0.0)
        said = torch.tensor([*mine, float(stop)], dtype=torch.float64, device=device)
        dist.all_reduce(said)
        seconds, speed, stops = said.tolist()
        return (seconds, speed), stops > 0

    def wait(self) -> None:
        """Wait for all processes."""
        if self.size > 1:
            dist.barrier()


def own_device(device: torch.device) -> torch.device:
    """Return the device of this process: the GPU of its number where torchrun started several."""
    if device.type != "cuda" or "LOCAL_RANK" not in os.environ:
        return device
    own = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(own)
    return own


def is_follower() -> bool:
    """Tell whether torchrun started this process as another one than the first."""
    return os.environ.get("RANK", "0") != "0"


ALONE = Team()
"""The team of a single process."""


@contextmanager
def open_team(device: torch.device) -> Iterator[Team]:
    """Join the other processes if torchrun started several."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield ALONE
        return
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Team(dist.get_rank(), size)
    finally:
        dist.destroy_process_group()
