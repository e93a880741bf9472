"""Scale and shift that align predicted depth with the truth, one protocol per function."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from page4d.choices import DepthAlignment

__all__ = ["DEFINITIONS", "DepthAlignment", "DepthFit", "align_depth"]

_MIN_SCALE = 1e-3
_EPSILON = 1e-8
_WEISZFELD_STEPS = 10
_ADAM_STEPS = 1000
_ADAM_RATE = 1e-4
_ADAM_TOLERANCE = 1e-6
_BISECTIONS = 200
_PRUNE_EVERY = 4

Pixels = Float[Tensor, " N"]
Fit = tuple[Tensor, Tensor]


DEFINITIONS = {
    DepthAlignment.SCALE: f"scale of least absolute error ({_WEISZFELD_STEPS} Weiszfeld steps, published)",
    DepthAlignment.SCALE_SHIFT: "scale and shift of least absolute error, exact",
    DepthAlignment.SCALE_SHIFT_SQUARES: "scale and shift of least squared error",
    DepthAlignment.SCALE_SHIFT_ADAM: f"scale and shift by {_ADAM_STEPS} Adam steps on the absolute error (published)",
    DepthAlignment.METRIC: "as predicted",
    DepthAlignment.MEDIAN: "ratio of the medians",
}
"""Estimator of each alignment.

`scale` follows the published code, whose ten iterations do not converge: a pixel with a residual near 0 gets almost
all of the weight, so rounding may change the third digit of the scale. `scale-shift` is exact.

Source: PAGE-4D `eval/eval/video_depth/tools.py` for `scale`, `median` and `scale-shift-adam`.
"""


@dataclass(frozen=True, kw_only=True)
class DepthFit:
    """Affine map `scale * depth + shift` with leading batch axes; NaN where there was no pixel to fit."""

    scale: Float[Tensor, "*batch"]
    shift: Float[Tensor, "*batch"]

    def apply(self, depth: Float[Tensor, "*batch H W"]) -> Float[Tensor, "*batch H W"]:
        """Align depth maps."""
        return self.scale[..., None, None] * depth + self.shift[..., None, None]


def align_depth(
    prediction: Float[Tensor, "*batch N"],
    truth: Float[Tensor, "*batch N"],
    counted: Bool[Tensor, "*batch N"],
    alignment: DepthAlignment,
) -> DepthFit:
    """Fit one map per batch element to its counted pixels along N."""
    batch, number = truth.shape[:-1], truth.shape[-1]
    rows = zip(*(values.reshape(-1, number) for values in (prediction, truth, counted)), strict=True)
    nothing = torch.full((), torch.nan, dtype=torch.float64, device=truth.device)
    fits = []
    for predicted, true, known in rows:
        if not known.all():
            predicted, true = predicted[known], true[known]
        fits.append(_FITS[alignment](predicted.double(), true.double()) if len(true) else (nothing, nothing))
    scale, shift = (torch.stack(values).reshape(batch) for values in zip(*fits, strict=True))
    return DepthFit(scale=scale, shift=shift)


def _keep(prediction: Pixels, truth: Pixels) -> Fit:
    del truth
    return prediction.new_ones(()), prediction.new_zeros(())


def _fit_median(prediction: Pixels, truth: Pixels) -> Fit:
    # torch returns the lower of two middle values, as in the public code.
    return truth.median() / prediction.median(), truth.new_zeros(())


def _fit_scale(prediction: Pixels, truth: Pixels) -> Fit:
    scale = truth.mean() / prediction.mean()
    for _ in range(_WEISZFELD_STEPS):
        weighted = prediction / ((scale * prediction - truth).abs() + _EPSILON)
        scale = (weighted @ truth) / (weighted @ prediction)
    return scale.clamp_min(_MIN_SCALE), truth.new_zeros(())


def _fit_squares(prediction: Pixels, truth: Pixels) -> Fit:
    centred = prediction - prediction.mean()
    variance = centred.square().sum()
    if variance <= (torch.finfo(prediction.dtype).eps * prediction.norm()) ** 2:
        return _fit_median(prediction, truth)
    scale = (centred * (truth - truth.mean())).sum() / variance
    return scale, truth.mean() - scale * prediction.mean()


def _fit_adam(prediction: Pixels, truth: Pixels) -> Fit:
    scale, shift = _fit_median(prediction, truth)
    scale.requires_grad_()
    shift.requires_grad_()
    optimizer = torch.optim.Adam([scale, shift], lr=_ADAM_RATE)
    before = torch.inf
    for _ in range(_ADAM_STEPS):
        with torch.no_grad():
            residual = scale * prediction + shift - truth
            loss, sign = float(residual.abs().sum()), residual.sign()
            scale.grad, shift.grad = (sign * prediction).sum(), sign.sum()
        optimizer.step()
        if abs(before - loss) < _ADAM_TOLERANCE:
            break
        before = loss
    return scale.detach(), shift.detach()


@dataclass(frozen=True)
class _Deviations:
    """Sum of |truth - scale * prediction - shift| as a function of the scale, at the optimal shift for each scale.

    `prediction` is at least 0, so residuals and the optimal shift decrease with the scale. Pixels with residuals of
    fixed sign are aggregated: `surplus` is the number of positive minus negative ones, `slope` the derivative of
    their sum with respect to the scale.
    """

    prediction: Pixels
    truth: Pixels
    surplus: int = 0
    slope: float = 0.0

    def at(self, scale: float) -> tuple[float, float]:
        """Return the derivative with respect to the scale, and the optimal shift."""
        residual = self.truth - scale * self.prediction
        number = len(residual)
        # The optimal shift is the median of all residuals, including the aggregated ones.
        rank = min(max((number + self.surplus + 1) // 2, 1), number)
        shift = residual.kthvalue(rank).values
        sign = (residual - shift).sign()
        level = sign == 0
        # The subgradient of |0| is any value in [-1, 1]; the value that makes the shift optimal applies to the scale.
        balance = -(float(sign.sum()) + self.surplus) / float(level.sum())
        derivative = self.slope - float(sign @ self.prediction) - balance * float(self.prediction[level].sum())
        return derivative, float(shift)

    def between(self, low: float, high: float, low_shift: float, high_shift: float) -> "_Deviations":
        """Aggregate the pixels whose residual has the same sign at all scales from `low` to `high`."""
        above = self.truth - high * self.prediction > low_shift
        below = self.truth - low * self.prediction < high_shift
        open_ = ~(above | below)
        return _Deviations(
            self.prediction[open_],
            self.truth[open_],
            self.surplus + int(above.sum()) - int(below.sum()),
            self.slope - float(self.prediction[above].sum()) + float(self.prediction[below].sum()),
        )


def _fit_deviations(prediction: Pixels, truth: Pixels) -> Fit:
    """Minimise the sum of absolute deviations exactly: it is convex in the scale, so its derivative is bisected."""
    deviations = _Deviations(prediction - prediction.min(), truth)
    start, _ = _fit_squares(prediction, truth)
    width = float(start.abs()) / 16 or 1.0
    low, high = float(start) - width, float(start) + width
    (low_slope, low_shift), (high_slope, high_shift) = deviations.at(low), deviations.at(high)
    while low_slope > 0 or high_slope < 0:
        width *= 4
        if low_slope > 0:
            low -= width
            low_slope, low_shift = deviations.at(low)
        if high_slope < 0:
            high += width
            high_slope, high_shift = deviations.at(high)
    for step in range(_BISECTIONS):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        slope, shift = deviations.at(middle)
        if slope <= 0:
            low, low_shift = middle, shift
        if slope >= 0:
            high, high_shift = middle, shift
        if step % _PRUNE_EVERY == _PRUNE_EVERY - 1 and low < high:
            deviations = deviations.between(low, high, low_shift, high_shift)
    scale = truth.new_tensor((low + high) / 2)
    return scale, (truth - scale * prediction).median()


_FITS: dict[DepthAlignment, Callable[[Tensor, Tensor], Fit]] = {
    DepthAlignment.SCALE: _fit_scale,
    DepthAlignment.SCALE_SHIFT: _fit_deviations,
    DepthAlignment.SCALE_SHIFT_SQUARES: _fit_squares,
    DepthAlignment.SCALE_SHIFT_ADAM: _fit_adam,
    DepthAlignment.METRIC: _keep,
    DepthAlignment.MEDIAN: _fit_median,
}
