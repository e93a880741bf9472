"""Layers of a run: what does not move, once for all instants, apart from the moving points of every instant."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from page4d.formats.maps import DYNAMIC_THRESHOLD
from page4d.inference.static_rig import StaticRig
from page4d.inference.stitch import has_depth
from page4d.output.instant import InstantFiles, InstantOptions, write_static
from page4d.output.layout import OutputLayout
from page4d.output.record import LayersRecord
from page4d.records import Predictions
from page4d.scene.records import Notice, Scene


def static_views(scene: Scene, rig: StaticRig | None, *, is_calibrated: bool) -> tuple[int, ...]:
    """Return the indices of the views whose camera does not move.

    `rig` are the static cameras of a run whose cameras are predicted; `is_calibrated` is whether all cameras of the
    result are those of the scene.
    """
    if not is_calibrated:
        return () if rig is None else rig.views
    cameras = (view.camera for view in scene.views)
    return tuple(
        index for index, camera in enumerate(cameras) if camera is not None and camera.world_to_camera.ndim == 2
    )


def no_layers_notice(first: Predictions, views: Sequence[int], num_times: int) -> Notice | None:
    """Return why a run has no layers; None if it has. `first` are its first instants, `views` its static views."""
    if first.dynamic is None:
        alone = num_times == 1
        reason = "one instant has no motion" if alone else "there are no motion masks, as the network predicts none"
        return Notice(f"--layers: {reason}; only merged clouds are written")
    if not views:
        return Notice(
            "--layers: no camera stands still, so that no background is known; only merged clouds are written"
        )
    return None


def first_background(first: Predictions, views: Sequence[int]) -> Predictions:
    """Return the background [1, 1, V, H, W] that static views show at some instants [1, T, V, H, W].

    Every pixel is that of the instant with the median depth, by confidence, among those at which it does not move.
    Other views, and pixels that always move, are not valid.
    """
    static = has_depth(first)
    if first.dynamic is not None:
        static = static & (first.dynamic <= DYNAMIC_THRESHOLD)
    standing = torch.zeros(static.shape[2], dtype=torch.bool, device=static.device)
    standing[list(views)] = True
    static = static & standing[:, None, None]
    depth = torch.where(static, first.depth, torch.inf)
    ordered, order = depth.sort(dim=1)
    weights = torch.where(static, first.depth_confidence.double().clamp_min(1e-6), 0.0).gather(1, order).cumsum(1)
    middle = (weights < weights[:, -1:] / 2).sum(1, keepdim=True).clamp_max(len(first.times) - 1)
    instant = order.gather(1, middle)
    known = static.any(1, keepdim=True)
    colors = instant[:, :, :, None].expand(-1, -1, -1, 3, -1, -1)
    return replace(
        first.at_times(0, 1),
        images=first.images.gather(1, colors),
        valid=known,
        depth=torch.where(known, ordered.gather(1, middle), 0.0),
        depth_confidence=first.depth_confidence.gather(1, instant),
        points=None,
        points_confidence=None,
        dynamic=None,
    )


def write_static_layer(
    layout: OutputLayout, background: Predictions, options: InstantOptions
) -> tuple[LayersRecord, InstantFiles]:
    """Write what does not move, and return its record for `run.json` and its files.

    The background [1, 1, V, H, W] is valid where it is known. The points do not count as those of an instant.

    Raises:
        OutputError: if a file cannot be written.
    """
    written = write_static(layout, background, options)
    return LayersRecord(static_points=written.num_points), InstantFiles(written.files)
