"""What a run says of cameras that stand still or move."""

from page4d.export.run_record import ChunkRecord, DistanceRecord, RigRecord, ViewMotionRecord
from page4d.inference.metric_scale import AGREES, MeasuredDistance
from page4d.inference.motion import STILL_SHARE, CameraMotion
from page4d.inference.run_state import RigState
from page4d.inference.seams import LARGEST_SHIFT
from page4d.inference.static_rig import RigKeeper
from page4d.scene.records import Level, Notice


def rig_state(
    keeper: RigKeeper, asked: CameraMotion, view_names: tuple[str, ...], image_size: tuple[int, int]
) -> RigState | None:
    """Record what the first chunk decided; None if nothing was to be decided. `image_size` is the network's."""
    seen = keeper.stillness
    if seen is None:
        return None
    views = zip(view_names, seen.shift.jitter.tolist(), seen.shift.motion.tolist(), seen.still, strict=True)
    record = RigRecord(
        asked=asked.value,
        cameras="static" if seen.is_static else "moving",
        num_times=seen.num_times,
        limit_px=STILL_SHARE * max(image_size),
        views=[
            ViewMotionRecord(view=name, jitter_px=jitter, motion_px=motion, still=still)
            for name, jitter, motion, still in views
        ],
    )
    if keeper.rig is None:
        return RigState(record=record, image_size=image_size)
    cameras = keeper.rig.cameras
    return RigState(
        record=record,
        image_size=image_size,
        world_to_camera=cameras.world_to_camera.tolist(),
        intrinsics=cameras.intrinsics.tolist(),
    )


def describe_rig(rig: RigRecord) -> str:
    """Say in a line what was decided, and by which numbers."""
    worst = max(rig.views, key=lambda view: (not view.still, view.motion_px))
    moved = f"{worst.view} moves by {worst.motion_px:.2g} px and jitters by {worst.jitter_px:.2g} px"
    limit = f"over the first {rig.num_times} instants; up to {rig.limit_px:.2g} px or its jitter is none"
    verdict = "stand still: one a view for the whole capture" if rig.cameras == "static" else "move"
    return f"cameras {verdict} (at most, {moved} {limit})"


def rig_notice(rig: RigRecord) -> Notice:
    """Say what was decided; that cameras move which were said not to is a warning."""
    moving = [view for view in rig.views if not view.still]
    if rig.asked != "static" or not moving:
        return Notice(describe_rig(rig), Level.INFO)
    worst = max(moving, key=lambda view: view.motion_px)
    found = f"--cameras static, but {worst.view} moves by {worst.motion_px:.2g} px (jitter {worst.jitter_px:.2g} px)"
    return Notice(f"{found} over the first {rig.num_times} instants; try --cameras auto or moving")


def distance_record(measured: MeasuredDistance) -> DistanceRecord:
    """Record the distance that made lengths metres."""
    return DistanceRecord(
        views=(measured.known.first, measured.known.second),
        metres=measured.known.metres,
        predicted=measured.predicted,
        variation=measured.variation,
        num_times=measured.num_times,
    )


def distance_notice(distance: DistanceRecord) -> Notice:
    """Say where the metres come from; that a distance varies which should not is a warning."""
    pair, count = " and ".join(distance.views), f"the first {distance.num_times} instants"
    if distance.variation > AGREES:
        text = (
            f"the distance of {pair} varies by {distance.variation:.1%} over {count}: is it rigid? Its median counts"
        )
        return Notice(text)
    return Notice(f"lengths are metres by the median distance of {pair} over {count}", Level.INFO)


def fit_notice(chunks: list[ChunkRecord], view_names: tuple[str, ...], long_side: int) -> Notice | None:
    """Warn if the cameras of some chunk are far from those that all instants have."""
    fits = [
        (motion, view, chunk.start)
        for chunk in chunks
        if chunk.rig is not None
        for motion, view in zip(chunk.rig.motion_px, view_names, strict=True)
    ]
    loose = {start for motion, _, start in fits if motion > LARGEST_SHIFT * long_side}
    if not loose:
        return None
    motion, view, start = max(fits)
    count = f"{len(loose)} of {len(chunks)} chunks do not fit cameras that stand still"
    return Notice(f"{count}; the worst, from instant {start}: {view} is off by {motion:.1f} px; try --cameras moving")
