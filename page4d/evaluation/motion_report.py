"""Scene flow of a capture: predicted velocities against true ones, with "nothing moves" on the same pixels."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray

from page4d.evaluation.comparison import ComparedView, Comparison, Step, no_step
from page4d.evaluation.record import FlowResult, MotionReport
from page4d.evaluation.scene_flow import MOVING_LIMIT, PixelMotion, score_flow, score_sigma
from page4d.geometry.transforms import Sim3

MAX_MOTION_PIXELS = 4_000_000
"""Maximum number of pixels per kind of motion that errors are computed from; larger captures use a random subset."""

MOVING, SLOW, STATIC = "moving", "slow", "static"
KINDS = (MOVING, SLOW, STATIC)
"""Pixels with a true displacement above `MOVING_LIMIT`, with a smaller one, and of exactly 0."""

SAMPLING = "nearest pixel of the output's maps at the truth's pixels"


@dataclass(frozen=True, kw_only=True)
class _Pixels:
    """Pixels of one kind: a sample, and by view the numbers of all, of those with a prediction, of those still."""

    sample: PixelMotion
    counts: Float[np.ndarray, "V 3"]


def report_motion(
    comparison: Comparison, transform: Sim3, seed: int = 0, step: Step = no_step
) -> MotionReport | None:
    """Compare the velocities of all frames that have true ones; None without such frames.

    `transform` maps the predicted to the true world.
    """
    if not has_velocities(comparison):
        return None
    interval = 1 / comparison.fps
    frames = [(index, view) for index in comparison.instants for view in velocity_views(comparison, index)]
    random = np.random.default_rng(seed)
    parts: dict[str, list[_Pixels]] = {kind: [] for kind in KINDS}
    for index in comparison.instants:
        for view in velocity_views(comparison, index):
            for kind, pixels in _frame_pixels(
                comparison, index, view, transform, MAX_MOTION_PIXELS // len(frames), random
            ):
                parts[kind].append(pixels)
        step()
    pooled = {kind: _joined(own) for kind, own in parts.items()}
    return MotionReport(
        sampling=SAMPLING,
        interval=interval,
        output_interval=_interval(comparison),
        moving_limit=MOVING_LIMIT,
        frames=len(frames),
        sampled_pixels=sum(len(own.sample) for own in pooled.values()),
        known_pixels=int(sum(own.counts[:, 1].sum() for own in pooled.values())),
        moving=_result(pooled[MOVING], interval),
        moving_certain=_result(_certain(pooled[MOVING]), interval),
        slow=_result(pooled[SLOW], interval),
        static=_result(pooled[STATIC], interval),
        moving_per_view={
            view.name: _result(_of_view(pooled[MOVING], view.index), interval) for view in comparison.views
        },
    )


def has_velocities(comparison: Comparison) -> bool:
    """Return True if the output has velocities, and the truth those of a common frame."""
    return comparison.output.has_velocity and any(velocity_views(comparison, index) for index in comparison.instants)


def velocity_views(comparison: Comparison, time_index: int) -> tuple[ComparedView, ...]:
    """Return the views that have true velocities at an instant."""
    return tuple(view for view in comparison.views if view.frames[time_index] in view.truth.motion_files)


def _frame_pixels(
    comparison: Comparison,
    index: int,
    view: ComparedView,
    transform: Sim3,
    limit: int,
    random: np.random.Generator,
) -> list[tuple[str, _Pixels]]:
    """Return the pixels of a frame by kind of motion, at most `limit` of each in the sample."""
    number = view.frames[index]
    assert number is not None
    true, has_truth = view.truth.velocity(number)
    if comparison.max_depth is not None and number in view.truth.depth_files:
        has_truth &= view.truth.depth(number) < comparison.max_depth
    velocity, sigma = (
        _at_pixels_of(values, view.truth.image_size) for values in comparison.output.velocity(index, view.name)
    )
    way = np.linalg.norm(true, axis=-1) / comparison.fps
    kinds = {MOVING: way > MOVING_LIMIT, SLOW: (way > 0) & (way <= MOVING_LIMIT), STATIC: way == 0}
    found = []
    for kind, of_kind in kinds.items():
        counted = has_truth & of_kind
        known = counted & (sigma > 0)
        counts = np.zeros((len(comparison.output.view_names), 3))
        counts[view.index] = counted.sum(), known.sum(), (known & (velocity == 0).all(-1)).sum()
        chosen = _subset(known, limit, random)
        vectors = transform.apply_to_vectors(torch.from_numpy(velocity[chosen]).double())
        sample = PixelMotion(
            predicted=vectors.numpy().astype(np.float32),
            true=true[chosen],
            sigma=(sigma[chosen] * float(transform.scale)).astype(np.float32),
            view=np.full(len(vectors), view.index, dtype=np.float32),
        )
        found.append((kind, _Pixels(sample=sample, counts=counts)))
    return found


def _at_pixels_of(values: NDArray[np.float32], size: tuple[int, int]) -> NDArray[np.float32]:
    """Return a map [H, W, ...] at the pixels of `size`, by the nearest pixel."""
    rows, columns = (
        ((np.arange(new) + 0.5) * old / new).astype(int) for new, old in zip(size, values.shape[:2], strict=True)
    )
    sampled: NDArray[np.float32] = values[rows[:, None], columns]
    return sampled


def _subset(chosen: Bool[np.ndarray, "H W"], limit: int, random: np.random.Generator) -> tuple[NDArray[np.intp], ...]:
    """Return rows and columns of the selected pixels, or of a random subset of `limit`."""
    index = np.flatnonzero(chosen)
    if len(index) > limit:
        index = np.sort(random.choice(index, size=limit, replace=False))
    return np.unravel_index(index, chosen.shape)


def _joined(parts: Sequence[_Pixels]) -> _Pixels:
    samples = [part.sample for part in parts]
    joined = {name: np.concatenate([vars(sample)[name] for sample in samples]) for name in vars(samples[0])}
    return _Pixels(sample=PixelMotion(**joined), counts=np.sum([part.counts for part in parts], axis=0))


def _of_view(pixels: _Pixels, view: int) -> _Pixels:
    return _Pixels(sample=pixels.sample[pixels.sample.view == view], counts=pixels.counts[view : view + 1])


def _certain(pixels: _Pixels) -> _Pixels:
    """Return the pixels whose predicted speed is 0 or above its standard deviation, their number from the sample."""
    speed = np.linalg.norm(pixels.sample.predicted, axis=-1)
    chosen = (speed == 0) | (speed > pixels.sample.sigma)
    counts = pixels.counts.copy()
    counts[:, 1] *= chosen.mean() if len(chosen) else 0.0
    return _Pixels(sample=pixels.sample[chosen], counts=counts)


def _result(pixels: _Pixels, interval: float) -> FlowResult:
    motion, (counted, known, still) = pixels.sample, pixels.counts.sum(0).tolist()
    predicted, true = motion.predicted.astype(np.float64), motion.true.astype(np.float64)
    return FlowResult(
        pixels=int(counted),
        known_pixels=int(known),
        cover=known / counted if counted else None,
        still=still / known if known else None,
        mean_speed=float(np.linalg.norm(predicted, axis=-1).mean()) if len(motion) else None,
        true_displacement=float(np.linalg.norm(true, axis=-1).mean()) * interval if len(motion) else None,
        errors=score_flow(predicted, true, interval),
        nothing_moves=score_flow(np.zeros_like(true), true, interval),
        sigma=score_sigma(motion, interval),
    )


def _interval(comparison: Comparison) -> float | None:
    """Return the median time between instants of the output."""
    times = comparison.output.run.times
    return float(np.median(np.diff(times))) if len(times) > 1 else None
