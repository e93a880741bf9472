"""The summary of a run: the content of `run.json`, the notices at its end, and previews of the output.

Notices concern seams between chunks, static cameras, metres of a network, and the calibration.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from page4d.conventions import Scale, ScaleSource
from page4d.errors import InputError, Notice, counted
from page4d.formats.maps import write_png
from page4d.geometry.time_axis import spread_places
from page4d.installation import load_open3d
from page4d.io.atomic import WrittenFile, write_bytes_atomic
from page4d.io.json_records import FileModel
from page4d.options import CALIBRATED, OPENING, PointOptions, as_words, describe_settings
from page4d.output.layout import OutputLayout
from page4d.output.preview.cloud import cloud_views, orbit_video
from page4d.output.preview.contact_sheet import MAX_INSTANTS, contact_sheet, read_frames
from page4d.output.reader import Output
from page4d.output.record import (
    AgreementRecord,
    ChunkRecord,
    CountsRecord,
    FaultRecord,
    RunRecord,
    SceneRecord,
    SeamRecord,
    view_record,
)
from page4d.output.rig_record import CalibrationCheckRecord
from page4d.output.upward import upward_of
from page4d.records import Predictions
from page4d.run.plan import RunPlan
from page4d.run.predictor import PRECISION_NAMES, is_conditioned
from page4d.run.rig_residuals import summarize_residuals
from page4d.run.stages.motion import motion_notices
from page4d.run.state_records import FinishedChunk, RunState
from page4d.scene.batches import open_batches
from page4d.scene.content import FAULTS
from page4d.scene.records import Scene
from page4d.weights.loading import BUNDLED_NAME

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
            "give a larger ⟨chunk⟩ and ⟨overlap⟩, or the rig's cameras with ⟨calibration⟩; "
            "⟨existing=resume⟩ without ⟨strict_seams⟩ continues with a warning",
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


def rig_fit_notice(record: RunRecord, long_side: int) -> Notice | None:
    """Warn of chunks whose predicted cameras are far from the static ones."""
    names = [view.name for view in record.views]
    fits = [
        (motion, view, chunk.start)
        for chunk in record.chunks
        if chunk.rig is not None
        for motion, view in zip(chunk.rig.motion_px, names, strict=True)
    ]
    misfits = {start for motion, _, start in fits if motion > MAX_SHIFT * long_side}
    if not misfits:
        return None
    motion, view, start = max(fits)
    decisions = [] if record.rig is None else record.rig.views
    stands = any(one.view == view and one.still and one.evidence == "pixels" for one in decisions)
    advice = "its pixels stand still: the network is wrong" if stands else "try ⟨camera_motion=moving⟩"
    count = f"chunks do not fit static cameras ({len(misfits)} of {len(record.chunks)})"
    return Notice(f"{count}; the worst, from instant {start}: {view} is off by {motion:.1f} px; {advice}")


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


def calibration_notice(
    scene: Scene,
    agreement: AgreementRecord,
    check: CalibrationCheckRecord | None = None,
    *,
    is_conditioned: bool = False,
) -> Notice | None:
    """Warn of a camera that the network predicts far from its calibration, the others near theirs.

    People and texture come first: if they name cameras, or confirm this one, nothing is added. A network that is
    conditioned on the calibration is a weak witness.
    """
    for camera in agreement.cameras:
        if camera.view == agreement.at_fault:
            share = "" if camera.share is None else f" ({camera.share:.0%} of the rig)"
            unit = " m" if scene.scale.unit == "metre" else ""
            residual = f"{camera.rotation_deg:.1f} deg and {camera.distance:.3g}{unit}{share}"
            if check is not None and (check.findings or check.confirms(camera.view)):
                return None
            given = ", which the calibration is an input of," if is_conditioned else ""
            text = f"the network{given} predicts {camera.view} elsewhere than the calibration, by {residual}"
            command = f"`page4d inspect-scene SCENE{as_words(vars(scene.options), (*CALIBRATED, *OPENING))} --check`"
            others = f"and the other cameras near theirs: either may be wrong; {command} compares it with pixels"
            return Notice(f"{scene.calibration}: {text}, {others}")
    return None


def fault_records(predictions: Predictions, start: int) -> list[FaultRecord]:
    """Return the frames without content of instants from `start` on."""
    if predictions.faults is None:
        return []
    codes = predictions.faults[0].cpu().numpy()
    return [
        FaultRecord(view=name, fault=fault, instants=(start + np.flatnonzero(codes[:, view] == code)).tolist())
        for view, name in enumerate(predictions.view_names)
        for code, fault in enumerate(FAULTS, 1)
        if (codes[:, view] == code).any()
    ]


def count_empty_frames(predictions: Predictions) -> list[int]:
    """Return the number of frames of every view whose content has no depth: masks or a depth sensor left none."""
    empty = ~predictions.known.any(dim=-1).any(dim=-1)
    if predictions.faults is not None:
        empty &= predictions.faults.to(empty.device) == 0
    return [int(count) for count in empty.sum(dim=(0, 1))]


def empty_frames_notice(chunks: Sequence[ChunkRecord], view_names: Sequence[str], num_times: int) -> Notice | None:
    """Warn of views with frames that contribute no point."""
    recorded = [chunk.empty_frames for chunk in chunks if chunk.empty_frames]
    counts = {name: sum(numbers[view] for numbers in recorded) for view, name in enumerate(view_names)}
    empty = [f"{count} of {counted(num_times, 'frame')} of {name}" for name, count in counts.items() if count]
    return Notice(f"no pixel has depth in {', '.join(empty)}") if empty else None


def no_points_notice(num_points: int, points: PointOptions) -> Notice | None:
    """Warn of clouds without any point."""
    if num_points:
        return None
    filters = [f"⟨min_confidence={points.min_confidence:g}⟩", f"⟨edge_angle_deg={points.edge_angle_deg:g}⟩"]
    filters += [f"⟨min_views={points.min_views}⟩"] if points.min_views else []
    return Notice(f"all point clouds are empty: no pixel has depth and passes {' and '.join(filters)}")


def begun_record(plan: RunPlan, layout: OutputLayout, state: RunState) -> RunRecord:
    """Return the content of `run.json` before the first chunk."""
    scene, predictor = plan.scene, plan.predictor
    return RunRecord(
        status="incomplete",
        scale=Scale.ARBITRARY,
        unit=Scale.ARBITRARY.unit,
        depth_scale=1.0,
        settings=describe_settings(scene.options, plan.settings),
        scene=SceneRecord(
            name=scene.name,
            synchronisation=scene.synchronisation,
            start_ns=scene.start_ns,
            calibration=scene.calibration,
        ),
        views=[
            view_record(layout, *of_view)
            for of_view in zip(scene.views, plan.transforms, plan.sources, plan.map_transforms, strict=True)
        ],
        times=scene.times.tolist(),
        world_offset=scene.world_offset,
        network=plan.network,
        descriptors=plan.descriptors,
        pose_model=plan.pose_model,
        registration=None if state.registration is None else state.registration.record,
        world=plan.evidence.world,
        calibration_check=state.calibration_check,
        device=str(predictor.device),
        precision=PRECISION_NAMES[predictor.precision],
        threads=state.threads,
        seed=plan.settings.seed,
    )


def finished_record(
    begun: RunRecord, plan: RunPlan, state: RunState, finished: Sequence[FinishedChunk], decided: Iterable[FileModel]
) -> RunRecord:
    """Add the results of all chunks to the content of `run.json`; `decided` are the decisions of stages."""
    chunks = [chunk.record for chunk in finished]
    results: dict[str, Any] = {
        "calibration_residuals": summarize_residuals(plan.scene, chunks),
        "chunks": chunks,
        "counts": CountsRecord(
            clipped_depths=sum(chunk.clipped_depths for chunk in finished),
            points=sum(chunk.num_points for chunk in finished),
        ),
        "predicted_peak_memory_bytes": plan.forecast.peak_bytes(max(chunk.length for chunk in state.plan)),
    }
    for decision in decided:
        results |= {name: value for name, value in decision if name in RunRecord.model_fields}
    return RunRecord(**{**dict(begun), **results})


def final_notices(plan: RunPlan, record: RunRecord, finished: Sequence[FinishedChunk]) -> tuple[Notice, ...]:
    """Report on values that do not fit their maps, empty frames or clouds, seams, cameras, motion, and no Open3D."""
    agreement, side = record.calibration_residuals, plan.max_side
    module, reason, hint = load_open3d()
    # Evidence was checked on its own; predicted cameras are the less certain ones.
    is_registered = plan.evidence.registration is not None and plan.evidence.registration.record.is_used
    notices = (
        *map(Notice, record.content),
        *map(Notice, record.unmapped),
        seams_notice(record.chunks, side),
        metres_notice(record.chunks, record.scale_source),
        rig_fit_notice(record, side),
        empty_frames_notice(record.chunks, plan.scene.view_names, plan.scene.num_times),
        no_points_notice(record.counts.points, plan.settings.points),
        None
        if agreement is None or is_registered
        else calibration_notice(
            plan.scene, agreement, record.calibration_check, is_conditioned=is_conditioned(plan.predictor)
        ),
        None
        if module is not None
        else Notice(f"{reason}: page4d wrote clouds and trajectories itself, with the same content ({hint})"),
    )
    of_motion: tuple[Notice, ...] = ()
    if record.motion is not None:
        is_demonstration = plan.predictor.record.name == BUNDLED_NAME
        of_motion = motion_notices(finished, tracks=record.motion.tracks, is_demonstration=is_demonstration)
    return (*(notice for notice in notices if notice is not None), *of_motion)


_LONG_SIDE = 480
_MANY_VIEWS = 16
"""Views beyond which pictures of previews have half that size, as their tiles in the contact sheet are smaller."""


def write_previews(output: Output, scene: Scene) -> list[WrittenFile]:
    """Write `contact_sheet.png`, `cloud.png` and `orbit.mp4` to `preview/`, with the banner of the run."""
    notice = output.run.banner
    instants = spread_places(output.num_times, MAX_INSTANTS)
    images = _images_at(scene, instants)
    frames = [read_frames(output, instant, images[instant]) for instant in instants]
    sheet = contact_sheet(frames, output.run.scale, notice)
    middle = instants[len(instants) // 2]
    cloud = cloud_views(output.points(middle), output.cameras, middle, upward_of(output).vector, notice)
    layout = output.layout
    return [
        write_png(layout.contact_sheet, sheet),
        write_png(layout.cloud_preview, cloud),
        write_bytes_atomic(layout.orbit, orbit_video(output, notice)),
    ]


def _images_at(scene: Scene, instants: list[int]) -> dict[int, list[NDArray[np.uint8]]]:
    """Decode some instants of all views at preview size, seeking from one to the next."""
    images = {}
    with open_batches(scene, _LONG_SIDE // (1 if scene.num_views <= _MANY_VIEWS else 2), 1) as reader:
        for instant in instants:
            batch = reader.read(instant, instant + 1)
            images[instant] = [
                # View by view: a second copy of all views as floating-point numbers would be the peak of the run.
                (picture * 255).round().byte().permute(1, 2, 0).numpy()[transform.rows, transform.columns]
                for picture, transform in zip(batch.images[0, 0], batch.pixel_transforms, strict=True)
            ]
    return images
