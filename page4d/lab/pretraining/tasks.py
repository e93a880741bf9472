"""MAE and DINO as training tasks: losses of crops, updates after a step, and the released encoder."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from page4d.lab.pretraining.config import PretrainConfig
from page4d.lab.pretraining.data import Crops
from page4d.lab.pretraining.dino import DINOConfig, SelfDistillation
from page4d.lab.pretraining.mae import MAEConfig, MaskedAutoencoder
from page4d.lab.training.checkpoint import EMA
from page4d.lab.training.processes import ProcessGroup
from page4d.lab.training.schedule import PlannedStep
from page4d.networks.encoders.vit import ViT


@dataclass(frozen=True, kw_only=True)
class PretrainStep(PlannedStep):
    """A step, with the fraction of the run before it."""

    done: float


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


PretrainTask = MAETask | DINOTask
"""A network that is trained without labels, and the encoder in it."""


def build_task(config: PretrainConfig, device: torch.device) -> PretrainTask:
    """Build a task with random weights, drawn from the run's seed."""
    torch.manual_seed(config.seed)
    if isinstance(config.method, MAEConfig):
        return MAETask(config.method, config.optimizer.average_decay, device)
    return DINOTask(config.method, device)
