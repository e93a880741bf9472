"""The rows of `run.json` that a run fills in."""

from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import JsonValue

from page4d.conventions import Scale
from page4d.export.layout import OutputLayout
from page4d.export.run_record import (
    ChunkRecord,
    CountsRecord,
    NetworkRecord,
    RigFitRecord,
    RunRecord,
    SceneRecord,
    SeamRecord,
    TransformRecord,
    view_record,
)
from page4d.geometry.similarity import Sim3
from page4d.inference.agreement import agreement_of
from page4d.inference.memory import peak_bytes
from page4d.inference.plan import RunPlan
from page4d.inference.predictor import PRECISION_NAMES, Predictor
from page4d.inference.progress import Journal
from page4d.inference.run_state import FinishedChunk, RunState
from page4d.inference.stitch import Stitched
from page4d.scene.records import Scene


@dataclass(frozen=True, kw_only=True)
class RunInputs:
    """Everything about a run that is known when it starts."""

    scene: Scene
    predictor: Predictor
    network: NetworkRecord
    plan: RunPlan
    command: dict[str, JsonValue]
    seed: int

    @property
    def device(self) -> torch.device:
        """Where the predictor computes."""
        return self.predictor.device

    @property
    def precision(self) -> str:
        """Name of the arithmetic that the predictor computes in."""
        return PRECISION_NAMES[self.predictor.precision]


def chunk_record(stitched: Stitched, transform: Sim3, seconds: float) -> ChunkRecord:
    """Describe a finished chunk; `seconds` is the time from its first frame to its last file."""
    chunk, seam = stitched.chunk, stitched.seam
    x, y, z = transform.translation.tolist()
    return ChunkRecord(
        start=chunk.start,
        stop=chunk.stop,
        overlap=chunk.overlap,
        seconds=round(seconds, 3),
        transform=TransformRecord(
            scale=float(transform.scale), rotation=transform.rotation.tolist(), translation=(x, y, z)
        ),
        seam=None
        if seam is None
        else SeamRecord(
            residual=seam.residual,
            residual_share=seam.residual_share,
            residual_px=seam.residual_px,
            rotation_deg=seam.rotation_deg,
            scale_ratio=seam.scale_ratio,
            num_points=seam.num_points,
        ),
        rig=None
        if stitched.fit is None
        else RigFitRecord(motion_px=list(stitched.fit.motion_px), scale_std=stitched.fit.scale_std),
    )


def run_record(
    inputs: RunInputs,
    layout: OutputLayout,
    state: RunState,
    chunks: list[FinishedChunk],
    journal: Journal,
    status: Literal["complete", "incomplete"],
) -> RunRecord:
    """Describe a run as far as it has come."""
    scale = state.scale or Scale.ARBITRARY
    views = zip(inputs.scene.views, inputs.plan.transforms, strict=True)
    return RunRecord(
        status=status,
        settings=inputs.command,
        scale=scale,
        unit=scale.unit,
        depth_scale=state.depth_scale or 1.0,
        scene=SceneRecord(
            name=inputs.scene.name,
            synchronisation=inputs.scene.synchronisation,
            calibration=inputs.scene.calibration,
        ),
        views=[
            view_record(
                layout,
                view.name,
                view.source.label,
                transform,
                view.clock,
                None if view.camera is None else view.camera.distortion,
            )
            for view, transform in views
        ],
        times=inputs.scene.times.tolist(),
        network=inputs.network,
        rig=None if state.rig is None else state.rig.record,
        scale_from=state.scale_from,
        calibration_residuals=agreement_of(inputs.scene, [chunk.record for chunk in chunks]),
        chunks=[chunk.record for chunk in chunks],
        counts=CountsRecord(
            clipped_depths=sum(chunk.clipped_depths for chunk in chunks),
            points=sum(chunk.num_points for chunk in chunks),
        ),
        timings={stage: round(seconds, 3) for stage, seconds in journal.seconds.items()},
        predicted_peak_memory_bytes=inputs.plan.forecast.peak_bytes(
            max(stop - start for start, stop, _ in state.plan)
        ),
        peak_memory_bytes=peak_bytes(inputs.device),
        device=str(inputs.device),
        precision=inputs.precision,
        seed=inputs.seed,
        warnings=journal.warnings,
    )
