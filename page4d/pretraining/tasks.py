"""MAE and DINO as training tasks: losses of crops, updates after a step, and the released encoder."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from page4d.encoders.vit import ViT
from page4d.pretraining.config import PretrainConfig
from page4d.pretraining.crops import Crops
from page4d.pretraining.dino import DINOConfig, SelfDistillation
from page4d.pretraining.mae import MAEConfig, MaskedAutoencoder
from page4d.training.engine.distributed import ProcessGroup
from page4d.training.engine.ema import EMA
from page4d.training.engine.step_plan import PlannedStep


@dataclass(frozen=True, kw_only=True)
class PretrainStep(PlannedStep):
    """A step, with the fraction of the run before it."""

    done: float


class PretrainTask(Protocol):
    """A network that is trained without labels, and the encoder in it."""

    @property
    def network(self) -> nn.Module:
        """Network whose parameters are optimized."""
        ...

    @property
    def encoder(self) -> ViT:
        """Encoder to release."""
        ...

    def modules(self) -> dict[str, nn.Module]:
        """Return the modules that a checkpoint holds."""
        ...

    def losses(self, crops: Crops) -> Mapping[str, Tensor]:
        """Return the loss as "total", and further measurements."""
        ...

    def after_step(self, step: PretrainStep, group: ProcessGroup, *, moved: bool) -> None:
        """Update averages; `moved` is False if the step did not change the weights."""
        ...


class MAETask:
    """A masked autoencoder with an EMA of its weights."""

    def __init__(self, config: MAEConfig, average_decay: float, device: torch.device) -> None:
        self.network = MaskedAutoencoder(config).to(device)
        self.average = EMA(self.network, average_decay)

    @property
    def encoder(self) -> ViT:
        """Encoder of the EMA."""
        return self.average.network.encoder

    def modules(self) -> dict[str, nn.Module]:
        """Return the network and its EMA."""
        return {"network": self.network, "average": self.average.network}

    def losses(self, crops: Crops) -> Mapping[str, Tensor]:
        """Return the reconstruction loss of the large crop."""
        (images,) = crops.large
        return {"total": self.network(images, crops.noise).loss}

    def after_step(self, step: PretrainStep, group: ProcessGroup, *, moved: bool) -> None:
        """Update the EMA."""
        del group
        if moved:
            self.average.update(self.network, step.step)


class DINOTask:
    """Self-distillation; the teacher is released."""

    def __init__(self, config: DINOConfig, device: torch.device) -> None:
        self.network = SelfDistillation(config).to(device)
        self._centres: list[Tensor] = []

    @property
    def encoder(self) -> ViT:
        """Encoder of the teacher."""
        return self.network.teacher.encoder

    def modules(self) -> dict[str, nn.Module]:
        """Return student, teacher and centre as one module."""
        return {"network": self.network}

    def losses(self, crops: Crops) -> Mapping[str, Tensor]:
        """Return the distillation loss, and entropy and information of the teacher."""
        output = self.network(crops.large, crops.small)
        self._centres.append(output.centre)
        return {
            "total": output.loss,
            "teacher_entropy": output.teacher_entropy,
            "teacher_information": output.teacher_information,
        }

    def after_step(self, step: PretrainStep, group: ProcessGroup, *, moved: bool) -> None:
        """Update the teacher, and the centre from the batches of all processes."""
        centre = group.average(torch.stack(self._centres).mean(dim=0))
        self._centres.clear()
        if moved:
            self.network.update_teacher(centre, step.done)


def build_task(config: PretrainConfig, device: torch.device) -> MAETask | DINOTask:
    """Build a task with random weights, drawn from the run's seed."""
    torch.manual_seed(config.seed)
    if isinstance(config.method, MAEConfig):
        return MAETask(config.method, config.optimizer.average_decay, device)
    return DINOTask(config.method, device)
