"""What a run says of how well the network and the calibration agree."""

from statistics import median

import torch

from page4d.export.run_record import AgreementRecord, CameraResidualRecord, ChunkRecord, ResidualsRecord
from page4d.geometry.rigid import camera_centers
from page4d.inference.calibration_check import RigResiduals
from page4d.scene.records import Notice, Scene


def residuals_record(residuals: RigResiduals, view_names: tuple[str, ...]) -> ResidualsRecord:
    """Record the residuals of a chunk."""
    return ResidualsRecord(
        rotation_deg=list(residuals.rotation_deg),
        distance=list(residuals.distance),
        focal_percent=list(residuals.focal_percent),
        at_fault=None if residuals.at_fault is None else view_names[residuals.at_fault],
    )


def agreement_of(scene: Scene, chunks: list[ChunkRecord]) -> AgreementRecord | None:
    """Sum up the residuals of all chunks; None if there was nothing to compare."""
    compared = [chunk.calibration for chunk in chunks if chunk.calibration is not None]
    if not compared:
        return None
    size = _rig_size(scene)
    cameras = []
    for view, name in enumerate(scene.view_names):
        distance = median(residuals.distance[view] for residuals in compared)
        cameras.append(
            CameraResidualRecord(
                view=name,
                rotation_deg=median(residuals.rotation_deg[view] for residuals in compared),
                distance=distance,
                share=distance / size if size else None,
                focal_percent=median(residuals.focal_percent[view] for residuals in compared),
            )
        )
    named = [residuals.at_fault for residuals in compared]
    return AgreementRecord(
        cameras=cameras, at_fault=next((name for name in named if 2 * named.count(name) > len(named)), None)
    )


def _rig_size(scene: Scene) -> float:
    """Return the largest distance between two calibrated cameras at the first instant."""
    poses = [view.camera.world_to_camera.reshape(-1, 4, 4)[0] for view in scene.views if view.camera is not None]
    centers = camera_centers(torch.stack(poses))
    return float((centers[:, None] - centers).norm(dim=-1).max())


def agreement_notice(scene: Scene, agreement: AgreementRecord) -> Notice | None:
    """Warn of the camera at fault."""
    for camera in agreement.cameras:
        if camera.view == agreement.at_fault:
            share = "" if camera.share is None else f" ({camera.share:.0%} of the rig)"
            unit = " m" if scene.scale.unit == "metre" else ""
            off = f"{camera.rotation_deg:.1f} deg and {camera.distance:.3g}{unit}{share}"
            return Notice(f"{scene.calibration}: {camera.view} disagrees with all other cameras, by {off}: check it")
    return None
