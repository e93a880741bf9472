"""The summary of a run: the content of `run.json`, and the notices at its end."""

from collections.abc import Sequence
from typing import Literal

from page4d.conventions import Scale
from page4d.inference.calibration_check import summarize_residuals
from page4d.inference.diagnostics import (
    calibration_notice,
    empty_frames_notice,
    metres_notice,
    no_points_notice,
    open3d_notice,
    rig_fit_notice,
    seams_notice,
)
from page4d.inference.memory_budget import peak_bytes
from page4d.inference.motion_summary import motion_notices, motion_record
from page4d.inference.predictor import PRECISION_NAMES, is_conditioned
from page4d.inference.progress import Journal
from page4d.inference.run_plan import RunPlan
from page4d.inference.state_records import FinishedChunk, RunState
from page4d.installation import load_open3d
from page4d.options import describe_settings
from page4d.output.layout import OutputLayout
from page4d.output.record import CountsRecord, RunRecord, SceneRecord, view_record
from page4d.scene.records import Notice
from page4d.weights.loading import BUNDLED_NAME


def summarize_run(
    status: Literal["complete", "incomplete"],
    plan: RunPlan,
    layout: OutputLayout,
    state: RunState,
    finished: Sequence[FinishedChunk],
    journal: Journal,
) -> RunRecord:
    """Return the content of `run.json` after the finished chunks."""
    scene, predictor = plan.scene, plan.predictor
    scale = state.scale or Scale.ARBITRARY
    chunks = [chunk.record for chunk in finished]
    return RunRecord(
        status=status,
        settings=describe_settings(scene.options, plan.settings),
        scale=scale,
        scale_source=state.scale_source,
        unit=scale.unit,
        depth_scale=state.depth_scale or 1.0,
        mesh_voxel_size=state.mesh_voxel_size,
        scene=SceneRecord(name=scene.name, synchronisation=scene.synchronisation, calibration=scene.calibration),
        views=[
            view_record(
                layout,
                view.name,
                view.source.label,
                transform,
                view.clock,
                view.camera,
                source,
                maps,
            )
            for view, transform, source, maps in zip(
                scene.views, plan.transforms, plan.sources, plan.map_transforms, strict=True
            )
        ],
        times=scene.times.tolist(),
        network=predictor.record,
        rig=None if state.rig is None else state.rig.record,
        registration=None if state.registration is None else state.registration.record,
        calibration_check=state.calibration_check,
        scale_from=state.scale_from,
        calibration_residuals=summarize_residuals(scene, chunks),
        chunks=chunks,
        counts=CountsRecord(
            clipped_depths=sum(chunk.clipped_depths for chunk in finished),
            points=sum(chunk.num_points for chunk in finished),
        ),
        layers=state.layers,
        motion=motion_record(plan.settings, state.depth_scale, finished, state.num_tracks),
        timings={stage: round(seconds, 3) for stage, seconds in journal.seconds.items()},
        predicted_peak_memory_bytes=plan.forecast.peak_bytes(max(chunk.length for chunk in state.chunks)),
        peak_memory_bytes=peak_bytes(predictor.device),
        device=str(predictor.device),
        precision=PRECISION_NAMES[predictor.precision],
        seed=plan.settings.seed,
        warnings=journal.warnings,
    )


def final_notices(plan: RunPlan, state: RunState, finished: Sequence[FinishedChunk]) -> tuple[Notice, ...]:
    """Report on clipped depths, empty frames or clouds, seams, static cameras, the calibration, and no Open3D."""
    chunks = [chunk.record for chunk in finished]
    clipped = sum(chunk.clipped_depths for chunk in finished)
    levels = state.depth_scale or 1.0
    text = f"{clipped} depths outside {1 / levels:.4g} to {65535 / levels:.4g} were clipped in the depth PNGs"
    agreement = summarize_residuals(plan.scene, chunks)
    # Evidence was checked on its own; predicted cameras are the less certain ones.
    is_registered = plan.registration is not None and plan.registration.record.is_used
    notices = (
        Notice(text) if clipped else None,
        seams_notice(chunks, plan.max_side),
        metres_notice(chunks, state.scale_source),
        rig_fit_notice(chunks, plan.scene.view_names, plan.max_side),
        empty_frames_notice(chunks, plan.scene.view_names, plan.scene.num_times),
        no_points_notice(sum(chunk.num_points for chunk in finished), plan.settings.points),
        None
        if agreement is None or is_registered
        else calibration_notice(
            plan.scene, agreement, state.calibration_check, is_conditioned=is_conditioned(plan.predictor)
        ),
        open3d_notice(*load_open3d()),
    )
    demonstration = plan.predictor.record.name == BUNDLED_NAME
    return (
        *(notice for notice in notices if notice is not None),
        *motion_notices(plan.settings, finished, is_demonstration=demonstration),
    )
