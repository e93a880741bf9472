"""Kernels of the volume work on a CPU, which pass over memory once; PyTorch does so for every operation.

Numba compiles them at their first call and keeps the machine code in the cache. On other devices, in other precisions
and without Numba, the callers compute the same with PyTorch, or on a GPU by `page4d.stereo.gpu_kernels`. Results do
not depend on the number of threads, each of which writes a part of its own. In the loops all numbers are float32,
constants too, as one of float64 would widen the others; positions that are no number are moved to the border, never
outside the arrays.
"""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from importlib import import_module
from pickle import UnpicklingError
from subprocess import SubprocessError
from types import ModuleType

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from page4d.geometry.warp import RayWarp
from page4d.io.atomic import NO_CACHE
from page4d.io.folders import cache_folder

Array = NDArray[np.float32]
Loops = Callable[..., None]

_SUMMING = {"reassoc", "contract"}
"""Parts of `fastmath` of kernels that sum up numbers in loops without other effects. Elsewhere bytes would depend on
where arrays lie in memory, for a tenth of the time."""

_ZERO, _HALF, _ONE = np.float32(0), np.float32(0.5), np.float32(1)
_TINY, _FAR = np.finfo(np.float32).tiny, np.float32(1 << 24)
_LEAST_EXPONENT, _LOG2_E, _LN_2 = np.float32(-87), np.float32(1 / math.log(2)), np.float32(math.log(2))
_FARTHEST = np.float32(50)
"""Square of the standard deviations from which a likelihood is 0: that of a normal distribution is 1e-11 there."""

_SERIES = tuple(np.float32(1 / math.factorial(power)) for power in range(2, 7))


@cache
def numba() -> ModuleType | None:
    """Return the module numba; None if it cannot be imported."""
    try:
        found = import_module("numba")
    except (ImportError, OSError):
        return None
    return found if hasattr(found, "njit") else None  # a folder of this name in the path is a module, too


def apply_to(*tensors: Tensor) -> bool:
    """Return whether the kernels can be used: for float32 on the CPU, with Numba."""
    is_supported = all(tensor.dtype == torch.float32 and tensor.device.type == "cpu" for tensor in tensors)
    return is_supported and numba() is not None


@cache
def of_gpu(device: torch.device) -> ModuleType | None:
    """Return the module of kernels for a GPU; None for other devices, and without Triton or a C compiler."""
    if device.type != "cuda":
        return None
    try:
        found = import_module("page4d.stereo.gpu_kernels")
        found.aggregate(torch.zeros(1, 1, 1, 1, device=device), 1.0, 1.0)
    except (ImportError, AttributeError, OSError, RuntimeError, SubprocessError):
        return None
    return found


class _Kernel:
    """Loops (first and last index, results, other arguments) that are compiled at their first call, or loaded.

    The cache is page4d's, or NUMBA_CACHE_DIR.
    """

    def __init__(self, loops: Loops, *, is_summing: bool = False) -> None:
        self._options = {"nogil": True, "error_model": "numpy", "fastmath": _SUMMING if is_summing else False}
        self._loops = loops
        self._run: Loops | None = None

    def __call__(self, length: int, *arguments: object) -> None:
        """Compute parts of a range on as many threads as PyTorch uses."""
        count = max(1, min(torch.get_num_threads(), length))
        bounds = [length * part // count for part in range(count + 1)]
        compute = partial(self._compute, arguments)
        if count == 1:
            compute(*bounds)
            return
        with ThreadPoolExecutor(count, thread_name_prefix="kernel") as threads:
            list(threads.map(compute, bounds[:-1], bounds[1:]))

    def _compute(self, arguments: tuple[object, ...], first: int, last: int) -> None:
        try:
            self._run = self._run or self._compiled(in_cache=True)
            self._run(first, last, *arguments)
        except (OSError, EOFError, UnpicklingError):  # a full disk, or a damaged cache
            self._run = self._compiled(in_cache=False)
            self._run(first, last, *arguments)

    def _compiled(self, *, in_cache: bool) -> Loops:
        compiler, folder = numba(), cache_folder()
        assert compiler is not None
        given = compiler.config.CACHE_DIR
        compiler.config.CACHE_DIR = given or str(folder / "kernels")
        try:
            found: Loops = compiler.njit(self._loops, cache=in_cache and folder != NO_CACHE, **self._options)
        finally:
            compiler.config.CACHE_DIR = given
        return found


_LANES = 32
"""Rows whose paths advance together, for long vector operations."""


def aggregate(
    score: Float[Tensor, "N rows K columns"], penalty: float, max_penalty: float
) -> Float[Tensor, "N rows K columns"]:
    """Aggregate scores as `page4d.stereo.sweep.aggregate_scores`."""
    score = score.contiguous()
    total = score.clone()
    for scores, sums in zip(score.numpy(), total.numpy(), strict=True):
        for along_rows, lines in ((False, scores.shape[2]), (True, len(scores))):
            _add_messages(lines, sums, scores, penalty, -max_penalty, along_rows)
    return total


@_Kernel
def _add_messages(
    first: int, last: int, total: Array, score: Array, penalty: float, least: float, along_rows: bool
) -> None:
    """Add to the total [H, K, W] the messages along some columns, or rows, from both ends.

    Labels are visited in ascending, then in descending order: two steps a label give the maximum over all labels less
    a linear penalty. Pixels side by side advance together, those of some rows in a copy in which they are so.

    Source: Felzenszwalb & Huttenlocher (2006), "Efficient Belief Propagation for Early Vision", section 4.1.
    """
    step, floor = np.float32(penalty), np.float32(least)
    height, count, width = score.shape
    length, lanes = (width, _LANES) if along_rows else (height, width)
    lines, sums = score, total
    if along_rows:
        lines, sums = np.zeros((width, count, _LANES), np.float32), np.empty((width, count, _LANES), np.float32)
    path, message = np.empty((count, lanes), np.float32), np.empty((count, lanes), np.float32)
    best = np.empty(lanes, np.float32)
    for start in range(first, last, _LANES if along_rows else max(1, last - first)):
        begin, end = (0, min(_LANES, last - start)) if along_rows else (first, last)
        if along_rows:
            sums[:] = _ZERO
            for label in range(count):
                for column in range(width):
                    for lane in range(end):
                        lines[column, label, lane] = score[start + lane, label, column]
        for is_backward in range(2):
            message[:] = _ZERO
            for index in range(length):
                place = length - 1 - index if is_backward else index
                line, added = lines[place], sums[place]
                for lane in range(begin, end):
                    path[0, lane] = best[lane] = line[0, lane] + message[0, lane]
                    added[0, lane] += message[0, lane]
                for label in range(1, count):
                    for lane in range(begin, end):
                        value = line[label, lane] + message[label, lane]
                        added[label, lane] += message[label, lane]
                        best[lane] = max(best[lane], value)
                        path[label, lane] = max(value, path[label - 1, lane] - step)
                for lane in range(begin, end):
                    message[count - 1, lane] = max(path[count - 1, lane] - best[lane], floor)
                for label in range(count - 2, -1, -1):
                    for lane in range(begin, end):
                        path[label, lane] = max(path[label, lane], path[label + 1, lane] - step)
                        message[label, lane] = max(path[label, lane] - best[lane], floor)
        if along_rows:
            for lane in range(end):
                for label in range(count):
                    for column in range(width):
                        total[start + lane, label, column] += sums[column, label, lane]


def correlate(
    source: Float[Tensor, "B 3 H W"],
    mean: Float[Tensor, "B 3 H W"],
    variance: Float[Tensor, "B H W"],
    target: Float[Tensor, "B 3 h w"],
    warp: RayWarp,
    depth: Float[Tensor, "B H W"],
    factors: Float[Tensor, "K one_or_H one_or_W"],
    least: tuple[float, float],
) -> Float[Tensor, "B H K W"]:
    """Correlate windows as `page4d.stereo.sweep.correlate`.

    `mean` and `variance` are those of the windows of the source. `warp` leads to positions as `sample_grid` counts;
    it is that of three rays, of which x, y and 1 times make the ray of a pixel. `least` are the smallest depth in the
    target and the number that is added to variances.
    """
    correlation = depth.new_empty(*depth.shape[:2], len(factors), depth.shape[2])
    for frame, found in enumerate(correlation):
        colors = target.new_zeros(target.shape[-2] + 2, target.shape[-1], 4)  # none is read beyond the last one
        colors[:-2, :, :3] = target[frame].movedim(0, -1)
        axes = torch.cat([warp.directions[frame], warp.origin[frame].reshape(1, 3)])
        tensors = (found, source[frame], mean[frame], variance[frame], colors, axes, depth[frame], factors)
        _write_correlation(len(factors), *(tensor.contiguous().numpy() for tensor in tensors), *least)
    return correlation


@_Kernel
def _write_correlation(
    first: int,
    last: int,
    correlation: Array,
    source: Array,
    mean: Array,
    variance: Array,
    target: Array,
    axes: Array,
    depth: Array,
    factors: Array,
    least_depth: float,
    least_variance: float,
) -> None:
    """Write the NCC of 5x5 windows of the source [3, H, W] and the target for some labels of [H, K, W].

    The target [h + 2, w, 4] has zeros after colors and rows; `factors` are [K, H, W] or [K, 1, 1]; `axes` are the
    directions of the three rays of the warp, and its origin. Of every pixel of the target five numbers are summed
    over windows: its colors, the sum of their squares, and that of their products with the source. The sums over
    columns of five rows are kept.
    """
    height, width = depth.shape
    columns, rows = target.shape[1], target.shape[0] - 2
    colors, pitch = target.reshape(-1), np.uint64(4 * columns)
    right, bottom = np.float32(columns), np.float32(rows)
    nearest, flat = np.float32(least_depth), np.float32(least_variance)
    distance, across, down = np.empty(width, np.float32), np.empty(width, np.float32), np.empty(width, np.float32)
    place = np.empty(width, np.int64)
    wide, sums = np.zeros((5, width + 4), np.float32), np.empty((5, 5, width), np.float32)
    is_seen, inverse = np.empty((3, width), np.float32), np.empty(width, np.float32)
    for x in range(width):
        inverse[x] = _ONE / np.float32(min(x, 2) + 1 + min(width - 1 - x, 2))
    for label in range(first, last):
        sums[:] = _ZERO
        for y in range(height + 2):
            slot = y % 5
            if y < height:
                if factors.shape[1] == 1:
                    for x in range(width):
                        distance[x] = depth[y, x] * factors[label, 0, 0]
                else:
                    for x in range(width):
                        distance[x] = depth[y, x] * factors[label, y, x]
                seen, below = is_seen[y % 3], np.float32(y) + _HALF
                start = axes[1] * below + axes[2]
                for x in range(width):
                    beside = np.float32(x) + _HALF
                    ahead = axes[3, 2] + (axes[0, 2] * beside + start[2]) * distance[x]
                    scale = _ONE / max(ahead, nearest)
                    column = (axes[3, 0] + (axes[0, 0] * beside + start[0]) * distance[x]) * scale
                    row = (axes[3, 1] + (axes[0, 1] * beside + start[1]) * distance[x]) * scale
                    column, row = (column + _ONE) * (_HALF * right), (row + _ONE) * (_HALF * bottom)
                    inside = (column > _ZERO) & (column < right) & (row > _ZERO) & (row < bottom)
                    seen[x] = _ONE if inside & (ahead > nearest) else _ZERO
                    column, row = column - _HALF, row - _HALF
                    column = min(column if column > _ZERO else _ZERO, right - _ONE)
                    row = min(row if row > _ZERO else _ZERO, bottom - _ONE)
                    left, top = np.int64(column), np.int64(row)
                    across[x], down[x] = column - np.float32(left), row - np.float32(top)
                    place[x] = 4 * (top * columns + left)
                for x in range(width):
                    upper, lower = np.uint64(place[x]), np.uint64(place[x]) + pitch
                    lower_right = across[x] * down[x]
                    upper_right, lower_left = across[x] - lower_right, down[x] - lower_right
                    upper_left = _ONE - across[x] - lower_left
                    for color in range(3):
                        wide[color, x + 2] = (
                            colors[upper + np.uint64(color)] * upper_left
                            + colors[upper + np.uint64(color + 4)] * upper_right
                            + colors[lower + np.uint64(color)] * lower_left
                            + colors[lower + np.uint64(color + 4)] * lower_right
                        )
                for x in range(width):
                    red, green, blue = wide[0, x + 2], wide[1, x + 2], wide[2, x + 2]
                    wide[3, x + 2] = red * red + green * green + blue * blue
                    wide[4, x + 2] = red * source[0, y, x] + green * source[1, y, x] + blue * source[2, y, x]
                for part in range(5):
                    own, total = wide[part], sums[slot, part]
                    for x in range(width):
                        total[x] = own[x] + own[x + 1] + own[x + 2] + own[x + 3] + own[x + 4]
            else:
                sums[slot] = _ZERO
            if y >= 2:
                center = y - 2
                share = _ONE / np.float32(min(center, 2) + 1 + min(height - 1 - center, 2))
                seen, found = is_seen[center % 3], correlation[center, label]
                for x in range(width):
                    norm = share * inverse[x]
                    red = (sums[0, 0, x] + sums[1, 0, x] + sums[2, 0, x] + sums[3, 0, x] + sums[4, 0, x]) * norm
                    green = (sums[0, 1, x] + sums[1, 1, x] + sums[2, 1, x] + sums[3, 1, x] + sums[4, 1, x]) * norm
                    blue = (sums[0, 2, x] + sums[1, 2, x] + sums[2, 2, x] + sums[3, 2, x] + sums[4, 2, x]) * norm
                    square = (sums[0, 3, x] + sums[1, 3, x] + sums[2, 3, x] + sums[3, 3, x] + sums[4, 3, x]) * norm
                    product = (sums[0, 4, x] + sums[1, 4, x] + sums[2, 4, x] + sums[3, 4, x] + sums[4, 4, x]) * norm
                    covariance = product - (
                        red * mean[0, center, x] + green * mean[1, center, x] + blue * mean[2, center, x]
                    )
                    spread = max(square - (red * red + green * green + blue * blue), _ZERO) + flat
                    spread *= max(variance[center, x], _ZERO) + flat
                    found[x] = covariance / np.sqrt(spread) * seen[x]


def compare(
    source: Float[Tensor, "B C H W"],
    target: Float[Tensor, "B C h w"],
    warp: RayWarp,
    depth: Float[Tensor, "B H W"],
    factors: Float[Tensor, "K 1 1"],
    least_depth: float,
) -> Float[Tensor, "B K H W"]:
    """Return the scalar products of descriptors with those of another image at factors of depth; 0 out of sight.

    `warp` leads to positions as `sample_grid` counts.
    """
    products = depth.new_empty(len(depth), len(factors), *depth.shape[1:])
    for frame, found in enumerate(products):
        wide = functional.pad(target[frame].movedim(0, -1), (0, 0, 0, 0, 0, 2))  # none is read beyond the last one
        rays = warp.directions[frame, 0].movedim(-1, 0), warp.origin[frame].flatten()
        tensors = (found, source[frame].movedim(0, -1), wide, *rays, depth[frame], factors.flatten())
        _write_products(len(depth[frame]), *(tensor.contiguous().numpy() for tensor in tensors), least_depth)
    return products


@partial(_Kernel, is_summing=True)
def _write_products(
    first: int,
    last: int,
    products: Array,
    source: Array,
    target: Array,
    directions: Array,
    origin: Array,
    depth: Array,
    factors: Array,
    least_depth: float,
) -> None:
    """Write the products of some rows of [K, H, W]; descriptors are [H, W, C], the target has two rows more."""
    columns, rows, count = target.shape[1], target.shape[0] - 2, target.shape[2]
    right, bottom, nearest = np.float32(columns), np.float32(rows), np.float32(least_depth)
    cells = target.reshape(-1, count)
    for y in range(first, last):
        for x in range(depth.shape[1]):
            own = source[y, x]
            for label in range(len(factors)):
                distance = depth[y, x] * factors[label]
                ahead = origin[2] + directions[2, y, x] * distance
                scale = _ONE / max(ahead, nearest)
                column = ((origin[0] + directions[0, y, x] * distance) * scale + _ONE) * (_HALF * right)
                row = ((origin[1] + directions[1, y, x] * distance) * scale + _ONE) * (_HALF * bottom)
                products[label, y, x] = _ZERO
                if (ahead > nearest) & (column > _ZERO) & (column < right) & (row > _ZERO) & (row < bottom):
                    column = min(max(column - _HALF, _ZERO), right - _ONE)
                    row = min(max(row - _HALF, _ZERO), bottom - _ONE)
                    left, top = int(column), int(row)
                    across, down = column - np.float32(left), row - np.float32(top)
                    upper, lower = top * columns + left, (top + 1) * columns + left
                    sums = _ZERO
                    lower_sums = _ZERO
                    for channel in range(count):
                        before = cells[upper, channel]
                        sums += own[channel] * (before + across * (cells[upper + 1, channel] - before))
                        before = cells[lower, channel]
                        lower_sums += own[channel] * (before + across * (cells[lower + 1, channel] - before))
                    products[label, y, x] = sums + down * (lower_sums - sums)


def compare_surface(
    points: Float[Tensor, "N 3"],
    origin: Float[Tensor, " 3"],
    factors: Float[Tensor, " K"],
    surface: Float[Tensor, "h w 4"],
    least_depth: float,
    free_space: float,
) -> Float[Tensor, "K N"]:
    """Return the evidence of a surface for points at factors of depth, as `page4d.stereo.consensus`.

    A point is at `origin` plus a factor times its row, in homogeneous pixels of the other view. The surface has log
    depth, its standard deviation, and what it adds at its depth and subtracts in front of it.
    """
    evidence = points.new_zeros(len(factors), len(points))
    tensors = (evidence, points.T, origin, factors, surface)
    _write_evidence(len(factors), *(tensor.contiguous().numpy() for tensor in tensors), least_depth, free_space)
    return evidence


@_Kernel
def _write_evidence(
    first: int,
    last: int,
    evidence: Array,
    points: Array,
    origin: Array,
    factors: Array,
    surface: Array,
    least_depth: float,
    free_space: float,
) -> None:
    """Write the evidence for some factors; most points are far from the surface, or where it has none."""
    right, bottom = np.float32(surface.shape[1]), np.float32(surface.shape[0])
    nearest, free = np.float32(least_depth), -np.float32(free_space)
    for label in range(first, last):
        factor = factors[label]
        for point in range(points.shape[1]):
            ahead = origin[2] + points[2, point] * factor
            if ahead > nearest:
                column = (origin[0] + points[0, point] * factor) / ahead
                row = (origin[1] + points[1, point] * factor) / ahead
                if (column > _ZERO) & (column < right) & (row > _ZERO) & (row < bottom):
                    other = surface[int(row), int(column)]
                    if (other[2] > _ZERO) | (other[3] > _ZERO):
                        beyond = (np.log(ahead) - other[0]) / other[1]
                        if beyond * beyond < _FARTHEST:
                            evidence[label, point] = other[2] * np.exp(-_HALF * beyond * beyond)
                        if beyond < free:
                            evidence[label, point] -= other[3]


def upsample(
    maps: Float[Tensor, "C h w"],
    weight: Float[Tensor, "h w"],
    guide: Float[Tensor, "3 h w"],
    image: Float[Tensor, "3 H W"],
    positions: Float[Tensor, "H W 2"],
    spread: tuple[float, float, float],
    least_weight: float,
) -> tuple[Float[Tensor, "C H W"], Bool[Tensor, "H W"]]:
    """Sample maps as `page4d.stereo.edges.upsample`.

    `spread` are the standard deviations of the distance and of colors, and the largest difference of one surface.
    """
    sampled = maps.new_empty(len(maps), *positions.shape[:2])
    found = torch.empty(positions.shape[:2], dtype=torch.bool)
    tensors = (sampled, found, maps, weight, guide, image, positions)
    _write_upsampled(len(positions), *(tensor.contiguous().numpy() for tensor in tensors), *spread, least_weight)
    return sampled, found


@_Kernel
def _write_upsampled(
    first: int,
    last: int,
    sampled: Array,
    found: NDArray[np.bool_],
    maps: Array,
    weight: Array,
    guide: Array,
    image: Array,
    positions: Array,
    distance_sigma: float,
    color_sigma: float,
    same_surface: float,
    least_weight: float,
) -> None:
    """Write some rows: of 4x4 candidates around a position those on the surface of the weighted median are averaged.

    The median is the smallest value with at least half of the weight at or below it.
    """
    (height, width), length = weight.shape, positions.shape[1]
    by_distance, by_color = np.float32(0.5 / distance_sigma**2), np.float32(0.5 / color_sigma**2)
    tolerance, least = np.float32(same_surface), np.float32(least_weight)
    values, weights = np.empty((len(maps), 16, length), np.float32), np.empty((16, length), np.float32)
    exponents, exponent = np.empty(length, np.float32), np.empty(length, np.int32)
    power = exponent.view(np.float32)
    total, below, median = np.empty(length, np.float32), np.empty(length, np.float32), np.empty(length, np.float32)
    for y in range(first, last):
        for candidate in range(16):
            own = weights[candidate]
            for x in range(length):
                left, top = positions[y, x, 0] - _HALF, positions[y, x, 1] - _HALF
                column = int(np.floor(min(left if left > -_FAR else -_FAR, _FAR))) + candidate % 4 - 1
                row = int(np.floor(min(top if top > -_FAR else -_FAR, _FAR))) + candidate // 4 - 1
                across, down = np.float32(column) - left, np.float32(row) - top
                is_inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
                column, row = min(max(column, 0), width - 1), min(max(row, 0), height - 1)
                own[x] = weight[row, column] if is_inside else _ZERO
                color = _ZERO
                for channel in range(3):
                    color += (guide[channel, row, column] - image[channel, y, x]) ** 2
                exponents[x] = -((across * across + down * down) * by_distance + color * by_color)
                for part in range(len(maps)):
                    values[part, candidate, x] = maps[part, row, column]
            for x in range(length):
                doublings = max(exponents[x], _LEAST_EXPONENT) * _LOG2_E
                whole = np.floor(doublings + _HALF)
                rest = (doublings - whole) * _LN_2
                series = _ONE + rest * (
                    _ONE
                    + rest
                    * (
                        _SERIES[0]
                        + rest * (_SERIES[1] + rest * (_SERIES[2] + rest * (_SERIES[3] + rest * _SERIES[4])))
                    )
                )
                exponent[x] = (np.int32(whole) + np.int32(127)) << np.int32(23)
                own[x] *= max(series * power[x], least)
        total[:] = _ZERO
        median[:] = np.float32(np.inf)
        for candidate in range(16):
            for x in range(length):
                total[x] += weights[candidate, x]
        for candidate in range(16):
            value = values[0, candidate]
            below[:] = _ZERO
            for other in range(16):
                for x in range(length):
                    below[x] += weights[other, x] if values[0, other, x] <= value[x] else _ZERO
            for x in range(length):
                if (below[x] >= _HALF * total[x]) & (value[x] < median[x]):
                    median[x] = value[x]
        total[:] = _ZERO
        sampled[:, y] = _ZERO
        for candidate in range(16):
            for x in range(length):
                is_same = abs(values[0, candidate, x] - median[x]) <= tolerance
                weights[candidate, x] *= _ONE if is_same else _ZERO
                total[x] += weights[candidate, x]
            for part in range(len(maps)):
                for x in range(length):
                    sampled[part, y, x] += values[part, candidate, x] * weights[candidate, x]
        for x in range(length):
            found[y, x] = total[x] > _TINY
            for part in range(len(maps)):
                sampled[part, y, x] /= max(total[x], _TINY)


def median_of_windows(values: Float[Tensor, "H W"], weight: Float[Tensor, "K H W"]) -> Float[Tensor, "H W"]:
    """Return the weighted median of every square window of K pixels. Weights outside the image must be 0."""
    side = math.isqrt(len(weight))
    wide = functional.pad(values, (side // 2,) * 4)
    starts = np.add.outer(np.arange(side) * wide.shape[1], np.arange(side)).flatten()
    return _medians(wide, starts, wide.shape[1], weight)


def median_of_maps(values: Float[Tensor, "K *C H W"], weight: Float[Tensor, "K *C H W"]) -> Float[Tensor, "*C H W"]:
    """Return the weighted median of K maps."""
    rows, width = weight[0].numel() // weight.shape[-1], weight.shape[-1]
    starts = np.arange(len(weight)) * rows * width
    return _medians(values, starts, width, weight.reshape(len(weight), rows, width)).view(weight.shape[1:])


def _medians(values: Tensor, starts: NDArray[np.int64], step: int, weight: Float[Tensor, "K H W"]) -> Tensor:
    medians = torch.empty_like(weight[0])
    tensors = (medians.numpy(), values.contiguous().numpy().reshape(-1), starts, step, weight.contiguous().numpy())
    _write_medians(len(medians), *tensors)
    return medians


@_Kernel
def _write_medians(
    first: int, last: int, medians: Array, values: Array, starts: NDArray[np.int64], step: int, weight: Array
) -> None:
    """Write the medians of some rows: the smallest value with at least half of the weight at or below it.

    The K values of the first row begin at `starts`, those of the next one `step` later. They are few: comparing each
    with all takes less time than sorting.
    """
    count, _, width = weight.shape
    # In float64: at equal weights, half of the total is a sum of some.
    total, below = np.empty(width, np.float64), np.empty(width, np.float64)
    for y in range(first, last):
        median = medians[y]
        for x in range(width):
            total[x], median[x] = _ZERO, np.inf
        for other in range(count):
            for x in range(width):
                total[x] += weight[other, y, x]
        for place in range(count):
            value = values[starts[place] + y * step :]
            for x in range(width):
                below[x] = _ZERO
            for other in range(count):
                compared, own = values[starts[other] + y * step :], weight[other, y]
                for x in range(width):
                    below[x] += own[x] if compared[x] <= value[x] else _ZERO
            for x in range(width):
                if (below[x] >= _HALF * total[x]) & (value[x] < median[x]):
                    median[x] = value[x]
