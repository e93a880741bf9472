"""The velocities of a run in `run.json` and in the notices at its end."""

from collections.abc import Sequence

import numpy as np

from page4d.errors import counted
from page4d.inference.state_records import FinishedChunk
from page4d.motion.flow import SIGMA_FACTOR, STILL_LIMIT_PX
from page4d.options import ReconstructSettings
from page4d.output.record import MotionRecord
from page4d.scene.records import Notice

METHOD = (
    "optical flow (DIS) of every view, triangulated along the rays of two or more views; central differences; "
    "0 where the views show no motion; sigma at least the speed where one view alone shows it"
)

MAX_ONE_VIEW = 0.6
"""Share of moving pixels that one view alone measured above which a run warns."""


def motion_record(
    settings: ReconstructSettings, depth_scale: float | None, finished: Sequence[FinishedChunk], tracks: int | None
) -> MotionRecord | None:
    """Return the record of the velocities of a run; None without them."""
    if not settings.motion:
        return None
    instants = [instant for chunk in finished for instant in chunk.motion]
    noise = [instant.noise for instant in instants if instant.noise]
    pixels = max(sum(instant.pixels for instant in instants), 1)
    return MotionRecord(
        method=METHOD,
        motion_step=1 / (depth_scale or 1.0),
        still_limit_px=STILL_LIMIT_PX,
        sigma_factor=SIGMA_FACTOR,
        noise=np.median(noise, axis=0).round(4).tolist() if noise else [],
        differences=[instant.difference for instant in instants],
        known=round(sum(instant.known for instant in instants) / pixels, 6),
        still=round(sum(instant.still for instant in instants) / pixels, 6),
        one_view=round(sum(instant.one_view for instant in instants) / pixels, 6),
        clipped=sum(chunk.clipped_velocities for chunk in finished),
        tracks=tracks,
    )


def motion_notices(
    settings: ReconstructSettings, finished: Sequence[FinishedChunk], *, is_demonstration: bool
) -> tuple[Notice, ...]:
    """Report motion that single views measured, instants without velocities, clipped ones, and depth not to trust.

    `is_demonstration` is whether depth is that of the bundled network.
    """
    if not settings.motion:
        return ()
    instants = [instant for chunk in finished for instant in chunk.motion]
    moving = sum(instant.known - instant.still for instant in instants)
    alone = sum(instant.one_view for instant in instants)
    unknown = sum(instant.difference == "unknown" for instant in instants)
    clipped = sum(chunk.clipped_velocities for chunk in finished)
    notices = []
    if moving and alone > MAX_ONE_VIEW * moving:
        notices.append(
            f"--motion: {alone / moving:.0%} of the moving pixels were measured by one view alone: motion along its "
            "rays is unknown there (motion_sigma is at least the speed); views overlap little, or depth is wrong"
        )
    if unknown:
        notices.append(f"--motion: {counted(unknown, 'instant')} without velocities: both neighbours are too far")
    if clipped:
        notices.append(f"--motion: {clipped} velocities beyond the 16 bits of their maps were clipped")
    if is_demonstration:
        notices.append("--motion: an error of depth is one of motion, and depth is that of the demonstration network")
    return tuple(Notice(text) for text in notices)
