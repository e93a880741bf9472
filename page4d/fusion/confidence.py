"""Confidence of depth, recalibrated by the agreement of views."""

import torch
from jaxtyping import Float
from torch import Tensor

from page4d.geometry.warp import Agreement

CONFIRMED, OPEN, CONTRADICTED = 1.0, 0.3, 0.1
"""Factors on the confidence of pixels that more views confirm than contradict, as many or none, and fewer: about the
share of such depths within 5 cm of the truth on real and synthetic rigs, relative to confirmed ones."""


def recalibrated(confidence: Float[Tensor, "*batch"], agreement: Agreement) -> Float[Tensor, "*batch"]:
    """Return the confidence in [0, 1] given the number of views that confirm and contradict each depth."""
    balance = agreement.confirmed.int() - agreement.contradicted.int()
    factor = torch.full_like(confidence, OPEN)
    factor[balance > 0] = CONFIRMED
    factor[balance < 0] = CONTRADICTED
    return confidence * factor
