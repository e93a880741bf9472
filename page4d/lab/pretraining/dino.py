"""Self-distillation without labels (DINO): a student predicts the output of its EMA teacher for other crops."""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Annotated, Literal

import torch
from jaxtyping import Float
from pydantic import Field, PositiveFloat
from torch import Tensor, nn
from torch.nn import functional

from page4d.errors import UsageError
from page4d.io.json_records import config_record
from page4d.networks.encoders.vit import Pooling, ViT, ViTConfig
from page4d.networks.layers.block import initialise_linears
from page4d.networks.layers.execution import Classes, Depth, Width

_PROBABILITY_EPS = 1e-20
"""Added before the logarithm: it bounds the loss of a class whose probability underflows."""

_NORM_EPS = 1e-6


class ProjectorKind(StrEnum):
    """Architecture of the projector."""

    PAPER = "paper"
    """An MLP to a bottleneck, and class weights of norm 1 without biases."""

    PLAIN = "plain"
    """GELU after every hidden layer, and classes with biases."""


@config_record("projector")
class ProjectorConfig:
    """Size of the projector; `layers` includes the last one, a plain projector has no bottleneck."""

    kind: ProjectorKind = ProjectorKind.PAPER
    layers: Annotated[Depth, Field(ge=2)] = 4
    hidden_dim: Width = 2048
    bottleneck_dim: Width = 256
    classes: Classes = 65536


@config_record("dino")
class DINOConfig:
    """Encoder, projector, temperatures and momenta; `teacher_momentum` rises to 1 over the run on a cosine."""

    kind: Literal["dino"] = "dino"
    encoder: ViTConfig = ViTConfig()
    projector: ProjectorConfig = ProjectorConfig()
    student_temperature: PositiveFloat = 0.1
    teacher_temperature: PositiveFloat = 0.04
    teacher_momentum: Annotated[float, Field(ge=0, le=1)] = 0.996
    centre_momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9

    def __post_init__(self) -> None:
        if self.encoder.num_classes is not None:
            raise UsageError(f"dino: an encoder with {self.encoder.num_classes} classes", "set num_classes to null")
        if self.encoder.pooling is not Pooling.CLASS:
            raise UsageError(
                f"dino: an encoder that pools by '{self.encoder.pooling}'",
                "set pooling to 'class': the class token is required",
            )


class _UnitRows(nn.Module):
    """A linear layer with rows of norm 1: cosine similarities to learned directions."""

    def __init__(self, dim: int, classes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(classes, dim))
        nn.init.trunc_normal_(self.weight)

    def forward(self, features: Float[Tensor, "F C"]) -> Float[Tensor, "F K"]:
        return functional.linear(features, functional.normalize(self.weight, dim=-1))


class Projector(nn.Module):
    """An MLP, an L2 normalisation, and one logit per class.

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
        return self.classes(functional.normalize(self.hidden(features), dim=-1, eps=_NORM_EPS))


class _ProjectedEncoder(nn.Module):
    """An encoder with a projector: the student or the teacher."""

    def __init__(self, config: DINOConfig) -> None:
        super().__init__()
        self.encoder = ViT(config.encoder)
        self.projector = Projector(config.encoder.embed_dim, config.projector)

    def forward(self, images: Float[Tensor, "F 3 H W"]) -> Float[Tensor, "F K"]:
        return self.projector(self.encoder.forward_features(images)).float()


@dataclass(frozen=True, kw_only=True)
class DINOOutput:
    """Loss of a batch, entropy and information of the teacher in nats, and the mean of its logits.

    `teacher_information` is the mutual information of class and image: 0 is a collapse, to one class or to uniform.
    """

    loss: Float[Tensor, ""]
    teacher_entropy: Float[Tensor, ""]
    teacher_information: Float[Tensor, ""]
    centre: Float[Tensor, "one K"]


class SelfDistillation(nn.Module):
    """A student trained by gradients, and a teacher that is its EMA.

    Source: Caron et al. (2021), "Emerging Properties in Self-Supervised Vision Transformers", section 3.1.
    """

    centre: Tensor

    def __init__(self, config: DINOConfig) -> None:
        super().__init__()
        self.config = config
        self.student = _ProjectedEncoder(config)
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)
        self.register_buffer("centre", torch.zeros(1, config.projector.classes))

    def forward(
        self, large: Sequence[Float[Tensor, "F 3 H W"]], small: Sequence[Float[Tensor, "F 3 h w"]] = ()
    ) -> DINOOutput:
        """Compare the student on all crops with the teacher on the large ones.

        Raises:
            ShapeError: if sides of crops are not multiples of those of a patch.
        """
        with torch.no_grad():
            teacher = _logits(self.teacher, large)
        student = _logits(self.student, large) + (_logits(self.student, small) if small else [])
        return self.compare(teacher, student)

    def compare(self, teacher: Sequence[Float[Tensor, "F K"]], student: Sequence[Float[Tensor, "F K"]]) -> DINOOutput:
        """Compare logits of teacher and student per crop, except pairs of the same crop."""
        config = self.config
        temperatures = (config.teacher_temperature, config.student_temperature)
        losses = [
            distillation_loss(teacher[i], student[j], self.centre, *temperatures)
            for i in range(len(teacher))
            for j in range(len(student))
            if i != j
        ]
        logits = torch.cat(list(teacher))
        probabilities = teacher_probabilities(logits, self.centre, config.teacher_temperature)
        entropy = _entropy(probabilities).mean()
        return DINOOutput(
            loss=torch.stack(losses).mean(),
            teacher_entropy=entropy,
            teacher_information=_entropy(probabilities.mean(dim=0)) - entropy,
            centre=logits.mean(dim=0, keepdim=True),
        )

    @torch.no_grad()
    def update_teacher(self, centre: Float[Tensor, "one K"], done: float) -> None:
        """Update teacher and centre after a step; `done` is the fraction of the run before it."""
        self.centre.lerp_(centre.to(self.centre), 1 - self.config.centre_momentum)
        momentum = momentum_at(done, self.config.teacher_momentum)
        averages: list[Tensor] = list(self.teacher.parameters())
        torch._foreach_lerp_(averages, list(self.student.parameters()), 1 - momentum)


def distillation_loss(
    teacher: Float[Tensor, "F K"],
    student: Float[Tensor, "F K"],
    centre: Float[Tensor, "one K"],
    teacher_temperature: float,
    student_temperature: float,
) -> Float[Tensor, ""]:
    """Return the cross entropy of the student under the centred and sharpened teacher, which has no gradient.

    Source: Caron et al. (2021), DINO, eq. 1 and section 3.1; the epsilon from the public code (reference facts).
    """
    target = teacher_probabilities(teacher.detach(), centre, teacher_temperature)
    log_probabilities = torch.log((student / student_temperature).softmax(dim=-1) + _PROBABILITY_EPS)
    return -(target * log_probabilities).sum(dim=-1).mean()


def teacher_probabilities(
    logits: Float[Tensor, "F K"], centre: Float[Tensor, "one K"], temperature: float
) -> Float[Tensor, "F K"]:
    """Return the centred and sharpened class probabilities of the teacher."""
    return ((logits - centre) / temperature).softmax(dim=-1)


def momentum_at(done: float, start: float) -> float:
    """Return the momentum of the teacher: from `start` to 1 on half a cosine.

    Source: Grill et al. (2020), BYOL, section 3.2.
    """
    return 1 - (1 - start) * (math.cos(math.pi * min(max(done, 0.0), 1.0)) + 1) / 2


def _entropy(probabilities: Float[Tensor, "*batch K"]) -> Float[Tensor, "*batch"]:
    return -torch.xlogy(probabilities, probabilities).sum(dim=-1)


def _logits(network: nn.Module, crops: Sequence[Float[Tensor, "F 3 H W"]]) -> list[Float[Tensor, "F K"]]:
    """Return the logits of every crop of the images; crops of one size form one batch."""
    return list(network(torch.cat(list(crops))).chunk(len(crops)))
