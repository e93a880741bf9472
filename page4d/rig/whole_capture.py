"""The instants between those of a run: cameras of a static rig are determined from more instants than a run has."""

from dataclasses import replace

import numpy as np

from page4d.scene.records import Scene
from page4d.scene.timeline import build_timeline

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
