"""Self-distillation without labels: a student says of small parts what its own moving average says of large ones."""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from page4d.encoders.vit import Pooling, ViT, ViTConfig
from page4d.errors import UsageError
from page4d.layers.block import initialise_linears

_LEAST_PROBABILITY = 1e-20
"""Added before the logarithm, so that a class that the student holds for impossible costs much but not everything."""

_LEAST_NORM = 1e-6


class ProjectorKind(StrEnum):
    """What turns an image's vector into logits."""

    PAPER = "paper"
    """A perceptron down to a bottleneck, and rows of norm 1 without biases as the classes."""

    PLAIN = "plain"
    """GELU behind every hidden layer, and classes with biases."""


@dataclass(frozen=True, kw_only=True)
class ProjectorConfig:
    """Size of the projector; `layers` includes the last one, and `bottleneck_dim` is unused by a plain projector."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012  pydantic's marker, not a field

    kind: ProjectorKind = ProjectorKind.PAPER
    layers: int = 4
    hidden_dim: int = 2048
    bottleneck_dim: int = 256
    classes: int = 65536

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", ProjectorKind(self.kind))
        if self.layers < 2 or min(self.hidden_dim, self.bottleneck_dim, self.classes) < 1:
            raise UsageError(
                f"dino: projector of {self.layers} layers, widths {self.hidden_dim} and {self.bottleneck_dim}, "
                f"{self.classes} classes",
                "use at least 2 layers and positive widths",
            )


@dataclass(frozen=True, kw_only=True)
class DINOConfig:
    """How the student is taught; `teacher_momentum` rises to 1 over the run on a cosine."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012  pydantic's marker, not a field

    kind: Literal["dino"] = "dino"
    encoder: ViTConfig = field(default_factory=ViTConfig)
    projector: ProjectorConfig = field(default_factory=ProjectorConfig)
    student_temperature: float = 0.1
    teacher_temperature: float = 0.04
    teacher_momentum: float = 0.996
    centre_momentum: float = 0.9

    def __post_init__(self) -> None:
        if self.encoder.num_classes is not None:
            raise UsageError(f"dino: an encoder with {self.encoder.num_classes} classes", "set num_classes to null")
        if self.encoder.pooling is not Pooling.CLASS:
            raise UsageError(
                f"dino: an encoder that pools by '{self.encoder.pooling}'",
                "set pooling to 'class': it needs the token",
            )
        if min(self.student_temperature, self.teacher_temperature) <= 0:
            raise UsageError(
                f"dino: temperatures {self.student_temperature:g} and {self.teacher_temperature:g}",
                "give positive numbers",
            )
        if not (0 <= self.teacher_momentum <= 1 and 0 <= self.centre_momentum < 1):
            raise UsageError(
                f"dino: teacher_momentum {self.teacher_momentum:g}, centre_momentum {self.centre_momentum:g}",
                "give numbers from 0 to 1",
            )


class _UnitRows(nn.Module):
    """Cosines with learned directions: a linear layer whose rows have norm 1."""

    def __init__(self, dim: int, classes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(classes, dim))
        nn.init.trunc_normal_(self.weight)

    def forward(self, features: Float[Tensor, "F C"]) -> Float[Tensor, "F K"]:
        return functional.linear(features, functional.normalize(self.weight, dim=-1))


class Projector(nn.Module):
    """A perceptron, a normalisation, and one logit a class.

    Source: Caron et al. (2021), DINO, section 3.1 and appendix C.
    """

    def __init__(self, dim: int, config: ProjectorConfig) -> None:
        super().__init__()
        plain = config.kind is ProjectorKind.PLAIN
        widths = [dim, *[config.hidden_dim] * (config.layers - 1)]
        if not plain:
            widths[-1] = config.bottleneck_dim
        parts: list[nn.Module] = []
        for before, after in pairwise(widths):
            parts += [nn.Linear(before, after), nn.GELU()]
        self.hidden = nn.Sequential(*(parts if plain else parts[:-1]))
        self.classes = nn.Linear(widths[-1], config.classes) if plain else _UnitRows(widths[-1], config.classes)
        initialise_linears(self)

    def forward(self, features: Float[Tensor, "F C"]) -> Float[Tensor, "F K"]:
        """Return the logits of images."""
        logits: Tensor = self.classes(functional.normalize(self.hidden(features), dim=-1, eps=_LEAST_NORM))
        return logits


class _Pupil(nn.Module):
    """An encoder with a projector, as student and teacher both are."""

    def __init__(self, config: DINOConfig) -> None:
        super().__init__()
        self.encoder = ViT(config.encoder)
        self.projector = Projector(config.encoder.embed_dim, config.projector)

    def forward(self, images: Float[Tensor, "F 3 H W"]) -> Float[Tensor, "F K"]:
        logits: Tensor = self.projector(self.encoder.forward_features(images)).float()
        return logits


@dataclass(frozen=True, kw_only=True)
class Distilled:
    """What one batch says: the loss, the teacher's entropy and information in nats, and the mean of its logits.

    The information is how much the class tells of the image: 0 is a collapse, whether to one class or to all alike.
    """

    loss: Float[Tensor, ""]
    teacher_entropy: Float[Tensor, ""]
    teacher_information: Float[Tensor, ""]
    centre: Float[Tensor, "one K"]


class SelfDistillation(nn.Module):
    """A student that learns, and a teacher that follows it.

    Source: Caron et al. (2021), "Emerging Properties in Self-Supervised Vision Transformers", section 3.1.
    """

    centre: Tensor

    def __init__(self, config: DINOConfig) -> None:
        super().__init__()
        self.config = config
        self.student = _Pupil(config)
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)
        self.register_buffer("centre", torch.zeros(1, config.projector.classes))

    def forward(
        self, large: Sequence[Float[Tensor, "F 3 H W"]], small: Sequence[Float[Tensor, "F 3 h w"]] = ()
    ) -> Distilled:
        """Compare what the student says of all crops with what the teacher says of the large ones.

        Raises:
            ShapeError: if sides of crops are not multiples of those of a patch.
        """
        with torch.no_grad():
            taught = _each(self.teacher, large)
        said = _each(self.student, large) + (_each(self.student, small) if small else [])
        return self.compare(taught, said)

    def compare(self, taught: Sequence[Float[Tensor, "F K"]], said: Sequence[Float[Tensor, "F K"]]) -> Distilled:
        """Compare logits of the teacher with those of the student; pairs of the same crop are left out."""
        config = self.config
        temperatures = (config.teacher_temperature, config.student_temperature)
        losses = [
            distillation_loss(teacher, student, self.centre, *temperatures)
            for i, teacher in enumerate(taught)
            for j, student in enumerate(said)
            if i != j
        ]
        logits = torch.cat(list(taught))
        shares = teacher_shares(logits, self.centre, config.teacher_temperature)
        entropy = _entropy(shares).mean()
        return Distilled(
            loss=torch.stack(losses).mean(),
            teacher_entropy=entropy,
            teacher_information=_entropy(shares.mean(dim=0)) - entropy,
            centre=logits.mean(dim=0, keepdim=True),
        )

    @torch.no_grad()
    def follow(self, centre: Float[Tensor, "one K"], done: float) -> None:
        """Move the teacher and its centre after a step; `done` is the part of the run that lies behind."""
        self.centre.lerp_(centre.to(self.centre), 1 - self.config.centre_momentum)
        momentum = momentum_at(done, self.config.teacher_momentum)
        mine: list[Tensor] = list(self.teacher.parameters())
        torch._foreach_lerp_(mine, list(self.student.parameters()), 1 - momentum)


def distillation_loss(
    teacher: Float[Tensor, "F K"],
    student: Float[Tensor, "F K"],
    centre: Float[Tensor, "one K"],
    teacher_temperature: float,
    student_temperature: float,
) -> Float[Tensor, ""]:
    """Return the cross entropy of the student under the centred and sharpened teacher, which gets no gradient.

    Source: Caron et al. (2021), DINO, eq. 1 and section 3.1; the least probability from the public code (reference
    facts).
    """
    wanted = teacher_shares(teacher.detach(), centre, teacher_temperature)
    logarithms = torch.log((student / student_temperature).softmax(dim=-1) + _LEAST_PROBABILITY)
    return -(wanted * logarithms).sum(dim=-1).mean()


def teacher_shares(
    logits: Float[Tensor, "F K"], centre: Float[Tensor, "one K"], temperature: float
) -> Float[Tensor, "F K"]:
    """Return the probabilities of the teacher's classes."""
    return ((logits - centre) / temperature).softmax(dim=-1)


def momentum_at(done: float, start: float) -> float:
    """Return the momentum of the teacher: from `start` to 1 on half a cosine.

    Source: Grill et al. (2020), BYOL, section 3.2.
    """
    return 1 - (1 - start) * (math.cos(math.pi * min(max(done, 0.0), 1.0)) + 1) / 2


def _entropy(shares: Float[Tensor, "*batch K"]) -> Float[Tensor, "*batch"]:
    return -torch.xlogy(shares, shares).sum(dim=-1)


def _each(pupil: nn.Module, crops: Sequence[Float[Tensor, "F 3 H W"]]) -> list[Float[Tensor, "F K"]]:
    """Return the logits of every set of crops, all of one size and so passed together."""
    return list(pupil(torch.cat(list(crops))).chunk(len(crops)))
