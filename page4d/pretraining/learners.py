"""Both methods as the loop sees them: losses of crops, what follows a step, and the encoder that is handed out."""

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
from page4d.training.engine.distributed import Team
from page4d.training.engine.ema import WeightAverage


@dataclass(frozen=True, kw_only=True)
class Taken:
    """A step that was taken, or not moved: its number, the part of the run before it, and who took it."""

    step: int
    done: float
    team: Team
    moved: bool


class Learner(Protocol):
    """What is trained, and whatever follows it."""

    @property
    def network(self) -> nn.Module:
        """What gradients move."""
        ...

    @property
    def encoder(self) -> ViT:
        """What is handed out."""
        ...

    def modules(self) -> dict[str, nn.Module]:
        """Return everything that a checkpoint holds."""
        ...

    def losses(self, crops: Crops) -> Mapping[str, Tensor]:
        """Return what is minimised as "total", and what is good to know."""
        ...

    def follow(self, taken: Taken) -> None:
        """Do what comes after a step."""
        ...


class Painter:
    """MAE with a moving average of its weights."""

    def __init__(self, config: MAEConfig, average_decay: float, device: torch.device) -> None:
        self.network = MaskedAutoencoder(config).to(device)
        self.average = WeightAverage(self.network, average_decay)

    @property
    def encoder(self) -> ViT:
        """That of the averaged weights."""
        return self.average.network.encoder

    def modules(self) -> dict[str, nn.Module]:
        """Return the network and its average."""
        return {"network": self.network, "average": self.average.network}

    def losses(self, crops: Crops) -> Mapping[str, Tensor]:
        """Paint the hidden patches of the large crop."""
        (images,) = crops.large
        return {"total": self.network(images, crops.noise).loss}

    def follow(self, taken: Taken) -> None:
        """Move the average."""
        if taken.moved:
            self.average.update(self.network, taken.step)


class Distiller:
    """DINO; its teacher is handed out."""

    def __init__(self, config: DINOConfig, device: torch.device) -> None:
        self.network = SelfDistillation(config).to(device)
        self._centres: list[Tensor] = []

    @property
    def encoder(self) -> ViT:
        """That of the teacher."""
        return self.network.teacher.encoder

    def modules(self) -> dict[str, nn.Module]:
        """Return student, teacher and centre in one."""
        return {"network": self.network}

    def losses(self, crops: Crops) -> Mapping[str, Tensor]:
        """Compare the crops."""
        found = self.network(crops.large, crops.small)
        self._centres.append(found.centre)
        return {
            "total": found.loss,
            "teacher_entropy": found.teacher_entropy,
            "teacher_information": found.teacher_information,
        }

    def follow(self, taken: Taken) -> None:
        """Move the teacher and the centre, which is that of all processes."""
        centre = taken.team.average(torch.stack(self._centres).mean(dim=0))
        self._centres.clear()
        if taken.moved:
            self.network.follow(centre, taken.done)


def build_learner(config: PretrainConfig, device: torch.device) -> Painter | Distiller:
    """Build a learner with fresh weights, drawn from the run's seed."""
    torch.manual_seed(config.seed)
    if isinstance(config.method, MAEConfig):
        return Painter(config.method, config.optimizer.average_decay, device)
    return Distiller(config.method, device)
