"""Kernels of the volume work on a GPU, where PyTorch starts some twenty operations per pixel of a path.

Triton, a part of PyTorch for GPUs, compiles them at their first call and keeps the machine code in its cache.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

try:
    import triton
    from triton import language as tl
except ImportError:  # PyTorch for a CPU has no Triton
    triton = None

_LEAST_LABELS = 32
"""Labels of a path are padded to a power of two, at least the threads that advance together."""


def _compiled(function: Callable[..., Any]) -> Any:
    """Return a kernel, of whose machine code there are no variants for the divisors of sizes."""
    names = ("count", "length", "inner", "line_stride", "label_stride", "pixel_stride")
    return function if triton is None else triton.jit(function, do_not_specialize=names)


def aggregate(
    score: Float[Tensor, "N rows K columns"], penalty: float, max_penalty: float
) -> Float[Tensor, "N rows K columns"]:
    """Aggregate scores as `page4d.stereo.sweep.aggregate_scores`."""
    score = score.contiguous()
    total, (images, rows, count, columns) = score.clone(), score.shape
    labels = max(_LEAST_LABELS, triton.next_power_of_2(count))
    along_columns = images * rows, (columns, 1, count * columns, columns, 1)
    along_rows = images * columns, (rows, columns, rows * count * columns, columns, count * columns)
    for lines, (*sizes, step) in (along_columns, along_rows):
        for pixel_stride in (step, -step):
            with torch.cuda.device(score.device):  # Triton starts kernels on the current one
                _add_messages[(lines,)](
                    total, score, penalty, -max_penalty, count, *sizes, pixel_stride, labels, num_warps=1
                )
    return total


@_compiled
def _larger(first, second):  # type: ignore[no-untyped-def]  # Triton reads no other annotations
    return tl.maximum(first, second)


@_compiled
def _add_messages(  # type: ignore[no-untyped-def]
    total,
    score,
    penalty,
    least,
    count,
    length,
    inner,
    line_stride,
    label_stride,
    pixel_stride,
    labels: "tl.constexpr",
):
    """Add to the total the messages along one line of pixels, whose number is that of the program.

    Two scans over labels give the maximum over all of them less a linear penalty. A pixel is read before the message
    to it is known. Programs add to different pixels, and directions follow one another: sums do not vary.

    Source: Felzenszwalb & Huttenlocher (2006), "Efficient Belief Propagation for Early Vision", section 4.1.
    """
    line, label = tl.program_id(0), tl.arange(0, labels)
    place = (line // inner).to(tl.int64) * line_stride + line % inner + label * label_stride
    place += tl.where(pixel_stride < 0, (1 - length) * pixel_stride, 0)
    is_label, rise = label < count, label * penalty
    own = tl.load(score + place, mask=is_label, other=float("-inf"))
    message = tl.zeros_like(own)
    for index in range(length):
        following = tl.load(score + place + pixel_stride, mask=is_label & (index + 1 < length), other=float("-inf"))
        tl.atomic_add(total + place, message, mask=is_label)
        path = own + message
        below = tl.associative_scan(path + rise, 0, _larger) - rise
        above = tl.associative_scan(path - rise, 0, _larger, reverse=True) + rise
        message = tl.maximum(tl.maximum(below, above) - tl.max(path, 0), least)
        own = following
        place += pixel_stride
