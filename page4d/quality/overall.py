"""The measurements of a whole result: means over views and pairs, and what the run recorded about itself."""

from collections.abc import Iterator
from math import inf

from page4d.output.record import DomainRecord, RunRecord
from page4d.quality.measure import Measurements, mean_of
from page4d.quality.record import Overall


def overall_quality(measured: Measurements, run: RunRecord) -> Overall:
    """Summarize the measurements of a result."""
    views, pairs = measured.views, measured.pairs
    return Overall(
        with_depth=mean_of([view.with_depth for view in views]) or 0.0,
        confirmed=mean_of([view.confirmed for view in views]) or 0.0,
        contradicted=mean_of(
            [
                pair.contradicted / max(pair.contradicted + pair.confirmed, 1e-9)
                for pair in pairs
                if pair.contradicted is not None and pair.confirmed is not None
            ]
        ),
        single=mean_of([view.single for view in views]) or 0.0,
        confidence=mean_of([view.confidence for view in views]) or 0.0,
        residual=mean_of([pair.residual for pair in pairs]),
        residual_px=mean_of([pair.residual_px for pair in pairs]),
        photo=mean_of([pair.photo for pair in pairs]),
        photo_gain=mean_of([pair.photo_gain for pair in pairs]),
        flicker=mean_of([view.flicker for view in views]),
        unlike_training=max(_indicators(run), default=None),
        camera_gap_deg=mean_of([record.camera_disagreement_deg for record in _domains(run)]),
        are_cameras_given=_are_cameras_given(run),
        seam=max((chunk.seam.residual_share or 0.0 for chunk in run.chunks if chunk.seam is not None), default=None),
    )


def _domains(run: RunRecord) -> list[DomainRecord]:
    return [chunk.domain for chunk in run.chunks if chunk.domain is not None]


def _indicators(run: RunRecord) -> Iterator[float]:
    """Yield the out-of-distribution indicators of all chunks; those beyond any number are infinite."""
    for record in _domains(run):
        yield from (inf if value is None else value for value in record.indicators.values())


def _are_cameras_given(run: RunRecord) -> bool:
    """Return whether the cameras are those of a calibration or of evidence."""
    if run.registration is not None and run.registration.is_used:
        return True
    return run.settings.get("calibration") is not None and run.settings.get("poses") == "input"
