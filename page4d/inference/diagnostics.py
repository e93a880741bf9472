"""Notices on a run's diagnostics: seams between chunks, camera motion, metric scale, and the calibration."""

from collections.abc import Sequence
from itertools import zip_longest
from types import ModuleType

from page4d.conventions import Scale, ScaleSource
from page4d.errors import InputError, counted
from page4d.inference.metric_scale import TOLERANCE
from page4d.inference.stitch import has_depth
from page4d.inference.world import World
from page4d.options import PointOptions
from page4d.output.record import (
    AgreementRecord,
    CalibrationCheckRecord,
    ChunkRecord,
    DistanceRecord,
    RigRecord,
    SeamRecord,
    ViewMotionRecord,
)
from page4d.records import Predictions
from page4d.scene.records import Level, Notice, Scene

MAX_SHIFT = 0.01
"""Largest acceptable displacement of the scene at a seam, as a share of the image's long side: 5 px of 518."""

MAX_SHARE = 0.05
"""Largest acceptable residual at a seam, as a share of the depth."""

MAX_METRE_ERROR = 0.1
"""Largest acceptable relative difference between the metres that a network estimates in two chunks."""


def seam_fits(seam: SeamRecord, long_side: int) -> bool:
    """Return whether neither residual of a seam exceeds its limit, in images of `long_side` pixels."""
    return (seam.residual_px or 0.0) <= MAX_SHIFT * long_side and (seam.residual_share or 0.0) <= MAX_SHARE


def check_seams(chunks: Sequence[ChunkRecord], long_side: int) -> None:
    """Refuse chunks that do not fit their predecessor, at images of `long_side` pixels.

    Raises:
        InputError: naming the first such seam.
    """
    misfits = _misfits(chunks, long_side)
    if misfits:
        start, seam = misfits[0]
        raise InputError(
            f"chunks do not fit together at instant {start}: {_describe_seam(seam)}",
            "give a larger --chunk and --overlap, or the rig's cameras with --calibration; "
            "--resume without --strict-seams continues with a warning",
        )


def seams_notice(chunks: Sequence[ChunkRecord], long_side: int) -> Notice | None:
    """Warn of chunks that do not fit their predecessor."""
    misfits = _misfits(chunks, long_side)
    if not misfits:
        return None
    start, seam = max(misfits, key=lambda misfit: misfit[1].residual_share or 0.0)
    count = f"seams between chunks do not fit ({len(misfits)} of {len(chunks) - 1})"
    return Notice(f"{count}; the worst, at instant {start}: {_describe_seam(seam)}")


def _misfits(chunks: Sequence[ChunkRecord], long_side: int) -> list[tuple[int, SeamRecord]]:
    seams = [(chunk.start, chunk.seam) for chunk in chunks if chunk.seam is not None]
    return [(start, seam) for start, seam in seams if not seam_fits(seam, long_side)]


def _describe_seam(seam: SeamRecord) -> str:
    shift = "" if seam.residual_px is None else f", {seam.residual_px:.1f} px"
    return f"residual {seam.residual_share or 0.0:.1%} of the depth{shift}"


def rig_notice(rig: RigRecord) -> Notice:
    """Report which cameras are static; a `--cameras` that contradicts the measurement is a warning."""
    moving = [view for view in rig.views if not view.still]
    if rig.asked == "static" and moving:
        worst = max(moving, key=lambda view: (view.evidence == "pixels", view.displacement_px or 0.0, view.motion_px))
        return Notice(f"--cameras static, but {_motion_of(worst, rig)}; try --cameras auto or moving")
    still = [view for view in rig.views if view.still and view.evidence == "pixels"]
    if rig.asked == "moving" and still:
        names = ", ".join(view.view for view in still)
        verb, share = ("does" if len(still) == 1 else "do"), min(view.still_share or 0.0 for view in still)
        text = f"{names} {verb} not move (at least {share:.0%} of the corners stay)"
        return Notice(f"--cameras moving, but {text}; try --cameras auto, which gives static views one camera")
    worst = max(rig.views, key=lambda view: (not view.still, view.motion_px))
    verdict = {"static": "static, one camera per view", "moving": "moving"}.get(rig.cameras)
    if verdict is None:
        verdict = f"static except {', '.join(view.view for view in rig.views if not view.is_static)}"
    return Notice(f"cameras: {verdict} ({_motion_of(worst, rig)})", Level.INFO)


def _motion_of(view: ViewMotionRecord, rig: RigRecord) -> str:
    """Describe the measured motion of a view."""
    if view.evidence == "pixels":
        shift = "" if view.displacement_px is None else f", median displacement {view.displacement_px:.2g} px of 256"
        extra = f"; {view.reason}" if view.reason else ""
        verb = "does not move" if view.still else "moves"
        return f"{view.view} {verb}: {view.still_share or 0.0:.0%} of the corners stay{shift}{extra}"
    unclear = f"; its frames do not determine it: {view.reason}" if view.reason else ""
    motion = f"predicted: {view.view} moves by {view.motion_px:.2g} px (jitter {view.jitter_px:.2g} px)"
    limit = f"limit: {rig.limit_px:.2g} px or the jitter"
    return f"{motion} over the first {counted(rig.num_times, 'instant')}; {limit}{unclear}"


def rig_fit_notice(chunks: Sequence[ChunkRecord], view_names: Sequence[str], long_side: int) -> Notice | None:
    """Warn of chunks whose predicted cameras are far from the static ones."""
    fits = [
        (motion, view, chunk.start)
        for chunk in chunks
        if chunk.rig is not None
        for motion, view in zip(chunk.rig.motion_px, view_names, strict=True)
    ]
    misfits = {start for motion, _, start in fits if motion > MAX_SHIFT * long_side}
    if not misfits:
        return None
    motion, view, start = max(fits)
    count = f"chunks do not fit static cameras ({len(misfits)} of {len(chunks)})"
    return Notice(f"{count}; the worst, from instant {start}: {view} is off by {motion:.1f} px; try --cameras moving")


def scale_notice(world: World) -> Notice | None:
    """Report a unit of length that is not that of a calibration or of a known distance."""
    if world.scale_source is ScaleSource.NETWORK:
        return Notice("lengths are in metres as the network estimates them; verify a known length", Level.INFO)
    if world.lacks_baseline:
        text = "the calibrated cameras coincide, there is no baseline: the scale of the result is arbitrary"
        return Notice(text)
    if world.scale is Scale.ARBITRARY:
        return Notice("lengths are in an arbitrary unit (no metric calibration)", Level.INFO)
    return None


def metres_notice(chunks: Sequence[ChunkRecord], source: ScaleSource | None) -> Notice | None:
    """Warn of chunks whose metres, as estimated by the network, differ from those of the first chunk."""
    factors = [chunk.transform.scale for chunk in chunks if chunk.transform is not None]
    ratio = max((max(factor, 1 / factor) for factor in factors), default=1.0)
    if source is not ScaleSource.NETWORK or ratio <= 1 + MAX_METRE_ERROR:
        return None
    return Notice(
        f"the metres estimated by the network differ by up to a factor of {ratio:.3g} between chunks; those of the "
        "first chunk are kept"
    )


def distance_notice(distance: DistanceRecord) -> Notice:
    """Report the known distance that fixes the scale; a distance that varies over time is a warning."""
    pair, count = " and ".join(distance.views), f"the first {counted(distance.num_times, 'instant')}"
    if distance.variation > TOLERANCE:
        text = f"the distance between {pair} varies by {distance.variation:.1%} over {count}; its median is used"
        return Notice(f"{text}. Is the rig rigid?")
    return Notice(f"metric scale from the median distance between {pair} over {count}", Level.INFO)


def calibration_notice(
    scene: Scene,
    agreement: AgreementRecord,
    check: CalibrationCheckRecord | None = None,
    *,
    is_conditioned: bool = False,
) -> Notice | None:
    """Warn of a camera that the network predicts far from its calibration, the others near theirs.

    Evidence from people comes first: if it names cameras, or supports the calibration of this one, nothing is added.
    A network that is conditioned on the calibration is a weak witness.
    """
    for camera in agreement.cameras:
        if camera.view == agreement.at_fault:
            share = "" if camera.share is None else f" ({camera.share:.0%} of the rig)"
            unit = " m" if scene.scale.unit == "metre" else ""
            residual = f"{camera.rotation_deg:.1f} deg and {camera.distance:.3g}{unit}{share}"
            if check is not None and (check.findings or check.fits(camera.view)):
                return None
            given = ", which the calibration is an input of," if is_conditioned else ""
            text = f"the network{given} predicts {camera.view} elsewhere than the calibration, by {residual}"
            others = "and the other cameras near theirs: either may be wrong; 'page4d inspect-scene --check' compares"
            return Notice(f"{scene.calibration}: {text}, {others} the calibration with people")
    return None


def open3d_notice(module: ModuleType | None, reason: str, hint: str) -> Notice | None:
    """Warn that clouds and trajectories were written without Open3D, and name the fix."""
    if module is not None:
        return None
    return Notice(f"{reason}: page4d wrote clouds and trajectories itself, with the same content ({hint})")


def count_empty_frames(predictions: Predictions) -> list[int]:
    """Return the number of frames of every view without a pixel with depth: masks or a depth sensor left none."""
    empty = ~has_depth(predictions).any(dim=-1).any(dim=-1)
    return [int(count) for count in empty.sum(dim=(0, 1))]


def empty_frames_notice(chunks: Sequence[ChunkRecord], view_names: Sequence[str], num_times: int) -> Notice | None:
    """Warn of views with frames that contribute no point."""
    counts = [sum(numbers) for numbers in zip_longest(*(chunk.empty_frames for chunk in chunks), fillvalue=0)]
    frames = counted(num_times, "frame")
    empty = [f"{count} of {frames} of {name}" for name, count in zip(view_names, counts, strict=False) if count]
    return Notice(f"no pixel has depth in {', '.join(empty)}") if empty else None


def no_points_notice(num_points: int, points: PointOptions) -> Notice | None:
    """Warn of clouds without any point."""
    if num_points:
        return None
    filters = f"--min-confidence {points.min_confidence:g} and --edge-angle {points.edge_angle_deg:g}"
    return Notice(f"all point clouds are empty: no pixel has depth and passes {filters}")
