"""Muon: momentum SGD with orthogonalized matrix updates."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.optim import Optimizer

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5


class Muon(Optimizer):
    """Muon for matrices: updates with singular values near 1, scaled by the aspect ratio.

    Source: Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024 (Nesterov momentum, five
    iterations, factor sqrt(max(1, rows / columns))).
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
    orthogonal: Tensor = wide.T if matrix.shape[0] > matrix.shape[1] else wide
    return orthogonal
