"""Clocks of static calibrated views from anything that moves.

The angle of a point around the baseline of two views, and its velocity, are the same in both views, at any depth.
Moving points are counted by angle and velocity at every instant, and the counts of two views correlated over offsets.

Source: Pundik & Moses, "Video synchronization using temporal signals from epipolar lines", ECCV 2010; Kasten et al.,
"Fundamental matrices from moving objects using line motion barcodes", ECCV 2016. Neither counts by velocity.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import cv2
import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray
from scipy import fft
from scipy.interpolate import CubicSpline
from scipy.ndimage import gaussian_filter1d

from page4d.errors import Progress
from page4d.motion.flow import changed_pixels
from page4d.rig.clocks import (
    Cut,
    Measured,
    PairEvidence,
    WindowClocks,
    check_cuts,
    cut,
    fitted_clocks,
    groups,
    joint_offsets,
    paired_views,
    undetermined,
)
from page4d.rig.epipolar import normalized_points, relative_pose_of, tangents, undistorted_pixels
from page4d.rig.records import Array, Lens, no_progress
from page4d.scene.content import gray_of
from page4d.scene.records import MIN_RATE_SPAN_S, FrameSource

LONG_SIDE = 512
"""Long side of the pictures whose flow is computed: at 256 px a person who walks 4 m away hardly moves in 1/60 s."""

_STRIDE, _MAX_POINTS = 5, 600
"""Distance in px of the points that are followed, and how many of a picture are kept."""

_MIN_FLOW_PX = 0.3

MAX_RATE_HZ = 60.0
"""Faster videos are sampled at about this rate."""

MAX_SPAN_S = 600.0
"""Of longer captures the middle is used: its rate is known to 2 ppm."""

Points = Float[NDArray[np.floating], "K 2"]
Signal = Float[NDArray[np.float32], "T C"]


@dataclass(frozen=True, kw_only=True)
class MovingPoints:
    """K moving points of a view between F pairs of consecutive frames.

    `times` are the middles between the frames since the start of a span, `seconds` their distances. A point moves
    from `starts` to `ends` in the pair `frames`, in normalised coordinates of the undistorted image. `field` covers
    the picture.
    """

    times: Float[Array, " F"]
    seconds: Float[Array, " F"]
    frames: Int[NDArray[np.int64], " K"]
    starts: Points
    ends: Points
    field: Points


def find_moving_points(
    source: FrameSource, lens: Lens, span_s: tuple[float, float], progress: Progress = no_progress
) -> MovingPoints:
    """Follow points of a view by dense optical flow where pictures change, within a span of its own time.

    Raises:
        InputError: if a frame cannot be decoded.
    """
    chosen = np.flatnonzero((source.frame_times >= span_s[0]) & (source.frame_times <= span_s[1]))
    interval = float(np.median(np.diff(source.frame_times[chosen]))) if len(chosen) > 1 else 1.0
    chosen = chosen[:: max(1, round(1 / (MAX_RATE_HZ * interval)))]
    scale = min(LONG_SIDE / max(source.size), 1.0)
    height, width = (max(round(side * scale), 16) for side in source.size)
    y, x = np.mgrid[:height, :width] + 0.5
    pixels = np.stack([x * source.size[1] / width, y * source.size[0] / height], axis=-1).reshape(-1, 2)
    plane = normalized_points(undistorted_pixels(pixels, lens), lens).reshape(height, width, 2).astype(np.float32)
    on_grid = np.zeros((height, width), bool)
    on_grid[_STRIDE // 2 :: _STRIDE, _STRIDE // 2 :: _STRIDE] = True
    search = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_FAST)
    found: list[tuple[Points, Points]] = []
    before, none = None, np.zeros((0, 2), np.float32)
    with source.open((height, width)) as reader:
        for picture in reader.read(chosen.tolist()):
            now = gray_of(picture)
            if before is not None:
                flow = search.calc(before, now, np.zeros((height, width, 2), np.float32))
                moves = on_grid & changed_pixels(before, now) & (np.linalg.norm(flow, axis=-1) > _MIN_FLOW_PX)
                rows, columns = np.nonzero(moves)
                kept = np.linspace(0, len(rows) - 1, min(len(rows), _MAX_POINTS)).astype(int)
                rows, columns = rows[kept], columns[kept]
                if len(rows):
                    at = np.stack([columns, rows], axis=-1).astype(np.float32) + flow[rows, columns]
                    # Ends outside of the picture are NaN.
                    ends = cv2.remap(plane, at[:, :1], at[:, 1:], cv2.INTER_LINEAR, borderValue=(np.nan, np.nan))
                    found.append((plane[rows, columns], np.asarray(ends, np.float32).reshape(-1, 2)))
                else:
                    found.append((none, none))
                progress(len(found), len(chosen) - 1)
            before = now
    times = source.frame_times[chosen] - span_s[0]
    return MovingPoints(
        times=(times[1:] + times[:-1]) / 2,
        seconds=np.diff(times),
        frames=np.repeat(np.arange(len(found)), [len(starts) for starts, _ in found]),
        starts=np.concatenate([none, *(starts for starts, _ in found)]),
        ends=np.concatenate([none, *(ends for _, ends in found)]),
        field=plane[:: 2 * _STRIDE, :: 2 * _STRIDE].reshape(-1, 2),
    )


_BINS, _LEVELS = 48, 4
"""Angles, and magnitudes of velocities of either sign, by which points are counted."""

_QUANTILES = np.linspace(0.3, 0.95, _LEVELS)
"""Quantiles of all velocities of a pair between which a velocity is divided."""

_MIN_SINE = 0.1
"""Sine of the angle between a ray and the baseline below which noise determines the angle around it."""

_HIGH_PASS_S, _FINE_HIGH_PASS_S = 0.5, 0.25
"""Standard deviation of the average of a count over time that is subtracted: where people are is no event. The second
one is for offsets within a frame, which fast motion determines."""

_LOW_PASS = 1.5
"""Standard deviation of the average of a count over time, in instants: narrower peaks attract offsets to integers."""

_PEAK_S = 0.3
"""Time around the best offset that is attributed to its peak."""

_MAX_COARSE = 4000
"""Instants of a signal over which all offsets are searched; the grid of longer ones is coarser."""

_MIN_COMMON, _MIN_SHARE = 25, 1 / 3
"""Common instants, and their share of the shorter view, below which an offset is not determined."""

_COMMON_ERROR = 0.1
"""Standard deviation, in instants, of an error that all windows have: of counts at frame rates that differ."""

MAX_RATIO = 0.6
"""Evidence of another offset, or of a scene that is mirrored or runs backwards, as a share of the best, above which a
clock is not determined."""

_WINDOW_S, _MIN_WINDOWS = 5.0, 4
"""Length of a window whose motion is independent of that of others, and the least number of windows of a pair."""

_ROUNDS = 10

_MAX_HALF_RATIO = 0.9
"""The same share in either half of the capture."""

_WHAT = "motion does not determine the clock of"


def _angles(
    points: Points, rotation: Float[Array, "3 3"], axes: Float[Array, "2 3"]
) -> tuple[Float[Array, " N"], Float[Array, " N"]]:
    """Return the angles of rays around the baseline, which is orthogonal to the axes, and sines of those with it."""
    rays = np.concatenate([points, np.ones((len(points), 1))], axis=-1) @ rotation.T
    across = rays @ axes.T
    return np.arctan2(across[:, 1], across[:, 0]), np.linalg.norm(across, axis=1) / np.linalg.norm(rays, axis=1)


def _wrapped(angles: Array) -> Array:
    return (angles + np.pi) % (2 * np.pi) - np.pi


def _counts(pair: Sequence[MovingPoints], cameras: Sequence[Float[Array, "4 4"]]) -> list[Signal] | None:
    """Count the moving points of two views by angle and velocity, [F, 2 * levels * bins] of each, in [0, 1].

    Columns are sign, level and bin in row-major order. None if the views have no common angles or one place.
    """
    pose = relative_pose_of(*cameras)
    if pose is None:
        return None
    axes, rotations = tangents(pose.direction), (pose.rotation, np.eye(3))
    fields = [_angles(view.field, turn, axes) for view, turn in zip(pair, rotations, strict=True)]
    middle = float(np.angle(sum(np.nansum(np.exp(1j * angles)) for angles, _ in fields)))
    seen = [_wrapped(angles - middle)[sines > _MIN_SINE] for angles, sines in fields]
    if min(len(angles) for angles in seen) == 0:
        return None
    low, high = max(np.nanmin(angles) for angles in seen), min(np.nanmax(angles) for angles in seen)
    found = []
    for view, turn in zip(pair, rotations, strict=True):
        angles, sines = _angles(view.starts, turn, axes)
        velocity = _wrapped(_angles(view.ends, turn, axes)[0] - angles) / view.seconds[view.frames]
        place = (_wrapped(angles - middle) - low) / (high - low) * _BINS - 0.5
        good = (sines > _MIN_SINE) & (place >= -0.5) & (place <= _BINS - 0.5) & (np.abs(velocity) > 0)
        found.append((view.frames[good], place[good], velocity[good]))
    speeds = np.abs(np.concatenate([velocity for _, _, velocity in found]))
    if high <= low or len(speeds) == 0:
        return None
    limits = np.maximum.accumulate(np.quantile(speeds, _QUANTILES) * (1 + 1e-6 * np.arange(_LEVELS)))
    signals = []
    for view, (frames, place, velocity) in zip(pair, found, strict=True):
        fast = np.abs(velocity) > limits[0] / 2
        level = np.interp(np.log(np.abs(velocity[fast])), np.log(limits), np.arange(_LEVELS))
        first, place = (velocity[fast] < 0) * _LEVELS, place[fast]
        counts = np.zeros(len(view.times) * 2 * _LEVELS * _BINS)
        for on_level, share in _neighbours(level, _LEVELS):
            for on_bin, part in _neighbours(place, _BINS):
                cells = (frames[fast] * 2 * _LEVELS + first + on_level) * _BINS + on_bin
                counts += np.bincount(cells, share * part, minlength=len(counts))
        # A few points show motion as well as many.
        signals.append((counts / (counts + 1)).astype(np.float32).reshape(len(view.times), -1))
    return signals


def _neighbours(values: Array, count: int) -> tuple[tuple[Int[NDArray[np.int64], " n"], Array], ...]:
    """Return the two cells next to each value, of `count`, with its linear shares."""
    below = np.floor(values).astype(np.int64)
    share = values - below
    return (np.clip(below, 0, count - 1), 1 - share), (np.clip(below + 1, 0, count - 1), share)


def _on_grid(counts: Signal, times: Float[Array, " F"], step_s: float, high_pass_s: float) -> Signal:
    """Band-pass counts, and interpolate them at step_s / 2, 3 step_s / 2, ... of the view's own time."""
    own = float(np.median(np.diff(times)))
    counts = gaussian_filter1d(counts, _LOW_PASS * step_s / own, axis=0, mode="nearest")
    counts -= gaussian_filter1d(counts, max(high_pass_s, 3 * step_s) / own, axis=0, mode="nearest")
    at = (np.arange(int(times[-1] / step_s + 0.51)) + 0.5) * step_s
    before = np.clip(np.searchsorted(times, at, side="right") - 1, 0, len(times) - 2)
    share = np.clip((at - times[before]) / (times[before + 1] - times[before]), 0, 1).astype(np.float32)[:, None]
    return np.asarray(counts[before] * (1 - share) + counts[before + 1] * share)


def _curves(views: tuple[int, int], signals: Sequence[Signal], max_offset: int) -> list[PairEvidence]:
    """Correlate two signals over all offsets; as controls, with the second one mirrored, and backwards in time."""
    first, second = signals
    cells = second.reshape(len(second), 2, _LEVELS, _BINS)
    mirrored, backwards = (changed.reshape(second.shape) for changed in (cells[:, ::-1, :, ::-1], cells[::-1, ::-1]))
    return [_correlation(views, first, other, max_offset) for other in (second, mirrored, backwards)]


def _halves(views: tuple[int, int], signals: Sequence[Signal], offset: int, max_offset: int) -> list[PairEvidence]:
    """Correlate each half of the part of the first signal that is common at an offset with the second one."""
    first, second = signals
    start, stop = _common(signals, offset)
    middle = (start + stop) // 2
    found = []
    for low, high in ((start, middle), (middle, stop)):
        part = np.zeros_like(first)
        part[low:high] = first[low:high]
        found.append(_correlation(views, part, second, max_offset, (low, high)))
    return found


def _coarser(signal: Signal, factor: int) -> Signal:
    """Average runs of instants."""
    return np.asarray(signal[: len(signal) // factor * factor].reshape(-1, factor, signal.shape[1]).mean(1))


def _common(signals: Sequence[Signal], offset: int) -> tuple[int, int]:
    """Return the range of instants of the first signal that the second one has too, `offset` later."""
    first, second = signals
    return max(0, -offset), max(0, -offset, min(len(first), len(second) - offset))


def _correlation(
    views: tuple[int, int], first: Signal, second: Signal, max_offset: int, part: tuple[int, int] | None = None
) -> PairEvidence:
    """Return the normalised correlation of a part of a signal with another signal, 0 or more, at all offsets.

    A short overlap correlates by chance: it counts less, and nothing below the least number of common instants.
    """
    size = fft.next_fast_len(len(first) + len(second), real=True)
    offsets = np.arange(-max_offset, max_offset + 1) % size

    def correlated(one: NDArray[np.floating], two: NDArray[np.floating]) -> Array:
        product = np.conj(fft.rfft(one, size, axis=0)) * fft.rfft(two, size, axis=0)
        return np.asarray(fft.irfft(product.sum(1), size)[offsets], np.float64)

    low, high = part or (0, len(first))
    rows, ones = np.zeros((len(first), 1)), np.ones((len(second), 1))
    rows[low:high] = 1.0
    own, other = (np.square(one, dtype=np.float64).sum(1, keepdims=True) for one in (first * rows, second))
    common = np.maximum(correlated(rows, ones).round(), 0.0)
    tiny = 1e-9 * (own.sum() + other.sum()) + 1e-9
    energy = np.maximum(correlated(own, ones), tiny) * np.maximum(correlated(rows, other), tiny)
    score = correlated(first, second) / np.sqrt(energy) * np.sqrt(common / common.max())
    least = _MIN_SHARE * min(high - low, len(second))
    return PairEvidence(views=views, values=np.where(common >= least, np.maximum(score, 0.0), 0.0))


def _window_offsets(signals: Sequence[Signal], offset: int, step_s: float) -> tuple[Array, Array, Array]:
    """Return the middles of windows in instants of the first signal, their offsets near one, and weights.

    Offsets are Newton steps from the line of offsets over time at which all windows together correlate best: a window
    by itself may have its peak elsewhere.
    """
    start, stop = _common(signals, offset)
    count = max(_MIN_WINDOWS, int((stop - start) * step_s / _WINDOW_S))
    limits = np.linspace(0, stop - start, count + 1).astype(int)
    middles = (limits[1:] + limits[:-1]) / 2
    reach = max(3, round(_PEAK_S / step_s))
    first, around = signals[0][start:stop], np.pad(signals[1], ((reach, reach), (0, 0)))[start + offset :]
    products = (np.einsum("tc,tc->t", first, around[move : move + len(first)]) for move in range(2 * reach + 1))
    scores = np.stack([np.add.reduceat(one, limits[:-1]) for one in products])
    share = middles / len(first) if len(first) * step_s > MIN_RATE_SPAN_S else np.full(count, 0.5)
    design = np.stack([1 - share, share], axis=1)
    moves = np.arange(-reach, reach + 1)
    lines = np.stack(np.meshgrid(moves, moves), axis=-1).reshape(-1, 2) @ design.T
    at = lines[np.argmax(scores[np.rint(lines).astype(int) + reach, np.arange(count)].sum(1))]
    slope, bend = (CubicSpline(moves, scores).derivative(order) for order in (1, 2))
    heights = np.abs(scores).max(0) + 1e-9
    for _ in range(_ROUNDS):
        pull, bent = (np.diagonal(curve(at)) for curve in (slope, bend))
        weights = heights * max(-bent.sum() / heights.sum(), 1e-9)
        change = np.linalg.lstsq(design.T @ (design * weights[:, None]), design.T @ pull, rcond=None)[0]
        at = np.clip(at + design @ change, -reach, reach)
    return start + middles, offset + at + pull / weights, weights


def estimate_motion_clocks(
    names: Sequence[str],
    points: Sequence[MovingPoints],
    cameras: Sequence[Float[Array, "4 4"]],
    progress: Progress = no_progress,
) -> WindowClocks:
    """Determine the clocks of static views from their moving points and poses (`world_to_camera`).

    Raises:
        InputError: naming views whose points fit those of the others at no offset, at several ones, or at different
            ones in both halves of the capture.
    """
    number = len(names)
    if still := [name for name, view in zip(names, points, strict=True) if len(view.frames) == 0]:
        raise undetermined(_WHAT, still, "nothing moves")
    if short := [name for name, view in zip(names, points, strict=True) if len(view.times) < _MIN_COMMON]:
        raise undetermined(_WHAT, short, f"fewer than {_MIN_COMMON + 1} frames")
    step_s = max(1 / MAX_RATE_HZ, *(float(np.median(view.seconds)) for view in points))
    longest = round(max(view.times[-1] for view in points) / step_s) + 1
    factor = -(-longest // _MAX_COARSE)
    max_offset, width = longest // factor, max(2, round(_PEAK_S / (step_s * factor)))
    pairs = paired_views(number)

    def signals_of(pair: tuple[int, int], high_pass_s: float) -> list[Signal] | None:
        views = [points[view] for view in pair]
        counts = _counts(views, [cameras[view] for view in pair])
        return counts and [
            _on_grid(one, view.times, step_s, high_pass_s) for one, view in zip(counts, views, strict=True)
        ]

    def reason(worst: Cut) -> str:
        if worst.placed <= 0:
            return "no common motion"
        return f"{worst.ratio:.0%} of the evidence {worst.by * step_s * factor:+.2f} s from the best offset"

    curves = []
    for done, pair in enumerate(pairs, start=1):
        if signals := signals_of(pair, _HIGH_PASS_S):
            curves.append(_curves(pair, [_coarser(one, factor) for one in signals], max_offset))
        progress(done, 2 * len(pairs))
    whole, *controls = ([of_pair[kind] for of_pair in curves] for kind in range(3))
    ahead = joint_offsets(number, whole)
    placed = [cut(whole, ahead, group, width) for group in groups(number)]
    check_cuts(_WHAT, names, placed, MAX_RATIO, reason)
    for control in controls:
        chance = [replace(one, other=cut(control, ahead, one.group, -1).other) for one in placed]
        check_cuts(_WHAT, names, chance, MAX_RATIO, lambda worst: f"{worst.ratio:.0%} of the evidence is chance")

    found = []
    halves: tuple[list[PairEvidence], ...] = ([], [])
    for done, pair in enumerate(pairs, start=1):
        offset = int(ahead[pair[1]] - ahead[pair[0]])
        signals = signals_of(pair, _FINE_HIGH_PASS_S)
        start, stop = _common(signals, offset * factor) if signals else (0, 0)
        if signals and stop - start >= _MIN_COMMON:
            coarse = [_coarser(one, factor) for one in signals]
            for half, evidence in zip(halves, _halves(pair, coarse, offset, max_offset), strict=True):
                half.append(evidence)
            middles, offsets, weights = _window_offsets(signals, offset * factor, step_s)
            times = (middles - ahead[pair[0]] * factor) * step_s
            are_late = middles > (start + stop) / 2
            found.append((np.tile(pair, (len(times), 1)), times, offsets * step_s, weights, are_late))
        progress(len(pairs) + done, 2 * len(pairs))
    for half in halves:
        cuts = [cut(half, ahead, group, width) for group in groups(number)]
        check_cuts(f"in half of the capture {_WHAT}", names, cuts, _MAX_HALF_RATIO, reason)
    measured = Measured(*map(np.concatenate, zip(*found, strict=True)))
    return fitted_clocks(_WHAT, names, measured, step_s, np.full(number, _COMMON_ERROR))
