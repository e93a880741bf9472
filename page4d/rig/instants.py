"""Choice of the instants at which a rig is registered: runs of consecutive ones, from the whole capture if needed."""

from dataclasses import replace

import numpy as np
from jaxtyping import Float

from page4d.rig.records import Array
from page4d.scene.records import Scene
from page4d.scene.timeline import build_timeline

MAX_INSTANTS = 100
"""Registration of people gains little beyond 25 to 50 instants of varied poses."""

MAX_RATE_HZ = 30.0
"""Within a run, instants closer than this show nearly the same pose."""

RUN_LENGTH = 20
"""Instants of a run: enough for tracklets, and for several runs of different poses."""

_SLACK = 0.9
"""Rates of real cameras vary: 59.94 Hz is 60 Hz."""


def choose_instants(times: Float[Array, " T"], max_instants: int = MAX_INSTANTS) -> tuple[int, ...]:
    """Return the increasing indices of at most `max_instants` of some increasing times in seconds.

    Every n-th instant, so that consecutive ones are at least about 1 / `MAX_RATE_HZ` apart; of a longer capture, runs
    of `RUN_LENGTH` such instants that are spread evenly from the first to the last.
    """
    if len(times) == 0 or max_instants < 1:
        return ()
    step = 1
    if len(times) > 1:
        interval = float(np.median(np.diff(times)))
        step = max(1, int(np.floor(1 / (MAX_RATE_HZ * interval) / _SLACK))) if interval > 0 else 1
    every = np.arange(0, len(times), step)
    if len(every) <= max_instants:
        return tuple(every.tolist())
    num_runs = max(max_instants // RUN_LENGTH, 1)
    length = max_instants // num_runs
    starts = np.linspace(0, len(every) - length, num_runs).round().astype(int)
    chosen = np.unique(np.concatenate([np.arange(start, start + length) for start in starts]))
    return tuple(every[chosen].tolist())


MIN_SPAN = 100
"""Instants below which the whole capture is used: at 60 Hz the 50 of every second frame, which suffice."""


def with_all_instants(scene: Scene) -> Scene:
    """Return the scene at all instants from its first to its last, whatever its stride and rate.

    Where these are fewer than `MIN_SPAN`, at all instants of the capture. Masks and measured depth, which are paired
    with the instants of the run, are left out if instants are added.
    """
    times = [view.clock.to_common(view.source.frame_times) for view in scene.views]
    timeline = build_timeline(scene.view_names, times)
    period = float(np.median(np.diff(timeline.times))) if len(timeline.times) > 1 else 0.0
    first, last = scene.times[0] - period / 2, scene.times[-1] + period / 2
    kept = np.flatnonzero((timeline.times >= first) & (timeline.times <= last))
    if len(kept) < MIN_SPAN:
        kept = np.arange(len(timeline.times))
    if len(kept) <= scene.num_times:
        return scene
    views = tuple(
        replace(view, indices=tuple(indices[index] for index in kept), mask=None, depth=None)
        for view, indices in zip(scene.views, timeline.indices, strict=True)
    )
    return replace(scene, views=views, times=timeline.times[kept])
